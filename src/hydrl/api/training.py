"""Training inside another program, such as a notebook: one run at a time, then the process is restored."""

import gc
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from hydra.core.hydra_config import HydraConfig

from hydrl.errors import UserError, warnings_of_one_run
from hydrl.run import Session
from hydrl.training.evaluator import preserve_rng

LOGGERS = ("torchrl", "torch.utils.cpp_extension")  # whose levels `quieten_libraries` sets


class Training:
    """The run that ``hydrl.train`` has under way in this process: at most one at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None

    @contextmanager
    def begin(self, began: float | None = None) -> Iterator[Session]:
        """Holds the process for one run, which began at ``began`` by ``time.monotonic``, or now.

        Raises:
            UserError: if another is under way.
        """
        if not self.lock.acquire(blocking=False):
            raise UserError(
                "another run is under way in this process. Wait for it, or stop it with hydrl.stop()."
            )
        try:
            self.session = session = Session(time.monotonic() if began is None else began)
            with restore_process():
                yield session
        finally:
            self.lock.release()

    def stop(self) -> bool:
        """See :func:`hydrl.stop`."""
        is_under_way = self.session is not None and self.lock.locked()
        if self.session is not None and is_under_way:
            self.session.stop_requested.set()
        return is_under_way


TRAINING = Training()  # of this process


@contextmanager
def restore_process() -> Iterator[None]:
    """Context manager that restores what a run sets in its process.

    That is random generators, PyTorch's threads and default dtype, environment variables, Python's path,
    garbage collection and warnings, levels of loggers, and Hydra's configuration.
    """
    hydra, collected = HydraConfig.instance(), gc.isenabled()
    cfg, path, variables = hydra.cfg, [*sys.path], dict(os.environ)
    threads, floats = torch.get_num_threads(), torch.get_default_dtype()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with ExitStack() as left, warnings.catch_warnings():
        left.enter_context(preserve_rng())
        left.enter_context(warnings_of_one_run())
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
