"""Runs with collector=pipelined repeat, and resume, to the last bit; the collector also works by turns."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from hydrl.errors import Interrupted, WorkerError
from hydrl.experience import pipelined
from hydrl.run.checkpoint import archive, checkpointer
from hydrl.training.metrics import Metrics
from hydrl.training.update import Update
from tests.conftest import (
    HANGING,
    SMALL,
    batches_digested,
    digest,
    killed,
    logged,
    saved,
    settings,
    start,
    typed,
)
from tests.fakes.by_turns import ByTurns
from tests.run.checkpoint.test_resume_exact import EXACT

PIPELINED = "collector=pipelined"
PARTS = ["actor", "loss", "optimizer", "buffer", "normaliser", "rng", "collector"]
BY_TURNS = {
    name: EXACT[name]
    for name in (
        "PPO, running statistics of observations and rewards",
        "PPO, episodes cut short at random",
        "DQN, a full memory",
        "R2D2",
        "SAC, a memory, pictures",
        "SAC, pictures read once",
        "QMIX",
        "MASAC",
        "MAPPO, groups of agents of PettingZoo's",
        "PPO, against its earlier policies",
        "PPO, a grid and a mission in words",
        "DQN, goals relabelled, a full memory",
        "DQN, pictures on disk, a full memory, several steps",
        "PPO, several choices in a dictionary",
        "own environment",
    )
} | {
    "recurrent PPO": [
        "algo=recurrent_ppo", "env=cartpole_masked", "collector.num_envs=4", "minibatches.sequence=16",
        "critic.num_cells=[16,16]", "minibatches.epochs=2",
    ],
    "Rainbow, noisy layers": [
        "algo=rainbow", "env=cartpole", "collector.num_envs=4", "minibatches.warmup_frames=64",
        "minibatches.updates=2", "layers@actor=noisy",
    ],
    "DDPG, noise that remembers": [
        "algo=ddpg", "env=pendulum", "exploration=ornstein_uhlenbeck", "collector.num_envs=2",
        "critic.num_cells=[16,16]", "minibatches.warmup_frames=64", "minibatches.updates=2",
        "collector.init_random_frames=96",
    ],
}  # fmt: skip
SLOW = ["PPO, episodes cut short at random", "SAC, pictures read once", "MASAC", "own environment"]
SLOW += ["DQN, pictures on disk, a full memory, several steps", "PPO, several choices in a dictionary"]
PACKAGES = {"env=pettingzoo": "mpe2", "env=self_play": "pettingzoo", "env=minigrid": "minigrid"}


def assert_same(one: Path, other: Path) -> None:
    """Two folders hold the same run, to the last bit."""
    parts = PARTS + ["frames"] * any((one / "checkpoints").glob("frames-*"))
    for part in parts:
        assert digest(saved(one, part)) == digest(saved(other, part)), part
    assert logged(one) == logged(other)
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
    for key in ("frames", "updates", "eval/return_mean", "best_eval/return_mean"):
        assert ours[key] == theirs[key], key


@pytest.fixture
def by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "CollectorProcess", ByTurns)


@pytest.mark.usefixtures("by_turns")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in BY_TURNS]
)
def test_a_resumed_run_is_the_one_that_never_stopped(name, run, batches, capsys, tmp_path):
    words = [*SMALL, "eval.max_steps=8", *BY_TURNS[name], PIPELINED]
    for family, package in PACKAGES.items():
        if family in words:
            pytest.importorskip(package)
    whole = run(*words, folder="whole")
    unbroken = batches.copy()
    batches.clear()
    assert killed(whole, tmp_path / "halves") == 128
    torch.rand(7)  # nothing of this process may help
    capsys.readouterr()
    halves = run(*words, "resume=auto", folder="halves")
    assert "everything continues exactly" in " ".join(capsys.readouterr().out.split())
    assert len(set(unbroken)) == 4
    assert batches == unbroken[2:]
    assert_same(halves, whole)


@pytest.mark.parametrize(
    "name",
    [
        "PPO, running statistics of observations and rewards",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("R2D2", "QMIX", "recurrent PPO")),
        pytest.param("DQN, pictures on disk, a full memory, several steps", marks=pytest.mark.slow),
        pytest.param("PPO, against its earlier policies", marks=pytest.mark.slow),
        pytest.param("Rainbow, noisy layers", marks=pytest.mark.slow),
    ],
)
def test_a_process_collects_what_the_same_code_does_by_turns(name, run, batches, monkeypatch, tmp_path):
    words = [*SMALL, *BY_TURNS[name], PIPELINED]
    of_process = run(*words, folder="process")
    unbroken = batches.copy()
    assert len(set(unbroken)) == 4
    batches.clear()
    killed(of_process, tmp_path / "halves")
    halves = run(*words, "resume=auto", folder="halves")  # in another process
    assert batches == unbroken[2:]
    assert_same(halves, of_process)
    batches.clear()
    monkeypatch.setattr(pipelined, "CollectorProcess", ByTurns)
    by_turns = run(*words, folder="turns")
    assert batches == unbroken
    assert_same(by_turns, of_process)


def frames_saved(folder: Path) -> int:
    """Frames of the newest checkpoint; 0 without one."""
    return max(map(archive.frames_of, archive.archives(folder)), default=0)


KILLED = {
    "PPO": BY_TURNS["PPO, running statistics of observations and rewards"],
    "recurrent PPO": BY_TURNS["recurrent PPO"],
    "DQN": BY_TURNS["DQN, a full memory"],
    "Rainbow": BY_TURNS["Rainbow, noisy layers"],
    "SAC, pictures": BY_TURNS["SAC, a memory, pictures"],
    "MAPPO": BY_TURNS["MAPPO, groups of agents of PettingZoo's"],
    "self-play": BY_TURNS["PPO, against its earlier policies"],
    "DDPG": BY_TURNS["DDPG, noise that remembers"],
}


@pytest.mark.parametrize(
    ("name", "kills"),
    [("DQN", 2), *(pytest.param(name, 20, marks=[pytest.mark.slow]) for name in KILLED)],
)
@pytest.mark.timeout(6_000)
def test_killed_at_random_moments_and_resumed_it_is_the_run_that_nobody_killed(name, kills, tmp_path):
    """Episodes end inside batches, and a checkpoint is written after each batch."""
    for family, package in PACKAGES.items():
        if family in KILLED[name]:
            pytest.importorskip(package)
    total = 64 * 10 * kills
    words = [*SMALL, *KILLED[name], PIPELINED, f"total_frames={total}", "log_every_frames=256"]
    words += ["checkpoint_every_frames=64", f"eval.every_frames={total // 2}"]
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    draw, moments = random.Random(name), list[str]()
    for _ in range(kills):
        target, until = frames_saved(folder) + 64 * draw.randint(1, 4), time.monotonic() + HANGING
        process = start(*words, "resume=auto", f"hydra.run.dir={folder}", stderr=subprocess.DEVNULL)
        while frames_saved(folder) < target:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.communicate()
        assert process.returncode == -9
        saving = [*(folder / "checkpoints").glob(".*")]
        moments.append(f"{frames_saved(folder)}{', while saving' if saving else ''}")
    print(f"\n{name} killed with checkpoints at {'; '.join(moments)}")
    process = start(*words, "resume=auto", f"hydra.run.dir={folder}")
    output = process.communicate()[0]
    unbroken = typed(*words, f"hydra.run.dir={whole}")
    assert (process.returncode, unbroken.returncode) == (0, 0), output + unbroken.stderr
    assert "anew" not in output + unbroken.stdout
    assert_same(folder, whole)


DQN = [*SMALL, *BY_TURNS["DQN, a full memory"], PIPELINED]


@pytest.fixture(scope="module")
def whole_dqn(tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of a run that was never stopped, and digests of its batches."""
    from train import train

    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelined, "CollectorProcess", ByTurns)
        batches = batches_digested(patch)
        train(settings(*DQN, run_dir=folder))
    return folder, batches


def interrupted(run, capsys) -> str:
    """What a run in the folder ``stopped`` printed, which is interrupted."""
    with pytest.raises(Interrupted):
        run(*DQN, folder="stopped")
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("by_turns")
@pytest.mark.parametrize("update", [9, 12, 20])
def test_a_batch_that_is_broken_off_has_not_begun(update, whole_dqn, run, monkeypatch, capsys):
    count = []

    def broken(self, *args, call=Update.__call__):
        count.append(None)
        if len(count) == update:
            raise Interrupted(signal.SIGTERM, in_batch=True)  # as the timer of a stop does
        return call(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "AGE", 0.0)
        patch.setattr(checkpointer, "SHARE", 0)
        patch.setattr(Update, "__call__", broken)
        text = interrupted(run, capsys)
    assert "a resumed run learns from the batch again" in text
    assert_same(run(*DQN, "resume=auto", folder="stopped"), whole_dqn[0])


@pytest.mark.usefixtures("by_turns")
def test_a_stop_does_not_wait_for_a_slow_batch(whole_dqn, run, monkeypatch, capsys, tmp_path):
    """The checkpoint is then of the moment before the last batch, and resumes exactly."""
    batches = []

    def stop(self, *args, learned=Metrics.learned):
        batches.append(None)
        learned(self, *args)
        if len(batches) == 3:
            raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "AGE", 0.0)
        patch.setattr(checkpointer, "SHARE", 0)
        patch.setattr(Metrics, "learned", stop)
        patch.setattr(ByTurns, "poll", lambda self, seconds: seconds != checkpointer.GRACE)
        interrupted(run, capsys)
    assert archive.frames_of(archive.find(tmp_path / "stopped", "last")) == 128
    assert_same(run(*DQN, "resume=auto", folder="stopped"), whole_dqn[0])


def fail_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the collecting process fail in a batch."""
    collect, batches = pipelined.CollectorServer.collect, []

    def failing(server, weights):
        batches.append(None)
        if len(batches) == number:
            raise OSError("the simulator is gone")
        return collect(server, weights)

    monkeypatch.setattr(pipelined.CollectorServer, "collect", failing)


@pytest.mark.usefixtures("by_turns")
@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_run_whose_process_failed_resumes_from_before_that_batch(
    number, whole_dqn, run, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "AGE", 0.0)
        patch.setattr(checkpointer, "SHARE", 0)
        fail_at(number, patch)
        with pytest.raises(WorkerError, match="the simulator is gone"):
            run(*DQN, folder="stopped")
    assert json.loads((tmp_path / "stopped" / "summary.json").read_text())["status"] == "failed"
    assert_same(run(*DQN, "resume=auto", folder="stopped"), whole_dqn[0])


@pytest.mark.usefixtures("by_turns")
def test_a_failure_after_the_last_batch_costs_a_longer_run_its_episodes_alone(run, monkeypatch, capsys):
    fail_at(5, monkeypatch)
    folder = run(*DQN)
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    capsys.readouterr()
    run(*DQN, "total_frames=320", "resume=auto")
    text = " ".join(capsys.readouterr().out.split())
    assert "episodes start anew: the batch after it could not be collected" in text
    assert json.loads((folder / "summary.json").read_text())["frames"] == 320


@pytest.mark.usefixtures("by_turns")
def test_a_longer_run_is_the_one_that_was_as_long_from_the_start(run, batches, whole_dqn):
    """The last checkpoint has the batch that a longer run learns from next."""
    run(*DQN, "total_frames=128", "anneal_frames=256", folder="longer")
    longer = run(*DQN, "anneal_frames=256", "resume=auto", folder="longer")
    whole, unbroken = whole_dqn
    assert batches == unbroken
    for part in PARTS:
        assert digest(saved(longer, part)) == digest(saved(whole, part)), part


def test_a_run_with_overlap_resumes_with_new_episodes(run, monkeypatch, capsys):
    """As its folder has it: one asynchronous worker."""
    overlap = ["collector=multi_async", "collector.num_workers=1"]
    words = [word for word in DQN if word != PIPELINED]
    folder = run(*words, *overlap, "total_frames=128", "anneal_frames=256")
    capsys.readouterr()
    monkeypatch.setattr(pipelined, "CollectorProcess", ByTurns)
    run(*DQN, "resume=auto")
    text = " ".join(capsys.readouterr().out.split())
    assert "resumed after 128 frames" in text
    assert "episodes start anew: they are in processes of their own" in text
    assert json.loads((folder / "summary.json").read_text())["frames"] == 256
