"""From Python as from the shell: the same run, in a process that is left as it was found."""

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import av
import gymnasium
import numpy as np
import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor
from torchrl.modules.distributions import OneHotCategorical

import hydrl
from hydrl.api import python_classes, runs
from hydrl.api.training import TRAINING
from hydrl.config.overrides import to_override
from hydrl.errors import RunError, UserError, warn_once
from hydrl.run import process, rendering
from hydrl.run.checkpoint import archive, checkpointer
from tests.conftest import HANGING, ROOT, SMALL, SMALL_PPO, killed, logged, typed

CARTPOLE = [*SMALL_PPO, "env=cartpole"]
FEW = [*SMALL[2:], "eval.every_frames=64"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> runs.Run:
    return hydrl.train(*CARTPOLE, folder=tmp_path_factory.mktemp("trained") / "a run", seed=3)


class Counting(gymnasium.Env):
    """Pays 1 a step for ``length`` steps; ``at`` says what is called at which of its steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    at: dict = {}  # noqa: RUF012
    steps = 0

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.now += 1
        Counting.steps += 1
        self.at.get(Counting.steps, int)()
        return np.zeros(2, np.float32), 1.0, self.now >= self.length, False, {}


@pytest.fixture
def counting(monkeypatch) -> type[Counting]:
    monkeypatch.setattr(Counting, "steps", 0)
    monkeypatch.setattr(Counting, "at", {})
    return Counting


def found() -> dict:
    """What a run sets in its process."""
    return {
        "threads": torch.get_num_threads(),
        "floats": torch.get_default_dtype(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "torch": torch.get_rng_state().tolist(),
        "variables": dict(os.environ),
        "collected": gc.isenabled(),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "path": [*sys.path],
        "words": [*sys.argv],
        "warnings": [*warnings.filters],
        "hydra": (HydraConfig.initialized(), GlobalHydra.instance().is_initialized()),
        "lock": TRAINING.lock.locked(),
    }


def test_a_run_is_the_one_of_the_command_line(trained, tmp_path):
    done = typed(*CARTPOLE, "seed=3", f"hydra.run.dir={tmp_path / 'typed'}")
    assert done.returncode == 0, done.stderr
    assert logged(trained.folder) == logged(tmp_path / "typed")
    assert json.loads((trained.folder / "summary.json").read_text())["frames"] == 256
    for name in ("overrides.yaml", "config.yaml"):
        here, there = ((each / ".hydra" / name).read_text() for each in (trained.folder, tmp_path / "typed"))
        there = there.replace("backend: auto", "backend: inline")  # what `auto` is for hydrl.train
        assert here.replace(str(trained.folder), "DIR") == there.replace(str(tmp_path / "typed"), "DIR")


@pytest.mark.parametrize("collected", [True, False])
def test_the_process_is_left_as_it_was_found(collected, tmp_path, monkeypatch):
    torch.set_num_threads(3)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    (gc.enable if collected else gc.disable)()
    try:
        before = found()
        hydrl.train(*CARTPOLE, folder=tmp_path / "run", total_frames=64)
        with pytest.raises(UserError, match=r"algo=pppo: no such option\. Try ppo"):
            hydrl.train("algo=pppo")
        assert found() == before
    finally:
        gc.enable()


def test_a_mistake_is_a_line_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"optim.lr=-1.*greater than 0"):
        hydrl.train(*CARTPOLE, folder=tmp_path / "run", optim={"lr": -1})
    with pytest.raises(UserError, match=r"env\.id=Nothing-v0: cannot be created"):
        hydrl.train(*SMALL, "env=gym", folder=tmp_path / "run", env={"id": "Nothing-v0"})
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"^env\.id: no value. .* such as ALE/Pong-v5\.$"):
        hydrl.train("algo=ppo", "env=atari")
    with pytest.raises(UserError, match="-m: options are for the command line"):
        hydrl.train("-m", "algo=ppo,dqn")


def test_what_a_run_reached(trained):
    summary, metrics = trained.summary, trained.metrics
    assert (summary["algo"], summary["seed"], summary["frames"]) == ("ppo", 3, 256)
    assert metrics["frames"].tolist() == [64, 128, 192, 256]
    assert np.isnan(metrics["eval/return_mean"]).tolist() == [True, False, True, False]
    assert repr(trained).startswith("<Run of ppo on cartpole, seed 3: ")
    page = trained._repr_html_()
    assert 'src="data:image/png;base64,iVBOR' in page
    assert f"<td>{summary['frames']} frames, {summary['updates']} updates</td>" in page


def test_the_lines_in_readme_run(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (each for each in blocks if "hydrl.train" in each)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    words = ", ".join(f'"{each}"' for each in ["total_frames=64", *FEW])
    exec(block.replace('"algo=ppo"', f'"algo=ppo", {words}').replace(", total_frames=20_000", ""), names)
    assert names["run"].metrics["frames"].tolist() == [64]
    assert names["run"].folder.parent == tmp_path / "outputs" / "ppo-cartpole"


def test_a_table_of_pandas_is_asked_of_pandas(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        trained.frame()


def test_its_policy_is_evaluated_as_by_the_script(trained):
    done = typed(f"run={trained.folder}", "episodes=3", script="scripts/evaluate.py")
    assert done.returncode == 0, done.stderr
    kept = json.loads((trained.folder / "evaluation.json").read_text())
    before = torch.get_rng_state()
    scored = trained.evaluate(3)
    assert scored["returns"].tolist() == kept["returns"]
    assert scored["eval/return_mean"] == kept["eval/return_mean"]
    assert torch.equal(torch.get_rng_state(), before)
    assert trained.policy("last").predict(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(UserError, match="episodes=0: should be at least 1"):
        trained.evaluate(0)


def test_its_film_is_the_script_s(trained, monkeypatch):
    filmed = trained.folder / "video-last.mp4"
    done = typed(f"run={trained.folder}", "episodes=1", "video=true", script="scripts/evaluate.py")
    assert done.returncode == 0, done.stderr
    expected, before = pictures(filmed), dict(os.environ)
    filmed.unlink()
    assert trained.film() == filmed
    assert len(expected) > 2
    assert np.abs(pictures(filmed) - expected).mean() < 1  # an encoder's threads leave no two files alike
    assert dict(os.environ) == before
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="video=true: PyAV is not installed"):
        trained.film()


def pictures(film: Path) -> np.ndarray:
    with av.open(film) as video:
        return np.stack([each.to_ndarray(format="rgb24") for each in video.decode(video=0)]).astype(int)


def test_an_evaluation_is_as_quiet_as_the_run(tmp_path):
    run = hydrl.train(*SMALL_PPO, env="inverted_double_pendulum", folder=tmp_path / "run", total_frames=64)
    with warnings.catch_warnings(record=True) as told:
        warnings.resetwarnings()
        run.evaluate(1)
    assert not [each for each in told if "out of date" in str(each.message)]


def test_going_on_ends_as_the_run_did(trained, tmp_path):
    assert killed(trained.folder, tmp_path / "run") == 128
    left = runs.Run(tmp_path / "run")
    assert (left.summary, repr(left)) == ({}, f"<Run in {tmp_path / 'run'}, which has not ended>")
    assert left.resume().folder == tmp_path / "run"
    assert logged(tmp_path / "run") == logged(trained.folder)


def test_finished_runs_are_found_in_a_folder(trained, tmp_path):
    (only,) = hydrl.runs(trained.folder.parent)
    assert only.folder == trained.folder
    assert only.summary == trained.summary
    with pytest.raises(UserError, match="no such folder"):
        hydrl.runs(tmp_path / "nowhere")


@pytest.mark.parametrize(("words", "backend"), [([], "inline"), (["eval.backend=process"], "process")])
def test_a_program_is_not_imported_again_by_a_background_process_nobody_asked_for(
    words, backend, tmp_path, monkeypatch
):
    configs = []
    monkeypatch.setattr(runs, "run_training", lambda cfg, session: configs.append(cfg))
    monkeypatch.setattr(runs, "Run", lambda place, trust: place)
    hydrl.train("algo=ppo", "env=cartpole", *words, folder=tmp_path / "run")
    assert configs[0].eval.backend == backend


def test_a_class_is_the_task_and_the_run_says_where_it_goes_on(counting, tmp_path, capsys):
    words = [*SMALL, "algo=dqn", "minibatches.warmup_frames=64"]
    run = hydrl.train(*words, folder=tmp_path / "run", env=counting, **{"+env.length": 7})
    assert "env=Counting: known to this process only; resume the run here" in capsys.readouterr().out
    assert (run.summary["env"], run.summary["eval/return_mean"]) == ("Counting", 7.0)
    assert run.evaluate(2)["returns"].tolist() == [7.0, 7.0]
    assert run.resume(total_frames=320).summary["frames"] == 320


def test_a_run_with_choices_in_a_folder_is_gone_on_with(tmp_path):
    words = [f"--config-dir={ROOT / 'docs' / 'my_project' / 'conf'}", "algo=my_ppo", "env=corridor"]
    run = hydrl.train(*words, "debug=fast", total_frames=64, folder=tmp_path / "run")
    frames = run.summary["frames"]
    assert run.resume(total_frames=2 * frames).summary["frames"] == 2 * frames
    with pytest.raises(UserError, match="the run uses options from other folders"):
        runs.Run(tmp_path / "run").resume(total_frames=3 * frames)


def test_a_function_makes_the_actor(tmp_path, capsys):
    def straight(env):
        layer = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
        spec = {"distribution_class": OneHotCategorical, "return_log_prob": True}
        return ProbabilisticActor(layer, in_keys=["logits"], spec=env.action_spec_unbatched, **spec)

    words = [each for each in CARTPOLE if not each.startswith("actor.")]
    run = hydrl.train(*words, folder=tmp_path / "run", actor=straight)
    state = archive.load(archive.find(run.folder, "last"), ["actor"])["actor"]
    assert [tuple(each.shape) for each in state.values()] == [(2, 4), (2,)]
    assert run.policy().predict(np.zeros(4, np.float32)) in (0, 1)
    assert "straight does not accept" in capsys.readouterr().out
    assert run.resume(total_frames=320).summary["frames"] == 320
    with pytest.raises(UserError, match=r"actor\.num_cells=.*straight takes no num_cells"):
        hydrl.train(*CARTPOLE, actor=straight)


def test_classes_within_and_runs_are_known_by_name(trained, tmp_path):
    class Slower(gymnasium.Wrapper):
        def __init__(self, env, share):
            super().__init__(env)
            self.share = share

        def step(self, action):
            seen, reward, *rest = self.env.step(action)
            return seen, reward * self.share, *rest

    wrappers = {"wrappers": {"slower": {"_target_": Slower, "share": 0.25}}}
    words = [*CARTPOLE, "init_from.parts=[actor]"]
    run = hydrl.train(*words, folder=tmp_path / "run", env=wrappers, init_from=trained)
    scored = run.evaluate(2)
    assert scored["returns"].tolist() == [0.25 * each for each in scored["lengths"]]
    assert run.summary["init_from"]["run"] == str(trained.folder)


def test_two_functions_of_one_name_are_refused():
    def named(result: int):
        def make(env):
            return result

        return make

    with pytest.raises(UserError, match="make: two classes or functions of this name"):
        python_classes.to_overrides({"actor": named(1), "critic": named(2)})
    one = named(1)
    assert python_classes.to_overrides({"actor": one, "critic": one}) == ["actor=make", "critic=make"]


def test_each_run_of_a_process_says_what_the_one_before_it_said(trained, tmp_path, capsys, monkeypatch):
    def warn():
        warn_once("a column is not there")
        warn_once("a column is not there")

    monkeypatch.setattr(process, "quieten_libraries", warn)  # which a run calls
    for name in ("one", "two"):
        hydrl.train(*CARTPOLE, folder=tmp_path / name, total_frames=64)
        assert capsys.readouterr().err.count("a column is not there") == 1


def test_a_run_of_a_class_says_elsewhere_what_would_do(counting, tmp_path, monkeypatch):
    run = hydrl.train(*SMALL_PPO, env=counting, folder=tmp_path / "run")
    monkeypatch.setattr(ConfigStore.instance(), "repo", {**ConfigStore.instance().repo, "env": {}})
    monkeypatch.delitem(gymnasium.registry, "hydrl/Counting")
    done = typed(f"resume={run.folder}", "total_frames=512", "trust=true")
    assert done.returncode == 2
    assert (
        "env=Counting was a class of the process that started the run. Resume it there, or in Python"
        in done.stderr
    )
    with pytest.raises(UserError, match="it was a class of the process that trained it"):
        run.evaluate(1)


def test_a_function_that_makes_gymnasium_s_task_is_refused(tmp_path):
    def make(device="cpu"):
        return gymnasium.make("CartPole-v1")

    with pytest.raises(
        UserError, match=r"env: it makes .*, a Gymnasium environment\. Register it and write env=gym"
    ):
        hydrl.train(*SMALL_PPO, env=make, folder=tmp_path / "run")


def test_a_solved_run_says_how_to_go_on(tmp_path, capsys):
    words = [*CARTPOLE, "eval.reward_threshold=1", "eval.stop_when_solved=true"]
    run = hydrl.train(*words, folder=tmp_path / "run", total_frames=128)
    run.resume(total_frames=256)
    assert "to continue, set eval.stop_when_solved=false, as it was solved" in capsys.readouterr().out


def test_what_is_no_choice_is_refused():
    with pytest.raises(UserError, match="seed=<class 'int'>: not a group of components"):
        hydrl.train(seed=int)
    with pytest.raises(UserError, match=r"optim.lr=\{1\}: give a number"):
        hydrl.train(optim={"lr": {1}})


def test_ctrl_c_saves_and_returns_the_run(counting, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "Stop", partial(process.Stop, grace=HANGING))  # the batch in hand is ended
    counting.at = {150: lambda: signal.raise_signal(signal.SIGINT)}
    handler = signal.getsignal(signal.SIGINT)
    run = hydrl.train(*SMALL_PPO, env=counting, folder=tmp_path / "run", eval={"every_frames": 10_000})
    assert (run.summary["status"], run.summary["frames"]) == ("interrupted", 128)
    assert signal.getsignal(signal.SIGINT) is handler
    assert run.resume().summary["status"] == "finished"


def test_an_environment_that_fails_of_the_same_signal_costs_no_checkpoint(
    counting, tmp_path, capsys, monkeypatch
):
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(counting, "close", lambda self: 1 / 0)
        raise BrokenPipeError("its process has ended")

    counting.at = {150: fail}
    for limit in ("AGE", "SHARE"):  # a snapshot before every batch
        monkeypatch.setattr(checkpointer, limit, 0.0)
    run = hydrl.train(*SMALL_PPO, env=counting, folder=tmp_path / "run", eval={"every_frames": 10_000})
    assert "interrupted by the signal: BrokenPipeError: its process has ended\n" in capsys.readouterr().err
    assert (run.summary["status"], run.summary["frames"]) == ("interrupted", 64)
    assert archive.frames_of(archive.find(run.folder, "last")) == 64
    monkeypatch.undo()
    counting.at = {}
    assert run.resume().summary["frames"] == 256


def test_ctrl_c_before_the_first_batch_leaves_nothing(counting, tmp_path):
    counting.at = {1: lambda: signal.raise_signal(signal.SIGINT)}  # a random frame for the normaliser
    with pytest.raises(KeyboardInterrupt):
        hydrl.train(*SMALL_PPO, env=counting, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not TRAINING.lock.locked()


def test_a_run_in_a_thread_ends_where_it_is_asked_to(counting, tmp_path):
    began, done = threading.Event(), []
    counting.at = {200: began.set}
    words = [*SMALL, "total_frames=1_000_000", "compile=false", f"hydra.run.dir={tmp_path / 'run'}"]
    thread = threading.Thread(target=lambda: done.append(hydrl.train(*words, env=counting)))
    assert not hydrl.stop()
    thread.start()
    assert began.wait()
    with pytest.raises(UserError, match="another run is under way in this process"):
        hydrl.train(*CARTPOLE)
    assert hydrl.stop()
    thread.join(HANGING)
    assert done[0].summary["status"] == "interrupted"
    assert archive.frames_of(archive.find(tmp_path / "run", "last")) == done[0].summary["frames"]
    assert not hydrl.stop()


def test_workers_ask_for_the_main_thread(tmp_path):
    words, failed = [*CARTPOLE, "collector=multi_sync", "transforms=normalized", "init_stats_frames=64"], []

    def train() -> None:
        try:
            hydrl.train(*words, folder=tmp_path / "run")
        except UserError as error:
            failed.append(str(error))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(HANGING)
    assert failed == [
        "collector: workers are watched by a signal, which only the main thread receives. Write "
        "collector=single, or train from the main thread."
    ]


def test_a_task_that_leaves_python_ends_the_run_alone(counting, tmp_path):
    counting.at = {150: lambda: sys.exit(0)}
    with pytest.raises(RunError, match=r"ended the run by sys.exit\(0\)"):
        hydrl.train(*SMALL_PPO, env=counting, folder=tmp_path / "run")


def test_a_sweep_is_the_command_line_s(tmp_path, monkeypatch):
    commands = []

    class Process:
        def __init__(self, command, env, preexec_fn):
            assert "FORCE_COLOR" not in env
            commands.append(command)

        def wait(self):
            return 1

    monkeypatch.setattr(runs.subprocess, "Popen", Process)
    with pytest.raises(RunError, match="failed with exit code 1"):
        hydrl.sweep("env=cartpole", algo=["ppo", "dqn"], seed=[0, 1], folder=tmp_path)
    words = ["env=cartpole", "algo=ppo,dqn", "seed=0,1", f"hydra.sweep.dir={tmp_path}"]
    assert commands == [[sys.executable, str(runs.ROOT / "train.py"), "-m", *words]]
    for seeds in (np.arange(2), range(2), torch.arange(2)):
        with pytest.raises(RunError):
            hydrl.sweep(
                seed=seeds, total_frames=np.int64(64), actor={"num_cells": np.array([8, 8])}, folder="."
            )
        assert commands[-1][3:6] == ["seed=0,1", "total_frames=64", "actor={num_cells:[8,8]}"]
    with pytest.raises(UserError, match="the runs of a sweep are other processes"):
        hydrl.sweep(env=Counting)


# In train.py's place: is a sweep until it is asked to end.
SWEEP = """
import os, signal, sys
from pathlib import Path

place = Path(__file__).parent
signal.signal(signal.SIGTERM, lambda *_: ((place / "ended").touch(), sys.exit(143)))
(place / "pid").write_text(str(os.getpid()))
(place / "began").touch()
while True:
    signal.pause()
"""
SWEEPER = """
import sys
from pathlib import Path
from hydrl.api import runs

runs.ROOT = Path(sys.argv[1])
runs.sweep("algo=ppo", folder=runs.ROOT / "sweep")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal for it")
def test_a_sweep_ends_with_a_killed_parent(tmp_path):
    (tmp_path / "train.py").write_text(SWEEP)
    parent = subprocess.Popen([sys.executable, "-c", SWEEPER, str(tmp_path)], cwd=ROOT)
    try:
        wait_for(lambda: (tmp_path / "began").exists() or parent.poll() is not None)
    finally:
        parent.kill()
        parent.wait()
    child = int((tmp_path / "pid").read_text())
    try:
        wait_for(lambda: (tmp_path / "ended").exists())
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def wait_for(condition) -> None:
    """Only a hang takes so long, also where all cores have other work."""
    until = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_workers_have_no_class_of_this_process(tmp_path):
    words = ["collector=multi_sync", "transforms=normalized", "init_stats_frames=64"]
    with pytest.raises(UserError, match="env=Counting: workers do not know this class"):
        hydrl.train(*SMALL, *words, env=Counting, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_sweep_gives_its_runs(tmp_path):
    found = hydrl.sweep(*CARTPOLE, seed=[0, 1], folder=tmp_path / "sweep")
    assert [each.summary["seed"] for each in found] == [0, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1e-3, "0.001"),
        (np.float32(0.5), "0.5"),
        ("ppo", "ppo"),
        ("1", "'1'"),
        ("null", "'null'"),
        ("it's a = b", r"'it\'s a = b'"),
        ([64, 64], "[64,64]"),
        (np.array([64, 64]), "[64,64]"),
        (np.array(3), "3"),
        (np.bool_(True), "true"),
        (torch.tensor([0.5]), "[0.5]"),
        (range(2), "[0,1]"),
        ({"num_cells": np.array([8])}, "{num_cells:[8]}"),
        ({"mean": [1, None]}, "{mean:[1,null]}"),
    ],
)
def test_a_value_is_typed_as_hydra_reads_it(value, expected):
    assert to_override(value, "key") == expected


@pytest.mark.parametrize(
    "damage", [b"frames,x\n1,a\n", b"frames\n1,2\n", b"\xff\xfe\x00", b"frames\n" + b"9" * 200_000 + b"\n"]
)
def test_damaged_metrics_are_told_in_a_line(tmp_path, damage):
    (tmp_path / "config_resolved.yaml").write_text("{}")
    (tmp_path / "metrics.csv").write_bytes(damage)
    with pytest.raises(UserError, match=r"metrics\.csv cannot be read: ."):
        _ = runs.Run(tmp_path).metrics


@pytest.mark.parametrize("text", ["{}", "[]", "no", '{"algo": "ppo"}', '{"eval/episodes": 3, "eval/x": "y"}'])
def test_a_damaged_summary_is_shown_as_far_as_it_goes(tmp_path, text):
    (tmp_path / "config_resolved.yaml").write_text("{}")
    (tmp_path / "summary.json").write_text(text)
    run = runs.Run(tmp_path)
    assert ("?" in repr(run)) == ("which has not ended" not in repr(run)) == (text[:2] == '{"')
    assert str(tmp_path) in run._repr_html_()


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00", b"[1]", b"3", b"a: [", b"{env: 3}", b""])
def test_a_damaged_configuration_is_told_in_a_line(tmp_path, damage):
    (tmp_path / "config_resolved.yaml").write_bytes(damage)
    for read in (hydrl.load, lambda place: runs.Run(place).evaluate(1)):
        with pytest.raises(
            UserError, match=r"config_resolved\.yaml:? (cannot be read|is not valid)"
        ) as error:
            read(tmp_path)
        assert "\n" not in str(error.value)
