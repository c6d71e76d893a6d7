"""Runs in processes of their own: they end as they should, whoever started them does."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hydrl.config import auto_values
from hydrl.errors import Interrupted
from hydrl.experiments import processes
from hydrl.experiments.processes import ProcessPool, run_concurrently
from tests.conftest import HANGING, ROOT

# Takes the place of train.py: it trains for ever, and saves once it is asked to end.
MEMBER = """
import os, signal, sys, time
from pathlib import Path

folder = Path(dict(word.partition("=")[::2] for word in sys.argv[1:])["hydra.run.dir"].strip("'"))

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another one kills
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
folder.mkdir()
(folder / "threads").write_text(os.environ["OMP_NUM_THREADS"])
(folder / "trains").touch()
while True:
    signal.pause()
"""
STARTER = """
import sys
from pathlib import Path
from hydrl.experiments import processes
from hydrl.experiments.processes import ProcessPool
processes.TRAIN_SCRIPT = Path(sys.argv[2])
with ProcessPool(2) as pool:
    run = pool.start([], Path(sys.argv[1]))
    print(run.process.pid, flush=True)
    run.process.wait()
"""


def wait_for(condition, seconds: float = HANGING) -> None:
    """Only a hang takes so long, also where all cores have other work."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def member(tmp_path, monkeypatch) -> Path:
    """``MEMBER``, which runs of this process then are."""
    monkeypatch.setattr(processes, "TRAIN_SCRIPT", tmp_path / "member.py")
    processes.TRAIN_SCRIPT.write_text(MEMBER)
    return processes.TRAIN_SCRIPT


def trains(folder: Path) -> bool:
    return (folder / "trains").exists()


def test_only_so_many_are_in_hand_and_each_begins_when_there_is_room():
    steps = []

    def work(name, length):
        for step in range(length):
            steps.append(f"{name}{step}")
            yield

    run_concurrently((work(name, length) for name, length in [("a", 1), ("b", 3), ("c", 2), ("d", 0)]), 2)
    assert steps == ["a0", "b0", "b1", "b2", "c0", "c1"]
    run_concurrently(iter(()), 1)


def test_each_run_tells_how_it_ended(tmp_path):
    with ProcessPool(2) as pool:
        refused = pool.start(["algo=dqn", "env=cartpole", "optim.lr=-1"], tmp_path / "refused")
        finished = pool.start(["algo=dqn", "env=cartpole", "debug=fast"], tmp_path / "it's, done")
        wait_for(lambda: refused.code is not None and finished.code is not None)
        assert (refused.code, refused.error[:12]) == (2, "optim.lr=-1:")
        assert finished.code == 0
    assert (tmp_path / "it's, done" / "summary.json").is_file()
    assert "2,048 frames" in (tmp_path / "it's, done.log").read_text()


@pytest.mark.parametrize("limit", [1, 2])
def test_runs_side_by_side_share_the_cores(tmp_path, limit, member, monkeypatch):
    monkeypatch.setattr(auto_values, "count_cores", lambda: 6)
    with ProcessPool(limit) as runs:
        run = runs.start([], tmp_path / "run")
        wait_for(lambda: trains(run.folder))
    assert (run.folder / "threads").read_text() == {1: "6", 2: "3"}[limit]


def test_a_stopped_run_saves_and_one_left_behind_does_too(tmp_path, member, capsys):
    with pytest.raises(Interrupted, match=str(int(signal.SIGHUP))), ProcessPool(2) as runs:  # noqa: PT012
        stopped, left = (runs.start([], tmp_path / name) for name in ("stopped", "left"))
        wait_for(lambda: trains(stopped.folder) and trains(left.folder))
        stopped.stop()
        stopped.stop()  # a second signal would have killed it
        assert stopped.process.wait() == 143
        signal.raise_signal(signal.SIGHUP)
    assert left.code == 143
    assert all((run.folder / "saved").exists() for run in (stopped, left))
    assert capsys.readouterr().out == "\nwaiting for 1 runs to save; another Ctrl-C kills them\n"
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal for it")
def test_a_run_ends_with_a_killed_parent(tmp_path, member):
    command = [sys.executable, "-c", STARTER, str(tmp_path / "run"), str(member)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = psutil.Process(int(parent.stdout.readline()))
    wait_for(lambda: trains(tmp_path / "run"))
    parent.kill()
    parent.wait()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert (tmp_path / "run" / "saved").exists()


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ProcessPool(2):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
