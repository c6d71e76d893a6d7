"""The process around a run: its clock, device, threads, random seeds and signals."""

import os
import random
import shutil
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

import numpy as np
import torch

from hydrl.errors import Interrupted, UserError
from hydrl.parts.libraries import quieten_libraries, remember_missing_packages


def choose_device(name: str) -> str:
    """``auto`` takes CUDA where there is one.

    Raises:
        UserError: for ``cuda`` on a machine without.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"device={name}, but PyTorch finds no CUDA device here; use device=cpu or device=auto"
        )
    if name.startswith("cuda:") and int(name[5:]) >= torch.cuda.device_count():
        raise UserError(f"device={name}, but there are {torch.cuda.device_count()} here, counted from cuda:0")
    return name


def choose_threads(threads: int | str) -> None:
    """Sets PyTorch's threads; ``auto`` is one, which is fastest for networks of a few hundred units.

    More threads than that fight over a small machine: the default fell to a third of the speed as soon
    as another process ran.

    Raises:
        UserError: for more threads than the machine has cores.
    """
    count = 1 if threads == "auto" else int(threads)
    if count > (cores := os.cpu_count() or 1):
        raise UserError(f"torch_threads={count} is more than the {cores} cores here; use auto")
    torch.set_num_threads(count)


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy and PyTorch; environments are seeded where they are built."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Stop:
    """Waits, where entered, for SIGINT or SIGTERM, and ends the run between two batches.

    So what is saved is a moment that the run can be resumed from to the last bit. A batch that takes longer
    than ``grace`` seconds more is broken off, and a second signal kills at once. One that comes again within
    half a second is the first, sent to the process and to its group.
    """

    def __init__(self, grace: float = 8.0) -> None:
        self.grace = grace
        self.signum: int | None = None
        self.since = 0.0
        self.overdue = False
        self.owner = os.getpid()
        self.timer: threading.Timer | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Takes the signals."""
        self.previous = {each: signal.signal(each, self.receive) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back."""
        self.calm()
        for each, handler in self.previous.items():
            signal.signal(each, handler)

    def here(self) -> None:
        """Called where the run may end.

        Raises:
            Interrupted: if a signal has come.
        """
        if self.signum is not None:
            self.calm()
            raise Interrupted(self.signum)

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        if os.getpid() != self.owner:  # a forked worker: its parent shuts it down
            os._exit(128 + signum)
        if self.signum is None:
            self.signum, self.since = signum, time.monotonic()
            self.timer = threading.Timer(self.grace, self.hurry)
            self.timer.daemon = True
            self.timer.start()
        elif self.overdue:
            self.overdue = False
            raise Interrupted(self.signum, midway=True)
        elif time.monotonic() - self.since > 0.5:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    def hurry(self) -> None:
        """Wakes the main thread wherever it is."""
        self.overdue = True
        os.kill(self.owner, self.signum or signal.SIGTERM)

    def calm(self) -> None:
        """No more hurry."""
        if self.timer:
            self.timer.cancel()


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run depend on."""
    from importlib.metadata import version

    names = ("hydrl", "torch", "torchrl", "tensordict", "gymnasium", "mujoco", "numpy", "hydra-core")
    return {name: version(name) for name in names}


def check_compiler() -> None:
    """Finds the C++ compiler that ``torch.compile`` will call.

    Raises:
        UserError: where there is none.
    """
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise UserError(
            f"compile=true needs the C++ compiler {name}, which is not there; "
            "install g++, let CXX name another, or use compile=false"
        )


def prepare(
    seed: int, device: str, threads: int | str, *, compile: bool = False, cudagraph: bool = False
) -> str:
    """Everything a run sets in its process before it builds a part; returns the device it runs on.

    Raises:
        UserError: for what this machine cannot do.
    """
    quieten_libraries()
    remember_missing_packages()
    chosen = choose_device(device)
    if cudagraph and not chosen.startswith("cuda"):
        raise UserError(
            f"cudagraph=true records CUDA kernels, and this run is on the {chosen}; use cudagraph=false"
        )
    if compile:
        check_compiler()
        torch.compiler.reset()  # PyTorch compiles a function eight times at most, and a sweep may be longer
    choose_threads(threads)
    seed_everything(seed)
    return chosen
