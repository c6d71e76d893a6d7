"""Sweeps on a real Ray cluster, Ctrl-C, a machine that is lost, going on; and as jobs of submitit; slowly."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANGING, start
from tests.experiments.test_sweep import TINY, rows
from tests.fakes.ray_cluster import two_nodes

LINE = [*TINY, "hydra/launcher=ray_processes", "total_frames=20_480", "eval.every_frames=20_480"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the processes that a test starts; no token of another cluster is theirs."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def training(sweep: Path, seeds: list[int], process: subprocess.Popen[str]) -> None:
    """Waits until so many members have saved."""
    places = [sweep / f"ppo-cartpole-seed{seed}" / "checkpoints" for seed in seeds]
    while not all(list(each.glob("*")) for each in places):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_sweep_on_ray_which_goes_on_by_the_same_names(
    signum: int, code: int, tmp_path: Path, home: Path
):
    words = [*LINE, "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    begun = start(*words, "seed=0,1,2", start_new_session=True)
    training(tmp_path / "sweep", [0, 1], begun)
    ours = psutil.Process(begun.pid).children(recursive=True)
    os.killpg(begun.pid, signum)  # as a terminal, or a job's time limit, does
    printed = begun.communicate()[0]
    assert begun.returncode == code, printed
    assert "starting Ray on this machine\nthe cluster has room for 2 runs at a time\n" in printed
    assert [row[1:3] for row in rows(printed)] == [["seed=0", "interrupted"], ["seed=1", "interrupted"]]
    assert "Traceback" not in printed
    assert len(ours) > 4
    assert not psutil.wait_procs(ours, timeout=HANGING)[1]
    assert not (home / ".ray").exists()

    again = start(*words, "seed=0,1,-1", "resume=auto")
    printed = again.communicate()[0]
    assert again.returncode == 2, printed
    assert [row[2] for row in rows(printed)] == ["finished", "finished", "refused"]
    for seed in (0, 1):
        log = (tmp_path / "sweep" / f"ppo-cartpole-seed{seed}.log").read_text()
        assert "resumed after" in log


@pytest.mark.slow
def test_a_machine_that_is_lost_is_named_and_its_members_go_on_elsewhere(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    words = [*LINE, "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    with two_nodes() as nodes:
        words.append(f"hydra.launcher.address={nodes.address}")
        begun = start(*words)
        training(tmp_path / "sweep", [0, 1], begun)
        nodes.lose()
        printed = begun.communicate()[0]
        assert begun.returncode == 1, printed
        assert f"joining the Ray cluster at {nodes.address}\nthe cluster has room for 2 runs" in printed
        assert sorted(row[2] for row in rows(printed)) == ["failed", "finished"]
        (lost,) = [row for row in rows(printed) if row[2] == "failed"]
        assert re.fullmatch(r"node \w{8} at [\d.]+ is gone", lost[-1])
        assert "state-dump" not in printed
        again = start(*words, "resume=auto")
        printed = again.communicate()[0]
        assert again.returncode == 0, printed
        assert [row[2] for row in rows(printed)] == ["finished", "finished"]


@pytest.mark.slow
def test_jobs_of_submitit_finish_are_passed_over_and_a_refused_one_is_an_error(tmp_path: Path):
    pytest.importorskip("submitit")
    words = [*TINY, "hydra/launcher=submitit_local", "resume=auto", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    words += ["total_frames=1_024", "eval.every_frames=1_024"]
    for seeds, code in (("0,1", 0), ("0,1,-1", 1)):
        begun = start(*words, f"seed={seeds}")
        printed = begun.communicate()[0]
        assert begun.returncode == code, printed
    assert "submitit.core.utils." in printed  # its traceback, with what the job said at the end
    assert printed.strip().endswith("error: seed=-1: should be greater than or equal to 0")
    logs = [each.read_text() for each in (tmp_path / "sweep" / ".submitit").glob("*/*_log.*")]
    assert sum("is finished after 1,024 frames" in each for each in logs) == 2
    assert sum("error: seed=-1: should be greater than or equal to 0" in each for each in logs) == 1
    found = [json.loads(each.read_text()) for each in (tmp_path / "sweep").glob("*/summary.json")]
    assert [each["frames"] for each in found] == [1_024, 1_024]
