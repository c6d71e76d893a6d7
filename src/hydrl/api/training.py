"""A run inside a process that is somebody else's, as a notebook's: one at a time, and all left as found."""

import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from hydra.core.hydra_config import HydraConfig

from hydrl.errors import UserError
from hydrl.library_setup import WARNED
from hydrl.run import run_folder
from hydrl.run.process import asked_to_stop
from hydrl.training import timers
from hydrl.training.evaluator import preserve_rng

LOGGERS = ("torchrl", "torch.utils.cpp_extension")  # whose levels `quieten_libraries` sets
_one = threading.Lock()


@contextmanager
def begun(since: float | None = None) -> Iterator[None]:
    """Holds the process for one run, whose time counts from ``since`` by ``time.monotonic``, or from now.

    Raises:
        UserError: if another is under way.
    """
    if not _one.acquire(blocking=False):
        raise UserError("another run is under way in this process; wait for it, or end it with hydrl.stop()")
    try:
        asked_to_stop.clear()
        WARNED.clear()  # a run says what it has to say, whatever one before it said
        timers.begin(since)
        with as_found():
            yield
    finally:
        run_folder.unlock()
        asked_to_stop.clear()
        _one.release()


def stop() -> bool:
    """See :func:`hydrl.stop`."""
    if _one.locked():
        asked_to_stop.set()
    return _one.locked()


@contextmanager
def as_found() -> Iterator[None]:
    """Puts back what a run sets in its process.

    That is random numbers, PyTorch's threads and kind of floats, the environment's variables, Python's path,
    garbage collection and warnings, levels of loggers, and what Hydra knows of a run.
    """
    hydra, collected = HydraConfig.instance(), gc.isenabled()
    cfg, path, variables = hydra.cfg, [*sys.path], dict(os.environ)
    threads, floats = torch.get_num_threads(), torch.get_default_dtype()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with ExitStack() as left, warnings.catch_warnings():
        left.enter_context(preserve_rng())
        gc.enable()
        try:
            yield
        finally:
            hydra.cfg, sys.path[:] = cfg, path
            torch.set_num_threads(threads)
            torch.set_default_dtype(floats)
            for name in os.environ.keys() - variables.keys():
                del os.environ[name]
            os.environ.update(variables)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            if sys.modules.get("pandas", sys) is None:  # of `remember_missing_packages`; it may be installed
                del sys.modules["pandas"]
            if not collected:
                gc.disable()
