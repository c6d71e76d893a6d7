"""Runs of train.py in processes of their own, several side by side: a sweep's, a search's, a table's."""

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

TRAIN = ROOT / "train.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME = 0.5  # seconds within which a signal that comes again is the same one, sent to the whole group
STATUS = {0: "finished", 2: "refused", 3: "diverged", 143: "interrupted", -15: "interrupted"}  # by exit code


class Training:
    """A run that was started.

    Args:
        arguments: of train.py, options and overrides.
        folder: the run folder.
        cores: it may use.
        shown: the run prints where this process does, but errors and warnings to ``FOLDER.log``; else all
            it prints goes there.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, cores: int, shown: bool = False) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.stopped = False
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAIN), *arguments, f"hydra.run.dir={quoted(folder)}"],
                env=os.environ | {"OMP_NUM_THREADS": str(cores)},
                stdin=subprocess.DEVNULL,
                stdout=None if shown else log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is handed on once, by who started the run
                preexec_fn=END_WITH_PARENT,
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
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it printed nothing"])[-1]

    def wait(self) -> None:
        """Waits until it has ended."""
        self.process.wait()

    def stop(self) -> None:
        """Lets it save and end; asked again it goes on ending, where a second signal would kill it."""
        if self.code is None and not self.stopped:
            self.stopped = True
            self.process.terminate()


class Trainings:
    """Runs side by side. When the block is left, for whatever reason, those that still run save and end.

    SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in the block. A second one ends this process at once, and
    with it, on Linux, what still runs.

    Args:
        limit: so many share the cores.
    """

    def __init__(self, limit: int) -> None:
        self.started: list[Training] = []
        self.limit = limit
        self.cores = max(1, auto_values.cores() // limit)  # of each

    def __enter__(self) -> Self:
        """Takes the signals, but those that are ignored, as nohup has it of SIGHUP."""
        taken = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        self.previous = {each: signal.signal(each, self.interrupt) for each in taken}
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs, and gives the signals back."""
        running = [each for each in self.started if each.code is None]
        for each in running:
            each.stop()
        if running:
            print(f"\nwaits for {len(running)} to save and end; another Ctrl-C kills", flush=True)
            time.sleep(SAME)
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)
        for each in running:
            each.wait()

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        for each in self.previous:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> Training:
        """Starts a run; see :class:`Training`."""
        self.started.append(Training(arguments, folder, self.cores, shown))
        return self.started[-1]


def side_by_side(works: Iterable[Iterator[None]], limit: int) -> None:
    """Goes on with up to ``limit`` works in turn until all have ended.

    Args:
        works: generators, asked for as there is room; each starts a run at its first step and yields while
            that goes on.
        limit: so many are in hand at a time.
    """
    works, in_hand = iter(works), list[Iterator[None]]()
    while in_hand := [*in_hand, *islice(works, limit - len(in_hand))]:
        in_hand = [each for each in in_hand if next(each, "ended") is None]
        time.sleep(0.2)
