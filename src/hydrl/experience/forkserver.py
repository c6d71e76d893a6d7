"""Start of worker processes by Python's forkserver, with the imports done once."""

import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

# Slow imports of the server; none opens anything that its forks could not share, such as a display.
PRELOAD_MODULES = [
    "hydrl.experience.forkserver_preload",
    "gymnasium",
    "torchrl.checkpoint",
    "torchrl.collectors",
    "torchrl.envs",
]
PRELOAD_MODULES += ["torchrl.modules"]
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
LIBC = ctypes.CDLL(None)  # loaded before any fork, where that is safe


def end_with_parent() -> None:
    """Makes this process get SIGTERM when its parent ends, even by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


END_WITH_PARENT = end_with_parent if sys.platform == "linux" else None  # preexec_fn of subprocess.Popen


@contextmanager
def worker_context(*, blocked_signals: set[signal.Signals]) -> Iterator[Any]:
    """Context manager that sets and returns the multiprocessing context, for TorchRL's workers too.

    On Linux it is ``forkserver`` instead of ``spawn`` (TorchRL's default): imports are done once, and
    processes share their memory. The server ignores the signals that stop a run, and ends with it.

    Args:
        blocked_signals: signals that this process blocks meanwhile. Forks block all of ``STOP_SIGNALS``.
    """
    method = multiprocessing.get_start_method()
    start_resource_tracker()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        if method != "fork" and sys.platform == "linux":
            multiprocessing.set_forkserver_preload(PRELOAD_MODULES)
            multiprocessing.set_start_method("forkserver", force=True)
            forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, *blocked_signals})
        yield multiprocessing.get_context()
    finally:
        multiprocessing.set_start_method(method, force=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start_resource_tracker() -> None:
    """Starts Python's resource tracker with SIGHUP blocked, as it blocks SIGINT and SIGTERM itself.

    If closing the terminal ended it, Python would print warnings about unknown resources.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
