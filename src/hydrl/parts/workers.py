"""Processes that collect: each says why it ends, and the run hears of it within seconds.

TorchRL's collectors over processes lose the reason a worker died for, or wait for it for ever.
"""

import ctypes
import faulthandler
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import isfinite
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
from tensordict import TensorDictBase
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector

from hydrl.errors import WorkerError

TICK = 0.5  # seconds between two looks at the workers while the run waits for them
SHUTDOWN = 5.0  # seconds workers are given to close their environments before they are killed


class WorkerCollector(Collector):
    """TorchRL's collector as it runs in a worker, which leaves a report where it fails.

    Python's ``faulthandler`` writes the report of a crash, and ends a worker that takes too long.

    Args:
        folder: of the reports.
        worker_timeout: seconds it may take to start, and for each batch.
        worker_idx: its number, from 0, which is its report's name.
        *args, **kwargs: TorchRL's own.
    """

    def __init__(
        self, *args: Any, folder: Path, worker_timeout: float, worker_idx: int, **kwargs: Any
    ) -> None:
        if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run, even while it loops in C
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        self.worker_timeout = worker_timeout
        self.report = (folder / str(worker_idx)).open("w")
        faulthandler.enable(self.report, all_threads=False)
        with self.reported():
            super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches."""
        batches = super().iterator()
        while True:
            with self.reported():
                batch = next(batches)
            yield batch

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Reports why the block fails, or where it is when it takes too long, and ends the process."""
        if isfinite(self.worker_timeout):
            faulthandler.dump_traceback_later(self.worker_timeout, exit=True, file=self.report)
        try:
            yield
        except BaseException:
            traceback.print_exc(file=self.report)
            raise SystemExit(1) from None  # of which multiprocessing prints nothing
        finally:
            faulthandler.cancel_dump_traceback_later()


class WorkerLost(BaseException):
    """A :class:`WorkerError` on its way out of TorchRL, which swallows an ``Exception`` and waits on."""


class Watched:
    """Makes TorchRL's collector over processes notice within seconds that a worker has ended.

    The signal ``SIGALRM`` breaks whatever TorchRL waits in, so it must wait in the main thread.

    Args:
        worker_timeout: seconds a worker may take to start, and for each batch, before it ends itself.
        stop: called twice a second while the run waits; what it raises ends the wait.
        **options: TorchRL's own.

    Raises:
        WorkerError: here, while iterating and while sending weights.
    """

    procs: list[Any]

    def __init__(
        self, *args: Any, worker_timeout: float, stop: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self.worker_timeout, self.stop = worker_timeout, stop
        self.reports = tempfile.TemporaryDirectory(prefix="hydrl-workers-", ignore_cleanup_errors=True)
        self.watching = False
        self.ended: set[int] = set()
        made = partial(WorkerCollector, folder=Path(self.reports.name), worker_timeout=worker_timeout)
        # Workers inherit the mask: Ctrl-C goes to every process of the terminal, and is the run's to answer.
        resource_tracker.ensure_running()  # whose start would lift the mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self.watch():
                super().__init__(*args, collector_class=made, **options)  # type: ignore[call-arg]
        except BaseException:
            self.shutdown()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches."""
        batches = super().iterator()  # type: ignore[misc]
        while True:
            with self.watch():
                batch = next(batches)
            yield batch

    def update_policy_weights_(self, *args: Any, **kwargs: Any) -> None:
        """Sends the weights; workers acknowledge them."""
        with self.watch():
            super().update_policy_weights_(*args, **kwargs)  # type: ignore[misc]

    def shutdown(self, timeout: float | None = None, *args: Any, **kwargs: Any) -> None:
        """Ends the workers, what they started and what carries weights to them, within ``SHUTDOWN`` seconds.

        Left alone, Python would wait for them when it exits, and TorchRL would start a thread while it does.
        """
        started: list[psutil.Process] = []
        for proc in getattr(self, "procs", []):
            with suppress(psutil.Error, ValueError):
                started += psutil.Process(proc.pid).children(recursive=True)
        super().shutdown(SHUTDOWN if timeout is None else timeout, *args, **kwargs)  # type: ignore[misc]
        for scheme in (getattr(self, "_weight_sync_schemes", None) or {}).values():
            scheme.shutdown()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not self.watching:  # TorchRL shuts down before it raises, and then they are still to be read
            self.reports.cleanup()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Looks at the workers at every tick, and where TorchRL fails because of one of them, says so."""
        self.watching = True
        handler = signal.signal(signal.SIGALRM, lambda *_: self.look())
        timer = signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        try:
            try:
                self.look()
                yield
            except Exception:
                for _ in range(20):  # it may take a second to end
                    self.look()
                    time.sleep(0.05)
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                self.watching = False
        except WorkerLost as lost:
            raise WorkerError(str(lost)) from None

    def look(self) -> None:
        """Raises what ``stop`` does, or :class:`WorkerLost` for a worker that has ended.

        At the second look that finds it so: a signal to the whole process group reaches ``stop`` first.
        """
        if signal.SIGINT in signal.sigpending():  # blocked while workers start
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if self.stop:
            self.stop()
        ended: dict[int, int] = {}
        for worker, proc in enumerate(getattr(self, "procs", [])):
            with suppress(ValueError):  # of one that TorchRL has terminated and closed
                if proc.exitcode is not None:
                    ended[worker] = proc.exitcode
        if ended.keys() & self.ended:
            # TorchRL terminates the others when one has ended, so those are not the cause.
            cause = min(ended, key=lambda worker: ended[worker] == -signal.SIGTERM)
            raise WorkerLost(self.why(cause, ended[cause]))
        self.ended = set(ended)

    def why(self, worker: int, code: int) -> str:
        """How a worker ended, with where its Python was."""
        name = f"worker {worker} (process {self.procs[worker].pid})"
        file = Path(self.reports.name, str(worker))
        report = file.read_text(errors="replace").strip() if file.exists() else ""
        if report.startswith("Timeout"):
            limit = f"collector.worker_timeout={self.worker_timeout:g}"
            return f"{name} took longer than {limit} seconds to start or for a batch, in:\n{stack(report)}"
        if code < 0:
            memory = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
            crash = f" in:\n{stack(report)}" if report else ""
            return f"{name} was killed by {signal.Signals(-code).name}{memory}{crash}"
        return f"{name} failed:\n{report}" if report else f"{name} ended by itself with exit code {code}"


def stack(report: str) -> str:
    """The lines of one thread's ``faulthandler`` report down to this file's: what the collector was doing."""
    thread = next((each for each in report.split("\n\n") if __file__ in each), report)
    return thread.partition(f'  File "{__file__}"')[0].rstrip()


class SyncWorkers(Watched, MultiSyncCollector):
    """TorchRL's collector whose workers wait for each other."""


class AsyncWorkers(Watched, MultiAsyncCollector):
    """TorchRL's collector whose workers never wait."""
