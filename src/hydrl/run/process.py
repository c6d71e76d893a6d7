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

# Set by who asks the run of this process to end after the batch in hand, as from another thread.
asked_to_stop = threading.Event()
SAME = 0.5  # seconds; a signal that comes again within these is the first, sent to process and group


def prepare(seed: int, device: str, threads: int, *, compile: bool = False, cudagraph: bool = False) -> str:
    """Everything a run sets in its process before it builds a part; returns the device it runs on.

    Python's, NumPy's and PyTorch's random numbers are seeded; environments are where they are built.

    Raises:
        UserError: for what this machine cannot do.
    """
    if not gc.isenabled():  # train.py has imported all that it needs
        gc.freeze()  # and what stays is not looked through again before the end, where libraries ask for it
        atexit.register(gc.unfreeze)
        gc.enable()
    quieten_libraries()
    remember_missing_packages()
    start_resource_tracker()  # before a buffer's lock starts it
    chosen = choose_device(device)
    if cudagraph and not chosen.startswith("cuda"):
        raise UserError(
            f"cudagraph=true records CUDA kernels, and this run is on the {chosen}; use cudagraph=false"
        )
    if compile and shutil.which(compiler()) is None:
        raise UserError(
            f"compile=true needs the C++ compiler {compiler()}, which is not there; "
            "install g++, let CXX name another, or use compile=false"
        )
    if compile:
        torch.compiler.reset()  # PyTorch compiles a function eight times at most, and a sweep may be longer
    torch.set_num_threads(threads)
    seed_generators(seed)
    return chosen


def choose_device(name: str) -> str:
    """``auto`` takes CUDA where there is one.

    Raises:
        UserError: for a CUDA device that is not there.
    """
    there = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if there else "cpu"
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= there:
        raise UserError(
            f"device={name}, but PyTorch finds {there} CUDA devices here; use device=cpu or device=auto"
        )
    return name


class Stop:
    """Waits, where entered, for SIGINT, SIGTERM or SIGHUP, and ends the run between two batches.

    So what is saved is a moment that the run can be resumed from to the last bit. A batch that takes longer
    than ``grace`` seconds more is broken off, and what is saved is a moment before it; a second signal kills
    at once. What ``nohup`` has ignored stays so. Signals come to the main thread alone; a run in another one
    is ended by ``asked_to_stop``.
    """

    def __init__(self, grace: float = 8.0) -> None:
        self.grace, self.owner = grace, os.getpid()
        self.signum: int | None = None
        self.since = 0.0
        self.previous: dict[int, Any] = {}
        self.imports = 0  # under way where it was entered

    def __enter__(self) -> Self:
        """Takes the signals."""
        if threading.current_thread() is not threading.main_thread():
            return self
        self.imports = imports_under_way(sys._getframe())
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signals.append(signal.SIGHUP)
        self.previous = {each: signal.signal(each, self.receive) for each in signals}
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back; what is saved now may take as long as it takes."""
        if self.previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in self.previous.items():
            signal.signal(each, handler)

    def here(self) -> None:
        """Called where the run may end.

        Raises:
            Interrupted: if a signal has come, or somebody has asked.
        """
        if asked_to_stop.is_set():
            raise Interrupted(signal.SIGINT)
        if self.signum is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted(self.signum)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What fails in the block once a signal has come fails by it: Ctrl-C ends the compiler, too.

        Raises:
            Interrupted: in place of an error that does not say itself what happened.
        """
        try:
            yield
        except (UserError, RunError):
            raise
        except Exception as error:
            time.sleep(0.2)  # in which a signal to the whole process group reaches this one, too
            if self.signum is None:
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"warning: broken off by the signal: {reason}", file=sys.stderr)
            raise Interrupted(self.signum, midway=True) from error

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        if os.getpid() != self.owner:  # a forked worker: its parent shuts it down
            os._exit(128 + signum)
        if self.signum is None:
            self.signum, self.since = signum, time.monotonic()
            if os.isatty(2):  # written as it is, for print may be what was broken into
                os.write(2, b"\nends after the batch in hand, with a checkpoint; another signal kills\n")
            self.previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.break_off)
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        elif time.monotonic() - self.since > SAME:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    def break_off(self, signum: int, frame: FrameType | None) -> None:
        """The timer's handler, wherever the main thread is, but for an import: half a module is of no use."""
        assert self.signum is not None
        if imports_under_way(frame) > self.imports:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            return
        raise Interrupted(self.signum, midway=True)


def imports_under_way(frame: FrameType | None) -> int:
    """Frames of Python's import system among a frame and its callers."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        frame = frame.f_back
    return count


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run depend on."""
    from importlib.metadata import version

    names = ("hydrl", "torch", "torchrl", "tensordict", "gymnasium", "mujoco", "numpy", "hydra-core")
    return {name: version(name) for name in names}
