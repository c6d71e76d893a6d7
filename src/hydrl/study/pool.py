"""Runs of train.py in processes of their own, several side by side: a sweep's, a search's, a table's."""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from hydrl.config import CONFIGS
from hydrl.config.overrides import quoted
from hydrl.errors import Interrupted

TRAIN = CONFIGS.parent / "train.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME = 0.5  # seconds within which a signal that comes again is the same one, sent to the whole group
STATUS = {0: "finished", 2: "refused", 3: "diverged", 143: "interrupted", -15: "interrupted"}  # by exit code
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
LIBC = ctypes.CDLL(None)  # looked up before any fork, where that is safe


def end_with_parent() -> None:
    """In a new process: SIGTERM when the one that started it is gone, even by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Training:
    """A run that was started.

    Args:
        arguments: of train.py, options and overrides.
        folder: the run folder.
        shown: the run prints where this process does, but errors and warnings to ``FOLDER.log``; else all
            it prints goes there.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.stopped = False
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAIN), *arguments, f"hydra.run.dir={quoted(folder)}"],
                stdin=subprocess.DEVNULL,
                stdout=None if shown else log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is handed on once, by who started the run
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )

    @property
    def code(self) -> int | None:
        """The exit code once it has ended; minus the signal that killed it."""
        return self.process.poll()

    @property
    def status(self) -> str:
        """How it ended, in a word."""
        return STATUS.get(self.code or 0, "failed")

    @property
    def error(self) -> str:
        """Why it failed: the last line that tells an error, or the last line at all."""
        if self.code and self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it printed nothing"])[-1]

    def stop(self) -> None:
        """Lets it save and end; asked again it goes on ending, where a second signal would kill it."""
        if self.code is None and not self.stopped:
            self.stopped = True
            self.process.terminate()


class Trainings:
    """Up to ``limit`` runs at a time. When the block is left, for whatever reason, the rest save and end.

    SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in the block. A second one ends this process at once, and
    with it, on Linux, what still runs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running: list[Training] = []

    def __enter__(self) -> Self:
        """Takes the signals, but those that are ignored, as nohup has it of SIGHUP."""
        taken = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        self.previous = {each: signal.signal(each, self.interrupt) for each in taken}
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs, and gives the signals back."""
        for each in self.running:
            each.stop()
        if self.running:
            print(f"\nwaits for {len(self.running)} to save and end; another Ctrl-C kills", flush=True)
            time.sleep(SAME)
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)
        for each in self.running:
            each.process.wait()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        for each in self.previous:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    @property
    def room(self) -> bool:
        """Whether one more may be started."""
        return len(self.running) < self.limit

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> Training:
        """Starts a run; see :class:`Training`."""
        training = Training(arguments, folder, shown)
        self.running.append(training)
        return training

    def wait(self, seconds: float = 0.2) -> list[Training]:
        """Waits a moment; the runs that have ended since it was last called."""
        time.sleep(seconds)
        ended = [each for each in self.running if each.code is not None]
        self.running = [each for each in self.running if each not in ended]
        return ended

    def each(self, runs: Iterable[Training]) -> Iterator[Training]:
        """Goes through runs that start as they are asked for, as many as there is room for; as they end."""
        runs, more = iter(runs), True
        while more or self.running:
            while more and self.room:
                more = next(runs, None) is not None
            yield from self.wait()
