"""The process around a run: its device, threads, random seeds and signals."""

import atexit
import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import torch

from hydrl.config.auto_values import compiler
from hydrl.errors import Interrupted, RunError, UserError
from hydrl.experience.forkserver import start_resource_tracker
from hydrl.library_setup import quieten_libraries, remember_missing_packages, seed_generators

SAME = 0.5  # seconds; a signal that comes again within these is the first, sent to process and group


def prepare(seed: int, device: str, threads: int, *, compile: bool = False, cudagraph: bool = False) -> str:
    """Sets up the process of a run before anything is built; returns the device it runs on.

    Seeds the random number generators of Python, NumPy and PyTorch; environments are seeded where they are
    built.

    Raises:
        UserError: for what this machine cannot do.
    """
    if not gc.isenabled():  # train.py has imported all that it needs
        gc.freeze()  # what is imported stays, and is not searched for garbage before the end
        atexit.register(gc.unfreeze)
        gc.enable()
    quieten_libraries()
    remember_missing_packages()
    start_resource_tracker()  # before a buffer's lock starts it
    device = choose_device(device)
    if cudagraph and not device.startswith("cuda"):
        raise UserError(
            f"cudagraph=true: needs a CUDA device, and this run is on the {device}. Use cudagraph=false."
        )
    if compile and shutil.which(compiler()) is None:
        raise UserError(
            f"compile=true: there is no C++ compiler {compiler()}. Install g++, set CXX to another compiler, "
            "or use compile=false."
        )
    if compile:
        torch.compiler.reset()  # PyTorch compiles a function eight times at most, and a sweep may be longer
    torch.set_num_threads(threads)
    seed_generators(seed)
    return device


def choose_device(name: str) -> str:
    """``auto`` takes CUDA where there is one.

    Raises:
        UserError: for a CUDA device that is not there.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "cpu"
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= count:
        raise UserError(f"device={name}: PyTorch finds {count} CUDA devices. Use device=cpu or device=auto.")
    return name


class Stop:
    """A context manager that handles SIGINT, SIGTERM and SIGHUP, and ends the run between two batches.

    So the checkpoint is of a moment that the run can be resumed from to the last bit. A batch that takes
    longer than ``grace`` more seconds is broken off, and the checkpoint is of a moment before it; a second
    signal kills at once. What ``nohup`` ignores stays ignored. Only the main thread receives signals; a run
    in another thread is ended by ``requested``.

    Args:
        requested: set by another thread to end the run after the current batch.
        grace: seconds that a batch may still take after a signal.
    """

    def __init__(self, requested: threading.Event | None = None, grace: float = 8.0) -> None:
        self.requested, self.grace, self.owner = requested, grace, os.getpid()
        self.signum: int | None = None
        self.since = 0.0
        self.previous: dict[int, Any] = {}
        self.imports = 0  # imports under way when it was entered

    def __enter__(self) -> Self:
        """Installs the signal handlers."""
        if threading.current_thread() is not threading.main_thread():
            return self
        self.imports = imports_under_way(sys._getframe())
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signals.append(signal.SIGHUP)
        self.previous = {signum: signal.signal(signum, self.receive) for signum in signals}
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the previous handlers; saving may now take as long as it takes."""
        if self.previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)

    def check(self) -> None:
        """Called where the run may end.

        Raises:
            Interrupted: if a signal has arrived, or another thread has requested the end.
        """
        if self.requested is not None and self.requested.is_set():
            raise Interrupted(signal.SIGINT)
        if self.signum is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted(self.signum)

    @contextmanager
    def as_interrupt(self) -> Iterator[None]:
        """Turns errors after a signal into interrupts: Ctrl-C also ends a compiler that is running.

        Raises:
            Interrupted: in place of any error that is not one of hydrl's own.
        """
        try:
            yield
        except (UserError, RunError):
            raise
        except Exception as error:
            time.sleep(0.2)  # in which a signal to the whole process group reaches this one, too
            if self.signum is None:
                raise
            reason = next(iter(str(error).splitlines()), "")[:200]  # a compiler's has its whole command
            print(f"warning: interrupted by the signal: {type(error).__name__}: {reason}", file=sys.stderr)
            raise Interrupted(self.signum, in_batch=True) from error

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        if os.getpid() != self.owner:  # a forked worker: its parent shuts it down
            os._exit(128 + signum)
        if self.signum is None:
            self.signum, self.since = signum, time.monotonic()
            if os.isatty(2):  # written as it is, for print may be what was broken into
                os.write(2, b"\nstopping after this batch, with a checkpoint; a second signal kills\n")
            self.previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.break_off)
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        elif time.monotonic() - self.since > SAME:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    def break_off(self, signum: int, frame: FrameType | None) -> None:
        """The timer's handler: interrupts the main thread, but no import, which would stay half done."""
        assert self.signum is not None
        if imports_under_way(frame) > self.imports:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            return
        raise Interrupted(self.signum, in_batch=True)


def imports_under_way(frame: FrameType | None) -> int:
    """Counts the frames of Python's import system among a frame and its callers."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        frame = frame.f_back
    return count


def versions() -> dict[str, str]:
    """Versions of the packages that a run's results depend on."""
    from importlib.metadata import version

    names = ("hydrl", "torch", "torchrl", "tensordict", "gymnasium", "mujoco", "numpy", "hydra-core")
    return {name: version(name) for name in names}
