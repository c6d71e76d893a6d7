"""What was counted was done: a run that was broken off at any point in a batch goes on from before it."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from torchrl.data import ReplayBuffer
from torchrl.envs import TransformedEnv

import hydrl.training
from hydrl.errors import Interrupted
from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.worker_collectors import WorkerWatchdog
from hydrl.run.checkpoint import archive, checkpointer
from hydrl.run.logging.run_logger import RunLogger
from hydrl.training.evaluator import PolicyEvaluator, SeedStream
from hydrl.training.metrics import Metrics
from hydrl.training.update import Update
from tests.conftest import SMALL, digest, logged, saved, settings

TASK = ["env=gym", "env.id=tests.fakes.envs:PendulumIn-v0", "+env.unit=2.0", "+env.max_episode_steps=20"]
FULL = "buffer.storage.max_size=80"
SAC = ["algo=sac", "env=pendulum", "collector.num_envs=2", "critic.num_cells=[16,16]", FULL]
SAC += ["minibatches.warmup_frames=64", "minibatches.updates=8", "collector.init_random_frames=64"]
WHOLE_BATCHES = [*SMALL, "critic.num_cells=[16,16]", "minibatches.epochs=2"]
RUNS = {
    "PPO, running statistics": [*WHOLE_BATCHES, "algo=ppo", "env=inverted_double_pendulum"],
    "DQN, by priorities, a full memory": [
        *SMALL, "algo=dqn", "env=cartpole", "collector.num_envs=4", "buffer=prioritized", FULL,
        "minibatches.draw=minibatch", "minibatches.warmup_frames=64", "minibatches.updates=8",
    ],
    "DQN, pictures on disk, a full memory, several steps": [
        *SMALL, "algo=dqn", "env=gym", "env.id=tests.fakes.pixel_envs:Dot-v0",
        "+env.channels=null", "buffer=memmap", FULL,
        "+env.wrappers.stack._target_=gymnasium.wrappers.FrameStackObservation", "collector.num_envs=4",
        "+env.wrappers.stack.stack_size=4", "minibatches.warmup_frames=64", "minibatches.updates=4",
        "minibatches.n_steps=3",
    ],
    "SAC, a full memory": [*SMALL, *SAC],
    "a decision transformer": [
        *(each for each in SMALL if "num_cells" not in each), "actor.width=16", "actor.layers=1",
        "algo=decision_transformer", *TASK, "minibatches.size=40", "minibatches.sequence=5",
        "collector.frames_per_batch=640", "total_frames=2560", "checkpoint_every_frames=1280",
        "eval.every_frames=1280", "log_every_frames=640",
    ],
    "GAIL": [*WHOLE_BATCHES, "algo=gail", *TASK, "collector.num_envs=2"],
    "MAPPO": [
        *WHOLE_BATCHES, "algo=mappo", "env=custom", "env._target_=tests.fakes.envs.CountingTeam",
        "collector.num_envs=4",
    ],
    "PPO, a memory": [
        *WHOLE_BATCHES, "algo=recurrent_ppo", "env=cartpole_masked", "collector.num_envs=4",
        "minibatches.sequence=16",
    ],
}  # fmt: skip
PARTS = ["actor", "loss", "optimizer", "buffer", "normaliser", "rng", "collector", "minibatches", "update"]
FAST = {"PPO, running statistics": 2, "DQN, by priorities, a full memory": 2, "a decision transformer": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A data set for those that learn from one."""
    from train import train

    folder = tmp_path_factory.mktemp("data") / "run"
    train(settings(*SMALL, *[each for each in SAC if each != FULL], *TASK, run_dir=folder))
    return ["data=replay_buffer", f"data.path={folder}"]


class Points:
    """Counts where a batch may be broken off, and breaks it off at one.

    They are before and after each step of the environment, each row written, each update and all that
    follows them in the loop.
    """

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None = None) -> None:
        self.at, self.count, self.collecting, self.in_batch = at, 0, False, False
        self.begun: list[int] = []  # points before each batch
        rollout = CheckedCollector.rollout

        def collect(collector, *args, **kwargs):
            self.collecting = self.in_batch = True
            try:
                return rollout(collector, *args, **kwargs)
            finally:
                self.collecting = False

        patch.setattr(CheckedCollector, "rollout", collect)
        only = lambda: self.collecting  # noqa: E731 - not those of an evaluation
        self.around(patch, TransformedEnv, "step_and_maybe_reset", only)
        for owner, name in ((ReplayBuffer, "extend"), (Update, "__call__"), (Metrics, "learned")):
            self.around(patch, owner, name)
        self.around(patch, hydrl.training, "anneal")
        self.around(patch, CheckedCollector, "publish", lambda: self.in_batch)
        self.around(patch, RunLogger, "write_row", lambda: self.in_batch)
        save = checkpointer.Checkpointer.snapshot_if_old

        def between(*args):
            self.in_batch = False
            self.begun.append(self.count)
            return save(*args)

        patch.setattr(checkpointer.Checkpointer, "snapshot_if_old", between)

    def around(self, patch, owner, name: str, counts: Callable[[], bool] = lambda: True) -> None:
        real = getattr(owner, name)

        def call(*args, **kwargs):
            if counted := counts():
                self.reach()
            result = real(*args, **kwargs)
            if counted:
                self.reach()
            return result

        patch.setattr(owner, name, call)

    def reach(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Interrupted(signal.SIGTERM, in_batch=True)  # as the timer of a stop does


def breaks_off_and_goes_on(name: str, run, monkeypatch, data: list[str], points: int, batch: int = 2) -> None:
    """Compares runs broken off at points of a batch, and resumed, with the one that was not."""
    words = [*RUNS[name], *(data if name in ("GAIL", "a decision transformer") else [])]
    with monkeypatch.context() as patch:
        counted = Points(patch)
        whole = run(*words, folder="whole")
    summary = json.loads((whole / "summary.json").read_text())
    frames = summary["frames"] // 4
    first, end = counted.begun[batch], counted.begun[batch + 1]
    assert end - first >= 30
    expected = {part: digest(saved(whole, part)) for part in PARTS if holds(whole, part)}
    for k in range(points):
        at, folder = first + 1 + (end - first - 1) * (2 * k + 1) // (2 * points), f"broken-{k}"
        with monkeypatch.context() as patch:
            patch.setattr(checkpointer, "AGE", 0.0)
            patch.setattr(checkpointer, "SHARE", 0)
            Points(patch, at)
            with pytest.raises(Interrupted):
                run(*words, folder=folder)
        stopped = whole.parent / folder
        kept = archive.verify(archive.find(stopped, "last"), with_rows=True)
        told = json.loads((stopped / "summary.json").read_text())
        assert kept["frames"] in (batch * frames, (batch + 1) * frames), at
        assert [told["frames"], told["updates"]] == [kept["frames"], kept["updates"]], at
        assert told["resumed_at_frames"] == []
        run(*words, "resume=auto", folder=folder)
        assert logged(stopped) == logged(whole), at
        again = json.loads((stopped / "summary.json").read_text())
        for key in ("frames", "updates", "eval/return_mean", "best_eval/return_mean"):
            assert again[key] == summary[key], (key, at)
        for part, value in expected.items():
            assert digest(saved(stopped, part)) == value, (part, at)


def holds(folder: Path, part: str) -> bool:
    """Whether a run has a part."""
    try:
        return saved(folder, part) is not None
    except Exception:
        return False


@pytest.mark.parametrize("name", FAST)
def test_a_batch_that_is_broken_off_has_not_begun(name, run, monkeypatch, data):
    breaks_off_and_goes_on(name, run, monkeypatch, data, FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_wherever_a_batch_is_broken_off_it_has_not_begun(name, run, monkeypatch, data):
    breaks_off_and_goes_on(name, run, monkeypatch, data, 30)


def test_the_first_batch_of_a_run_has_not_begun_either(run, monkeypatch, data):
    breaks_off_and_goes_on("SAC, a full memory", run, monkeypatch, data, 1, batch=0)


def test_short_batches_are_gone_back_over_by_the_age_of_the_snapshot(run, monkeypatch):
    """Of batches that take no second there is one at the first, here; it has rows overwritten since."""
    words = RUNS["DQN, by priorities, a full memory"]
    whole = run(*words, folder="whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "AGE", 3_600.0)
        patch.setattr(checkpointer.Checkpointer, "save", lambda self: None)
        Points(patch, 200)
        with pytest.raises(Interrupted):
            run(*words, folder="stopped")
    stopped = whole.parent / "stopped"
    assert archive.verify(archive.find(stopped, "last"), with_rows=True)["frames"] == 0
    run(*words, "resume=auto", folder="stopped")
    assert logged(stopped) == logged(whole)
    assert digest(saved(stopped, "buffer")) == digest(saved(whole, "buffer"))


def test_a_stop_while_a_checkpoint_is_loaded_leaves_it(run, monkeypatch):
    words = RUNS["SAC, a full memory"]
    whole = run(*words, folder="whole")
    folder = run(*words, "total_frames=128", "anneal_frames=256", folder="halves")

    def broken(*_, **__):
        raise Interrupted(signal.SIGTERM, in_batch=True)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer.Checkpointer, "restore", broken)
        with pytest.raises(Interrupted):
            run(*words, "resume=auto", folder="halves")
    assert archive.verify(archive.find(folder, "last"), with_rows=True)["frames"] == 128
    run(*words, "resume=auto", folder="halves")
    assert logged(folder) == logged(whole)


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_stop_in_the_final_evaluation_says_that_it_is_played_again(run, monkeypatch, capsys, in_batch):
    words = RUNS["PPO, running statistics"]
    play = PolicyEvaluator.play

    def broken(evaluator, frames, episodes, seed_stream, parts=None):
        if seed_stream == SeedStream.FINAL:
            raise Interrupted(signal.SIGINT, in_batch=in_batch)
        return play(evaluator, frames, episodes, seed_stream, parts)

    with monkeypatch.context() as patch:
        patch.setattr(PolicyEvaluator, "play", broken)
        with pytest.raises(Interrupted):
            run(*words, folder="stopped")
    said = capsys.readouterr().out
    assert "interrupted before the final evaluation ended; a resumed run evaluates again" in said
    assert "in a batch" not in said
    folder = run(*words, "resume=auto", folder="stopped")
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_workers_collect_a_batch_again_that_is_broken_off(run, monkeypatch, capsys):
    """The stop comes while the weights are sent, when all has been learned from the batch."""
    words = [
        *RUNS["PPO, running statistics"],
        "env=cartpole",
        "transforms=normalized",
        "init_stats_frames=200",
    ]
    words += ["collector=multi_sync", "collector.num_envs=4", "collector.num_workers=1"]
    words += ["checkpoint_every_frames=64"]
    half = run(*words, "total_frames=128", "anneal_frames=256", folder="half")
    sent = []

    def publish(self, *args, send=WorkerWatchdog.update_policy_weights_, **kwargs):
        sent.append(None)
        if len(sent) == 3:
            raise Interrupted(signal.SIGTERM)
        return send(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "AGE", 0.0)
        patch.setattr(checkpointer, "SHARE", 0)
        patch.setattr(WorkerWatchdog, "update_policy_weights_", publish)
        with pytest.raises(Interrupted):
            run(*words, folder="stopped")
    assert "learns from the batch again" in capsys.readouterr().out.replace("\n", " ")
    stopped = half.parent / "stopped"
    told = json.loads((stopped / "summary.json").read_text())
    assert told["frames"] == 128
    for part in ("actor", "loss", "optimizer"):
        assert digest(saved(stopped, part)) == digest(saved(half, part)), part
    run(*words, "resume=auto", folder="stopped")
    ended = json.loads((stopped / "summary.json").read_text())
    assert (ended["frames"], ended["updates"]) == (256, 2 * told["updates"])
