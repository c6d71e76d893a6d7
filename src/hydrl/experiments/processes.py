"""Runs of ``train.py`` in processes of their own, several at a time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Self

from hydrl.config import ROOT, auto_values
from hydrl.config.overrides import quoted
from hydrl.errors import Interrupted
from hydrl.experience.forkserver import END_WITH_PARENT

TRAIN_SCRIPT = ROOT / "train.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_REPEAT_SECONDS = 0.5  # within this time a repeated signal is the same one, sent to the process group
STATUS_BY_CODE = {0: "finished", 2: "refused", 3: "diverged", 143: "interrupted", -15: "interrupted"}


class TrainingProcess:
    """A process of ``train.py``.

    Args:
        arguments: options and overrides of ``train.py``.
        folder: the run folder.
        cores: number of threads it uses.
        shown: prints its output here, and only errors and warnings to ``FOLDER.log``; else all goes there.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, cores: int, shown: bool = False) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.stopped = False
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAIN_SCRIPT), *arguments, f"hydra.run.dir={quoted(folder)}"],
                env=os.environ | {"OMP_NUM_THREADS": str(cores)},
                stdin=subprocess.DEVNULL,
                stdout=None if shown else log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is handed on once, by who started the run
                preexec_fn=END_WITH_PARENT,
            )

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal that killed it; ``None`` while it runs."""
        return self.process.poll()

    @property
    def status(self) -> str:
        """How it ended: finished, refused, diverged, interrupted or failed."""
        return STATUS_BY_CODE.get(self.code or 0, "failed")

    @property
    def error(self) -> str:
        """Why it failed: the last ``error:`` line of its log, or else the last line."""
        if self.code and self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it printed nothing"])[-1]

    def wait(self) -> None:
        """Waits until it has ended."""
        self.process.wait()

    def stop(self) -> None:
        """Lets it save and end; repeated calls do nothing, for a second signal would kill it."""
        if self.code is None and not self.stopped:
            self.stopped = True
            self.process.terminate()


class ProcessPool:
    """Context manager of concurrent runs; on exit those still running save and end.

    SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in the block. A second one ends this process at once and,
    on Linux, its runs.

    Args:
        limit: number of runs that share the cores.
    """

    def __init__(self, limit: int) -> None:
        self.started: list[TrainingProcess] = []
        self.limit = limit
        self.cores = max(1, auto_values.count_cores() // limit)  # of each

    def __enter__(self) -> Self:
        """Handles the signals, except ignored ones (SIGHUP under nohup)."""
        handled = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
        self.previous = {signum: signal.signal(signum, self.interrupt) for signum in handled}
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the runs and restores the signals' handlers."""
        running = [training for training in self.started if training.code is None]
        for training in running:
            training.stop()
        if running:
            print(f"\nwaiting for {len(running)} runs to save; another Ctrl-C kills them", flush=True)
            time.sleep(SIGNAL_REPEAT_SECONDS)
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)
        for training in running:
            training.wait()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler."""
        for repeated in self.previous:
            signal.signal(repeated, signal.SIG_IGN)
        raise Interrupted(signum)

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> TrainingProcess:
        """Starts a run, see :class:`TrainingProcess`."""
        self.started.append(TrainingProcess(arguments, folder, self.cores, shown))
        return self.started[-1]


def run_concurrently(jobs: Iterable[Iterator[None]], limit: int) -> None:
    """Steps up to ``limit`` generators in turn until all have ended.

    Args:
        jobs: generators; each starts a run at its first step and yields while that runs.
        limit: generators at a time.
    """
    jobs, active = iter(jobs), list[Iterator[None]]()
    while active := [*active, *islice(jobs, limit - len(active))]:
        active = [job for job in active if next(job, "ended") is None]
        time.sleep(0.2)
