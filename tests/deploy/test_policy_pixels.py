"""A run that sees pictures and dictionaries acts on what its task shows, in a loop and in a file."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

import hydrl
from hydrl.deploy import export
from hydrl.deploy.policy import Policy
from hydrl.envs import spaces
from tests.conftest import SMALL, settings
from tests.deploy.test_policy import runner
from tests.fakes.pixel_envs import DotEnv
from train import train

SHORT = [*SMALL, "total_frames=64", "minibatches.epochs=1", "encoder.features=8", "env=gym"]
SHORT += ["eval.every_frames=64", "critic.num_cells=[16]"]
STACK = "+env.wrappers.stack._target_=gymnasium.wrappers.FrameStackObservation"
RUNS = {
    "Scene-v0": ["+env.size=12", "transforms=normalized", "init_stats_frames=100"],
    "Aim-v0": [STACK, "+env.wrappers.stack.stack_size=2"],
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """The policy of a short run on that task, trained once."""
    folders = {}

    def call(name: str) -> Policy:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name) / "run"
            train(
                settings(*SHORT, f"env.id=tests.fakes.pixel_envs:{name}", *RUNS[name], run_dir=folders[name])
            )
        return hydrl.load(folders[name], trust=True)

    return call


def task(name: str) -> gymnasium.Env:
    """The plain task in the run's wrappers."""
    if name == "Scene-v0":
        return gymnasium.make(name, size=12)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make(name), 2)


def side_by_side(name: str, many: int = 3) -> gymnasium.vector.VectorEnv:
    """Several, as Gymnasium steps them together."""
    return SyncVectorEnv([lambda: task(name)] * many, autoreset_mode=AutoresetMode.SAME_STEP)


def played(policy: Policy, name: str, steps: int) -> tuple[list, np.ndarray]:
    """What several tasks show a policy that acts by ``predict``, and what it does."""
    envs = side_by_side(name)
    envs.reset(seed=7)  # as TorchRL, which seeds by a reset of its own
    shown, acted = [envs.reset()[0]], []
    for _ in range(steps):
        acted.append(policy.predict(shown[-1]))
        shown.append(envs.step(acted[-1])[0])
    return shown[:-1], np.stack(acted)


def one_of(observation, place: int):
    """That of one of several tasks."""
    if isinstance(observation, dict):
        return {name: values[place] for name, values in observation.items()}
    return observation[place]


@pytest.mark.parametrize("name", RUNS)
def test_what_it_does_on_the_plain_task_is_what_it_does_in_the_run_s_own_environment(name, load):
    policy = load(name)
    shown, acted = played(policy, name, 12)
    env = policy.env(num_envs=3)
    env.set_seed(7)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(12, policy.actor, break_when_any_done=False)
    expected = [policy.io.write(part) for part in rollout["action"].unbind(1)]
    assert np.array_equal(acted, expected)
    assert len(np.unique(acted)) > 1
    alone = [policy.predict(one_of(shown[3], place)) for place in range(3)]
    np.testing.assert_allclose(alone, acted[3], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *(("Scene-v0", "onnx"), ("Aim-v0", "pt2")),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [("Aim-v0", "onnx"), ("Scene-v0", "pt2")]),
    ],
)
def test_a_file_takes_what_the_task_shows_and_acts_as_predict_does(name, suffix, load, tmp_path, capsys):
    policy = load(name)
    path = policy.export(tmp_path / f"policy.{suffix}")
    took = {
        "Scene-v0": "camera uint8 [batch, 12, 12, 3], goal int64 [batch], speed float32 [batch, 2] -> action "
        "int64 [batch]",
        "Aim-v0": "observation uint8 [batch, 2, 12, 12, 3] -> action float32 [batch, 1]",
    }[name]
    assert f"{path}: {took}\n" in capsys.readouterr().out
    run = runner(path)
    shown, acted = played(policy, name, 12)
    for observation, expected in zip(shown, acted, strict=True):
        observed = [*observation.values()] if isinstance(observation, dict) else [observation]
        observed = [
            values.astype(np.float32) if values.dtype == np.float64 else values for values in observed
        ]
        np.testing.assert_allclose(run(*observed)[0], expected, rtol=1e-5, atol=1e-5)
    if suffix == "pt2":
        files = {"policy.json": ""}
        torch.export.load(path, extra_files=files)
        inputs = json.loads(files["policy.json"])["inputs"]
        bounds = {input["name"]: (input["low"], input["high"]) for input in inputs}
        goal = {"camera": (0, 255), "goal": (1, 2), "speed": (-1.0, 1.0)}
        assert bounds == (goal if name == "Scene-v0" else {"observation": (0, 255)})


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(0, 255, (5, 4), np.uint8),
        gymnasium.spaces.Box(0, 255, (5, 4, 3), np.uint8),
        gymnasium.spaces.Box(0, 255, (3, 5, 4), np.uint8),
        gymnasium.spaces.Box(0, 255, (2, 5, 4, 3), np.uint8),
        gymnasium.spaces.Box(0, 255, (2, 3, 5, 4), np.uint8),
        gymnasium.spaces.Box(0, 1, (5, 4, 3), np.bool_),
        gymnasium.spaces.Box(0, 1, (5, 4, 3), np.float64),
        gymnasium.spaces.Box(-1, 1, (2, 2)),
        gymnasium.spaces.Discrete(3, start=4),
        gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 0]),
        gymnasium.spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_an_input_of_a_file_is_read_as_in_a_run(space):
    env = DotEnv()
    env.observation_space, drawn = space, [space.sample() for _ in range(4)]
    adapted, expected = spaces.adapt_spaces(env), []
    for sample in drawn:
        env.show = lambda sample=sample: sample
        observation = adapted.reset()[0]
        expected.append(observation["pixels"] if isinstance(observation, dict) else observation)
    inputs = torch.as_tensor(np.stack(drawn).astype(export.input_dtype(space)))
    np.testing.assert_allclose(export.adapt_input(inputs, space), np.stack(expected))
    description = export.describe_entry("observation", space)
    assert (np.array(description["low"]) <= np.stack(drawn)).all()
    assert (np.stack(drawn) <= np.array(description["high"])).all()
    json.dumps(description)
