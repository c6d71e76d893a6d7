"""How processes beside the run begin: as copies of one that has imported what each needs."""

import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

# What that one imports, for seconds; none opens what a copy could not share, as MuJoCo does a display.
IMPORTED = [
    "hydrl.experience.forkserver_preload",
    "gymnasium",
    "torchrl.checkpoint",
    "torchrl.collectors",
    "torchrl.envs",
]
IMPORTED += ["torchrl.modules"]
STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
LIBC = ctypes.CDLL(None)  # looked up before any fork, where that is safe


def end_with_parent() -> None:
    """In a new process: SIGTERM when the one that started it is gone, even by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


TO_END_WITH_PARENT = end_with_parent if sys.platform == "linux" else None  # for subprocess.Popen


@contextmanager
def starting(*, deaf_to: set[signal.Signals]) -> Iterator[Any]:
    """Gives Python's context to start processes in, which TorchRL takes too while the block lasts.

    On Linux that is ``forkserver`` in place of ``spawn``, which TorchRL sets as it is imported: the first
    process pays for the imports, and all share their memory. The server is deaf to the signals that stop a
    run, and ends with it.

    Args:
        deaf_to: signals that reach every process of the terminal, and are the run's to answer. What is copied
            is deaf to all of ``STOPPING``.
    """
    method = multiprocessing.get_start_method()
    keep_track()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        if method != "fork" and sys.platform == "linux":
            multiprocessing.set_forkserver_preload(IMPORTED)
            multiprocessing.set_start_method("forkserver", force=True)
            forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, *deaf_to})
        yield multiprocessing.get_context()
    finally:
        multiprocessing.set_start_method(method, force=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def keep_track() -> None:
    """Starts Python's process that frees what others share deaf to SIGHUP, as it is to SIGINT and SIGTERM.

    Where a closed terminal ends it, Python tells at length of what its next one does not find.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
