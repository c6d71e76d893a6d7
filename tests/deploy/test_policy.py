"""A finished run to act with: what it does is what the run's evaluation does."""

import json
import random
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from tensordict import TensorDict

import hydrl
from hydrl.errors import UserError
from hydrl.training.evaluator import SeedStream, episode_seed
from tests.conftest import ROOT, resume_point, settings
from train import train

FRAMES = [f"+transforms.stack.{override}" for override in ("N=3", "dim=-1", "in_keys=[observation]")]
RUNS = {
    "ppo": ["env=inverted_double_pendulum"],
    "dqn": ["env=cartpole", "algo=dqn"],
    "frames": ["env=pendulum", "+transforms.stack._target_=torchrl.envs.CatFrames", *FRAMES],
    "lstm": ["env=cartpole_masked", "algo=recurrent_ppo"],
    "td3": ["env=pendulum", "algo=td3", "transforms=normalized", "eval.every_frames=9_999"],
    "gru": ["env=cartpole_masked", "algo=recurrent_ppo", "rnn=gru"],
    "r2d2": ["env=cartpole_masked", "algo=r2d2"],
    "sac gru": ["env=pendulum_masked", "algo=sac", "rnn=gru"],
    "running": ["env=inverted_double_pendulum", "transforms=running_norm"],
    "sac": ["env=pendulum", "algo=sac", "eval.every_frames=9_999"],
    "cartpole": ["env=cartpole"],
    "choice": ["env=gym", "env.id=FrozenLake-v1"],
    "pictures": ["env=gym", "env.id=Screen-v0"],
    "mpc": [
        "algo=mpc",
        "env=pendulum",
        "planner.num_candidates=8",
        "planner.top_k=4",
        "planner.planning_horizon=4",
        "actor.num_cells=[8]",
        "collector.init_random_frames=64",
        "minibatches.warmup_frames=64",
    ],
    "torchrl": ["env=torchrl_pendulum"],
    "team": ["env=custom", "env._target_=tests.fakes.envs.CountingTeam", "algo=mappo"],
}


class Screen(gymnasium.Env):
    """Shows 2 x 3 pixels drawn at random; its two choices are called 5 and 6."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (2, 3), np.uint8), {}

    def step(self, action):
        return self.reset()[0], float(action == 5), self.np_random.random() < 0.1, False, {}


gymnasium.register("Screen-v0", Screen)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of one of ``RUNS``, trained once."""
    folders: dict[str, Path] = {}

    def call(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name) / "run"
            short = ["~tuned", "debug=fast", "device=cpu", "total_frames=256", "eval.every_frames=256"]
            chosen = settings(*short, *RUNS[name], run_dir=folder)
            train(chosen, resume_point(chosen))
            folders[name] = folder
        return folders[name]

    return call


@pytest.fixture
def load(trained):
    return lambda name, **options: hydrl.load(trained(name), **options)


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    """The file of one of ``RUNS``, as ``pt2`` or ``onnx``, alone in its folder; each is made once."""

    @cache
    def call(name: str, suffix: str) -> Path:
        folder = tmp_path_factory.mktemp("exported")
        return hydrl.load(trained(name), checkpoint="last").export(folder / f"policy.{suffix}")

    return call


def draw(policy, *shape: int) -> np.ndarray:
    """Observations, ``[*shape, ...]``."""
    with gymnasium.make(policy.run.env["id"]) as task:
        space = task.observation_space
    space.seed(0)
    return np.stack([space.sample() for _ in range(int(np.prod(shape)))]).reshape(*shape, *space.shape)


@pytest.mark.parametrize(
    ("name", "many"),
    [
        *((name, 3) for name in ("ppo", "dqn", "frames", "lstm", "r2d2", "sac gru", "mpc")),
        *((name, 1) for name in ("ppo", "lstm")),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("dqn", "frames", "r2d2", "sac gru")),
    ],
)
def test_gymnasium_s_plain_environment_pays_what_the_evaluation_says_to_the_last_bit(name, many, load):
    policy = load(name)
    wanted = policy.evaluator(policy.frames, many, SeedStream.LATER)
    seed = episode_seed(policy.evaluator.seed, policy.frames, SeedStream.LATER)
    tasks = [gymnasium.make(policy.run.env["id"]) for _ in range(many)]
    for place, task in enumerate(tasks):
        task.reset(seed=seed + place)
    observations = np.stack(
        [task.reset()[0] for task in tasks]
    )  # as TorchRL, which seeds by a reset of its own
    returns, lengths = np.zeros(many, np.float32), np.zeros(many, int)
    running = np.ones(many, bool)
    for _ in range(policy.evaluator.max_steps):
        actions = policy.predict(observations) if many > 1 else [policy.predict(observations[0])]
        for place in np.flatnonzero(running):
            observations[place], reward, terminated, truncated, _ = tasks[place].step(actions[place])
            returns[place] += np.float32(reward)
            lengths[place] += 1
            running[place] = not (terminated or truncated)
    assert returns.tolist() == wanted.returns.tolist()
    assert lengths.tolist() == wanted.lengths.tolist()


@pytest.mark.parametrize("name", ["frames", "lstm", "r2d2", "sac gru"])
def test_episodes_begin_where_reset_says_and_nowhere_else(name, load):
    policy = load(name)

    def remembered() -> torch.Tensor:
        state = "recurrent_state" if "gru" in name else "recurrent_state_h"
        return policy.now["observation" if name == "frames" else ("next", state)].clone()

    observations = draw(policy, 5, 3)
    once = [(policy.predict(observation), remembered())[1] for observation in observations]
    policy.reset()
    for observation in observations[:3]:
        policy.predict(observation)
    policy.reset([False, True, False])
    policy.predict(observations[3])
    policy.predict(observations[4])
    begun = remembered()
    policy.reset(np.array([1]))
    policy.reset()
    for observation in observations[3:]:
        policy.predict(observation)
    assert torch.equal(begun[[0, 2]], once[4][[0, 2]])
    assert torch.equal(begun[1], remembered()[1])
    assert not torch.equal(begun[1], once[4][1])
    with pytest.raises(UserError, match=r"\[2\] environments after \[3\]. Call reset\(\)"):
        policy.predict(observations[0, :2])
    policy.reset()
    assert len(policy.predict(observations[0, :2])) == 2


def test_actions_have_the_environment_s_own_form_and_are_drawn_only_where_asked(load):
    dqn, ppo = load("dqn"), load("ppo")
    assert type(dqn.predict(draw(dqn, 1)[0])) is int
    assert repr(dqn) == "<Policy of dqn on cartpole, seed 0, after 256 frames>"
    assert dqn.predict(draw(dqn, 4)).dtype == np.int64
    assert dqn.predict([0, 0, 0, 0]) in (0, 1)  # lists and integers are numbers too
    observation = draw(ppo, 1)[0]
    likely, drawn = (
        ppo.predict(observation),
        [ppo.predict(observation, deterministic=False) for _ in range(20)],
    )
    assert (likely.shape, likely.dtype) == ((1,), np.float32)
    assert np.std(drawn) > 0.1
    assert np.abs(drawn).max() <= 1
    assert ppo.predict(observation) == likely
    acted = ppo.act(TensorDict({"observation": torch.as_tensor(observation)}))
    assert set(acted.keys()) == {"observation", "action"}
    assert acted["action"].numpy() == likely


def test_actions_come_out_in_the_task_s_own_unit(load):
    policy = load("td3", checkpoint="last")
    predicted = policy.predict(draw(policy, 100))
    acted = policy.now["action"].numpy()
    assert np.array_equal(predicted, 2 * acted)
    assert 0 < np.abs(acted).max() <= 1


def test_pictures_and_other_actions_are_taken_as_the_task_has_them(load, tmp_path):
    policy = load("pictures", trust=True)
    pictures = draw(policy, 5)
    assert pictures.shape == (5, 2, 3)
    actions = policy.predict(pictures)
    assert set(actions.tolist()) <= {5, 6}  # its choices start at 5
    assert policy.predict(pictures[0]) == actions[0]
    network = torch.export.load(policy.export(tmp_path / "policy.pt2")).module()
    assert network(torch.as_tensor(pictures).float()).tolist() == actions.tolist()


def test_torchrl_s_environment_rolls_out_frozen(load):
    policy = load("ppo")
    env = policy.env(num_envs=2)
    before = {key: statistic.clone() for key, statistic in policy.evaluator.normaliser()["0"].items()}
    rollout = env.rollout(30, policy.actor, break_when_any_done=False)
    assert rollout.shape == (2, 30)
    assert not rollout["action"].requires_grad
    for key, statistic in env.transform[1].get_extra_state().items():
        assert torch.equal(torch.as_tensor(statistic), before[key]), key


def play(policy, steps: int, many: int = 3) -> np.ndarray:
    """What ``many`` episodes of a policy that acts by ``predict`` show, ``[steps, many, *shape]``."""
    keywords = {key: value for key, value in policy.run.env.items() if key not in ("_target_", "observe")}
    tasks = [gymnasium.make(**keywords) for _ in range(many)]
    observations = [[task.reset(seed=place)[0] for place, task in enumerate(tasks)]]
    for step in range(1, steps):
        acts = policy.predict(np.array(observations[-1]))
        after = [task.step(act) for task, act in zip(tasks, acts, strict=True)]
        ends = [step[2] or step[3] for step in after]
        observations.append(
            [
                task.reset(seed=step)[0] if end else result[0]
                for task, end, result in zip(tasks, ends, after, strict=True)
            ]
        )
    policy.reset()
    return np.array(observations)


def runner(path: Path):
    """A file's inputs to its outputs, as lists of arrays."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path)
        names = [entry.name for entry in session.get_inputs()]
        return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))
    network = torch.export.load(path).module()

    def run(*inputs):
        out = network(*map(torch.as_tensor, inputs))
        return [output.numpy() for output in (out if isinstance(out, tuple) else (out,))]

    return run


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *(("dqn", "pt2"), ("running", "onnx")),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [
                *(("ppo", "onnx"), ("ppo", "pt2"), ("td3", "onnx"), ("td3", "pt2"), ("sac", "onnx")),
                *(("dqn", "onnx"), ("cartpole", "onnx"), ("choice", "onnx"), ("choice", "pt2")),
            ]
        ),
    ],
)
def test_an_exported_file_acts_as_predict_does(name, suffix, load, exported):
    policy, path = load(name, checkpoint="last"), exported(name, suffix)
    observations = play(policy, 100)
    assert [*path.parent.iterdir()] == [path]  # one file, no weights beside it
    run, kind = runner(path), np.int64 if name == "choice" else np.float32
    wanted = np.stack([policy.predict(observation) for observation in observations])
    acted = [run(observation.astype(kind))[0] for observation in observations]
    assert name == "choice" or len(np.unique(wanted)) > 1
    assert acted[0].dtype == wanted.dtype
    np.testing.assert_allclose(acted, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(observations[0, :1].astype(kind))[0], wanted[0, :1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "suffix", "states"),
    [
        ("lstm", "onnx", ["state_h", "state_c"]),
        pytest.param("gru", "onnx", ["state"], marks=pytest.mark.slow),
        ("lstm", "pt2", ["state_h", "state_c"]),
    ],
)
def test_an_exported_memory_is_handed_on_and_begins_with_zeros(name, suffix, states, load, exported):
    policy, path = load(name, checkpoint="last"), exported(name, suffix)
    observations = play(policy, 24).astype(np.float32)
    run, logits = runner(path), []
    if suffix == "onnx":
        session = onnxruntime.InferenceSession(path)
        assert [entry.name for entry in session.get_inputs()] == ["observation", *states]
        assert [entry.name for entry in session.get_outputs()] == ["action", *(f"next_{n}" for n in states)]
    memory = [np.zeros((3, 1, 64), np.float32) for _ in states]
    for step, observation in enumerate(observations):
        if step == 10:  # of one of them another episode begins
            policy.reset([1])
            for state in memory:
                state[1] = 0
        action, *memory = (np.array(out) for out in run(observation, *memory))
        assert action.tolist() == policy.predict(observation).tolist()
        now = [policy.now["next", f"recurrent_{n}"].numpy() for n in states]
        np.testing.assert_allclose(memory, now, rtol=1e-5, atol=1e-5)
        logits.append(memory[0])
    assert np.ptp(logits, axis=0).max() > 1e-3  # it moves


def test_a_file_says_what_it_takes_and_whose_it_is(load, exported, tmp_path, capsys):
    policy = load("td3", checkpoint="last")
    capsys.readouterr()  # its training, where no test has asked for it before
    path = policy.export(tmp_path / "policy.onnx")
    line = "observation float32 [batch, 3] -> action float32 [batch, 1]"
    assert capsys.readouterr().out == f"{path}: {line}\n"
    session = onnxruntime.InferenceSession(path)
    assert [entry.shape for entry in session.get_inputs()] == [["batch", 3]]
    assert [entry.shape for entry in session.get_outputs()] == [["batch", 1]]
    metadata = session.get_modelmeta()
    assert metadata.description == f"td3 on pendulum after 256 frames: {line}"
    description = metadata.custom_metadata_map
    assert (description["algo"], description["task"], description["frames"], description["seed"]) == (
        "td3",
        "pendulum",
        "256",
        "0",
    )
    assert description["hydrl"] == version("hydrl")
    assert json.loads(description["env"])["id"] == "Pendulum-v1"
    assert json.loads(description["inside"]) == ["FixedNorm", "actor", "ActionScaling"]
    bounds = {"low": [-1, -1, -8], "high": [1, 1, 8]}
    entry = {"name": "observation", "dtype": "float32", "shape": ["batch", 3]}
    assert json.loads(description["inputs"]) == [entry | bounds]
    entry = {"name": "action", "dtype": "float32", "shape": ["batch", 1]}
    assert json.loads(description["outputs"]) == [entry | {"low": -2, "high": 2}]
    files = {"policy.json": ""}
    torch.export.load(exported("lstm", "pt2"), extra_files=files)
    description = json.loads(files["policy.json"])
    state = {"name": "state_c", "dtype": "float32", "shape": ["batch", 1, 64], "begins": 0.0}
    assert description["inputs"][2] == state
    assert description["outputs"][2] | {"begins": 0.0} == state | {"name": "next_state_c"}
    assert description["inputs"][0]["high"][1] is None  # a velocity
    assert description["inside"][0] == "observe [0, 2]"


@pytest.mark.parametrize("name", [pytest.param("cartpole", marks=pytest.mark.slow), "lstm"])
def test_the_page_s_script_plays_an_episode_without_hydrl_and_pytorch(name, load, exported, tmp_path):
    policy = load(name, checkpoint="last")
    shutil.copy(exported(name, "onnx"), tmp_path)
    page = (ROOT / "docs" / "acting.md").read_text()
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "onnxruntime" in block
    )
    absent = "import sys; sys.modules.update(dict.fromkeys(['torch', 'hydrl', 'torchrl', 'tensordict']))\n"
    done = subprocess.run(
        [sys.executable, "-c", absent + script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stderr == ""
    env, total, ended = gymnasium.make("CartPole-v1"), 0.0, False
    observation, _ = env.reset(seed=0)
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy.predict(observation))
        total, ended = total + float(reward), terminated or truncated
    assert done.stdout == f"{total}\n"


@pytest.mark.parametrize(
    ("name", "ask", "message"),
    [
        (
            "dqn",
            lambda p: p.predict(np.zeros(3)),
            r"observation: got .* Pass float32 of shape \[4\], or \[n, 4\] for a batch",
        ),
        ("dqn", lambda p: p.predict(np.zeros((0, 4))), r"got float64 of shape \[0, 4\]"),
        ("dqn", lambda p: p.predict(["a"] * 4), r"got <U1 of shape \[4\]"),
        (
            "dqn",
            lambda p: p.act(TensorDict()),
            r"observation: it is missing. Pass torch.float32 of shape \[4\]",
        ),
        ("dqn", lambda p: p.export("p.tflite"), r"export=p.tflite: unknown format. Use a name that ends in"),
        ("dqn", lambda p: p.export("no/p.onnx"), "export=no/p.onnx: no folder no"),
        (
            "frames",
            lambda p: p.export("p.pt2"),
            r"export: stacked frames \(CatFrames\) are not supported",
        ),
        (
            "mpc",
            lambda p: p.export("p.pt2"),
            "export: policies that plan are not supported. Use predict",
        ),
        (
            "team",
            lambda p: p.export("p.pt2"),
            "^export: env._target_=.* has several agents, which are not supported",
        ),
        (
            "torchrl",
            lambda p: p.export("p.pt2"),
            "^export: env=torchrl_pendulum is no Gymnasium env",
        ),
        (
            "torchrl",
            lambda p: p.predict(np.zeros(3)),
            "^predict: env=torchrl_pendulum is no Gymn",
        ),
        (
            "team",
            lambda p: p.predict(np.zeros(3)),
            "predict: env.* is no Gymnasium environment. Use act or env",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(name, ask, message, load):
    policy = load(name, trust=True)
    with pytest.raises(UserError, match=message) as refused:
        ask(policy)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["torchrl", "team"])
def test_what_is_not_gymnasium_s_acts_on_tensordicts(name, load):
    policy = load(name, trust=True)
    start = policy.env(num_envs=2).base_env.reset()
    acted = policy.act(start)
    assert acted[policy.example_env.action_key].shape[0] == 2


def test_a_missing_extra_is_named(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        UserError, match=r"export=p.onnx: ONNX is not installed. Run pip install 'hydrl\[export\]'"
    ):
        load("dqn").export("p.onnx")


def test_a_run_stopped_before_an_evaluation_gives_its_last_policy_and_says_so(
    load, trained, tmp_path, capsys
):
    assert load("td3").frames == 256  # the closing evaluation was its only one
    assert "warning" not in capsys.readouterr().out
    stopped = shutil.copytree(trained("td3"), tmp_path / "run")
    (stopped / "summary.json").unlink()
    assert hydrl.load(stopped).frames == 256
    assert f"warning: run={stopped}: never evaluated" in capsys.readouterr().out


def test_a_folder_without_a_run_and_a_wrong_checkpoint_are_named(trained, tmp_path):
    with pytest.raises(UserError, match=f"^run={tmp_path}: not a run"):
        hydrl.load(tmp_path)
    with pytest.raises(UserError, match=r"checkpoint=7: no such checkpoint\. Use one of best, last, "):
        hydrl.load(trained("dqn"), checkpoint=7)


def test_loading_and_acting_leave_random_numbers_alone(trained):
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    policy = hydrl.load(trained("dqn"))
    policy.predict(draw(policy, 2))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_importing_hydrl_does_not_import_pytorch():
    code = "import sys, hydrl; hydrl.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_page_s_examples_run(trained, tmp_path, monkeypatch):
    shutil.copytree(trained("ppo"), tmp_path / "outputs" / "my-run")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "acting.md").read_text()
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        if "import onnxruntime" not in block:  # played above
            exec(block, names)
    assert names["done"]
    assert names["action"].shape == (1,)
    assert names["actions"].shape == (4, 1)
    assert len(names["rollout"]) > 1


def test_the_first_lines_in_readme_run(trained, tmp_path, monkeypatch):
    shutil.copytree(trained("dqn"), tmp_path / "outputs" / "…")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "hydrl.load" in block)
    names: dict = {}
    exec(block, names)
    assert names["action"] in (0, 1)
    assert (tmp_path / "policy.onnx").stat().st_size > 1_000
