"""A search on a real PostgreSQL server, which two processes make the trials of; slowly."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.conftest import HANGING, start

psycopg = pytest.importorskip("psycopg")
TINY = ["algo=dqn", "env=cartpole", "total_frames=512", "eval.every_frames=256", "eval.episodes=2"]
TINY += ["eval.final_episodes=2", "minibatches.warmup_frames=128", "actor.num_cells=[16]", "compile=false"]
TINY += ["search=base", "optim.lr=interval(1e-3,9e-3)", "seeds=0", "jobs=1"]


class Server:
    """A PostgreSQL server of its own on this machine; it refuses to be root's."""

    def __init__(self, folder: Path) -> None:
        self.user: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        self.folder = folder
        if self.user:
            shutil.chown(folder, *self.user.values())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://tester@127.0.0.1:{self.port}/postgres"
        command = ["initdb", "-D", str(folder / "data"), "-U", "tester", "-A", "trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, **self.user)

    def begin(self) -> None:
        """Starts it, and waits until it answers."""
        command = ["postgres", "-D", str(self.folder / "data"), "-p", str(self.port), "-F", "-k", "", "-h"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder}
        self.process = subprocess.Popen([*command, "127.0.0.1"], **quiet, **self.user)
        deadline = time.monotonic() + HANGING
        while True:
            try:
                return psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self.process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def end(self) -> None:
        """Stops it, whoever is connected."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("needs a PostgreSQL server")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which another user may enter
        server = Server(Path(folder))
        server.begin()
        yield server
        server.end()


def searching(server: Server, out: Path, *words: str) -> subprocess.Popen[str]:
    storage = [f"storage={server.url}", f"out={out}"]
    return start(*TINY, *storage, *words, script="scripts/search.py")


@pytest.mark.slow
def test_two_processes_make_the_trials_of_one_search(server, tmp_path):
    both = [searching(server, tmp_path / name, "study=both", "trials=6") for name in ("one", "other")]
    printed = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    study = optuna.load_study(study_name="both", storage=server.url)
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert 6 <= len(study.trials) <= 7  # both may draw the last one
    assert len({trial.params["optim.lr"] for trial in study.trials}) == len(study.trials)
    assert sum("present" in trial.user_attrs for trial in study.trials) == 1
    made_by = {out.name: {path.name for path in out.glob("trial-*[0-9]")} for out in tmp_path.iterdir()}
    assert all(made_by.values())
    assert not made_by["one"] & made_by["other"]
    assert made_by["one"] | made_by["other"] == {f"trial-{number:04}" for number in range(len(study.trials))}


@pytest.mark.slow
def test_a_server_that_is_gone_ends_the_search_in_a_line_and_it_goes_on_once_it_is_back(server, tmp_path):
    words = ["study=gone", "trials=2", "total_frames=1_024"]
    first = searching(server, tmp_path / "out", *words)
    while not (tmp_path / "out/trial-0000/seed0/metrics.csv").exists():
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.1)
    server.end()
    printed = first.communicate()[0]
    assert first.returncode == 1, printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: storage={server.url}: ")
    assert line.endswith("; what the runs saved is whole, and the same command goes on")
    assert "Traceback" not in printed
    refused = searching(server, tmp_path / "out", *words)
    printed = refused.communicate()[0]
    assert refused.returncode == 2, printed
    assert printed.startswith(f"error: storage={server.url}: ")
    assert "refused" in printed.lower()
    server.begin()
    again = searching(server, tmp_path / "out", *words)
    printed = again.communicate()[0]
    assert again.returncode == 0, printed
    assert "best of 2 trials: " in printed
