"""Multi-process collectors that report failures within seconds.

TorchRL's own lose the reason of a worker's death, or wait for it forever.
"""

import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import psutil
from tensordict import TensorDictBase
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector

from hydrl.errors import DivergedError, Interrupted, RunError, UserError, WorkerError
from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.forkserver import STOP_SIGNALS, worker_context
from hydrl.experience.worker_reports import ReportFolder

TICK = 0.5  # seconds between two checks of the workers while the run waits for them
SHUTDOWN = 5.0  # seconds for workers to close their environments before they are killed
STARTING = 60.0  # seconds over `worker_timeout` for starting Python


class WorkerCollector(CheckedCollector):
    """Collector inside a worker process; it writes a report file if it fails.

    Python's ``faulthandler`` writes the report of a crash and ends a worker that takes too long.

    Args:
        folder: folder of the reports.
        environ: the run's environment variables; the forkserver may have those of an earlier run.
        worker_timeout: seconds it may take to start, and for each batch.
        worker_idx: its number, from 0, and the name of its report.
        *args, **kwargs: passed to TorchRL's collector.
    """

    def __init__(
        self,
        *args: Any,
        folder: Path,
        environ: dict[str, str],
        worker_timeout: float,
        worker_idx: int,
        **kwargs: Any,
    ) -> None:
        os.environ.update(environ)
        if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run, even in a C loop
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS - {signal.SIGINT})  # by which TorchRL ends it
        self.worker_timeout, self.label = worker_timeout, f" of worker {worker_idx}"
        self.report = (folder / str(worker_idx)).open("w", encoding="utf-8", buffering=1)
        faulthandler.enable(self.report, all_threads=False)
        with self.reporting():
            super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def iterator(self) -> Iterator[TensorDictBase]:
        """Batches, with failures reported."""
        return iterate_within(self.reporting, super().iterator())

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Context manager that reports an exception, or a stack trace on timeout, and ends the process."""
        try:
            with time_limit(self.worker_timeout, self.report):
                yield
        except DivergedError as error:
            print(error.terms, file=self.report)
            raise SystemExit(error.exit_code) from None
        except BaseException:
            traceback.print_exc(file=self.report)
            raise SystemExit(1) from None  # multiprocessing prints nothing about it


@contextmanager
def time_limit(seconds: float, report: TextIO) -> Iterator[None]:
    """Context manager that reports a stack trace on timeout, and ends the process."""
    if math.isfinite(seconds):
        faulthandler.dump_traceback_later(seconds, exit=True, file=report)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def child_processes() -> set[psutil.Process]:
    """All descendants of this process."""
    return set(psutil.Process().children(recursive=True))


def kill_new_processes(before: set[psutil.Process]) -> None:
    """Kills all descendants not in ``before``, except Python's resource tracker.

    All are suspended first, so that none starts others that would be left behind.
    """
    suspended = set[psutil.Process]()
    known = before
    while new := child_processes() - known:
        known = known | new
        for process in new:
            with suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in str(process.cmdline()):
                    process.suspend()
                    suspended.add(process)
    for process in suspended:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def iterate_within(
    context: Callable[[], AbstractContextManager[None]], batches: Iterator[TensorDictBase]
) -> Iterator[TensorDictBase]:
    """Iterates with ``context`` entered while waiting for a batch."""
    while True:
        with context():
            batch = next(batches)
        yield batch


def explain_exit(name: str, code: int, report: str, worker_timeout: float) -> WorkerError:
    """The error that says how a process ended.

    Args:
        name: of the process.
        code: its exit code; the negative number of a signal that killed it.
        report: its traceback, or the stack trace of a crash or timeout.
        worker_timeout: seconds that it was allowed to take.
    """
    outcome = "failed" if report else f"ended with exit code {code}"
    if code < 0:
        hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        outcome = f"was killed by {signal.Signals(-code).name}{hint}"
    elif report.startswith("Timeout"):
        limit = f"collector.worker_timeout={worker_timeout:g}"
        outcome = f"took longer than {limit} seconds to start or for a batch"
    return WorkerError(f"{name} {outcome}" + (f":\n{report}" if report else ""))


class WorkerLost(BaseException):
    """Carries an error out of TorchRL, which would swallow an ``Exception`` and keep waiting."""


class WorkerWatchdog:
    """Mixin for TorchRL's multi-process collectors that notices within seconds when a worker ends.

    The signal ``SIGALRM`` interrupts TorchRL's waiting, so it has to wait in the main thread.

    Args:
        worker_timeout: seconds a worker may take to start, and for each batch, before it ends itself.
        stop: called twice a second while the run waits; its exceptions end the wait.
        **options: passed to TorchRL's collector.

    Raises:
        WorkerError: here, while iterating and while sending weights.
        DivergedError: if a worker meets NaN or infinity.
    """

    episode_restart_reason = "they are in processes of their own"
    steps_env = False
    procs: list[Any]
    _frames: int
    _iter: int

    def __init__(
        self, *args: Any, worker_timeout: float, stop: Callable[[], object] | None = None, **options: Any
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "collector: workers are watched by a signal, which only the main thread receives. Write "
                "collector=single, or train from the main thread."
            )
        self.worker_timeout, self.stop = worker_timeout, stop or int
        self.wait_started: float | None = None
        self.before: set[psutil.Process] | None = child_processes()
        self.reports = ReportFolder()
        collector_class = partial(
            WorkerCollector, folder=Path(self.reports.name), worker_timeout=worker_timeout
        )
        collector_class = partial(collector_class, environ=dict(os.environ))
        try:
            with worker_context(blocked_signals={signal.SIGINT}), self.watch():
                super().__init__(*args, collector_class=collector_class, **options)  # type: ignore[call-arg]
        except BaseException:
            self.shutdown()
            raise
        self.before = None

    def iterator(self) -> Iterator[TensorDictBase]:
        """Batches, with the workers watched."""
        return iterate_within(self.watch, super().iterator())  # type: ignore[misc]

    def update_policy_weights_(self, *args: Any, **kwargs: Any) -> None:
        """Sends the weights and waits until workers acknowledge them."""
        with self.watch():
            super().update_policy_weights_(*args, **kwargs)  # type: ignore[misc]

    def publish(self) -> None:
        """Sends the weights to the workers.

        An error here is marked ``in_batch``: the batch is learned from, but not yet evaluated and logged.
        """
        try:
            self.update_policy_weights_()
        except (Interrupted, WorkerError) as error:
            error.in_batch = True
            raise

    def state(self, *, running: bool) -> dict[str, Any]:
        """The counters; workers' episodes are not part of it."""
        return {"frames": self._frames, "iter": self._iter}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`."""
        self._frames, self._iter = state["frames"], state["iter"]

    def shutdown(self, timeout: float | None = None, *args: Any, **kwargs: Any) -> None:
        """Ends the workers and TorchRL's weight senders within ``SHUTDOWN`` seconds.

        Otherwise Python would wait for them at exit, and TorchRL would start a thread during that.
        """
        super().shutdown(SHUTDOWN if timeout is None else timeout, *args, **kwargs)  # type: ignore[misc]
        for scheme in (getattr(self, "_weight_sync_schemes", None) or {}).values():
            scheme.shutdown()
        if self.wait_started is None:  # else TorchRL shuts down before it raises, and reports are needed
            self.reports.cleanup()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Context manager that checks the workers every tick and names the worker that failed."""
        self.wait_started = time.monotonic()
        handler = signal.signal(signal.SIGALRM, lambda *_: self.check_workers())
        timer = signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        try:
            try:
                self.check_workers()
                yield
            except Exception:
                for _ in range(20):  # the worker may take a second to end
                    self.check_workers()
                    time.sleep(0.05)
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                self.wait_started = None
        except WorkerLost as lost:
            raise lost.args[0] from None

    def check_workers(self) -> None:
        """Raises what ``stop`` raises, or :class:`WorkerLost` for a worker that ended or is silent."""
        try:
            if signal.SIGINT in signal.sigpending():  # blocked while workers start
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self.stop()
        except BaseException:
            if self.before is not None:  # starting workers block the signal that TorchRL sends
                kill_new_processes(self.before)
            raise
        procs = {
            worker: process
            for worker, process in enumerate(getattr(self, "procs", []))
            if not process._closed
        }
        if ended := {
            worker: process.exitcode for worker, process in procs.items() if process.exitcode is not None
        }:
            time.sleep(0.2)  # in which a signal to the whole process group reaches the run too
            self.stop()
            raise WorkerLost(self.describe_failure(ended))
        waited = time.monotonic() - (self.wait_started or math.inf)
        if waited > self.worker_timeout + STARTING:  # a worker that runs has ended itself by then
            states = [
                f"{self.worker_name(worker)} is {psutil.Process(process.pid).status()}"
                for worker, process in procs.items()
            ]
            raise WorkerLost(WorkerError(f"no answer in {waited:.0f} seconds: {', '.join(states)}"))

    def describe_failure(self, ended: Mapping[int, int]) -> RunError:
        """Error that says how the first worker ended, with its report.

        Args:
            ended: exit codes by worker; TorchRL terminates the others when one ends.
        """
        worker = min(ended, key=lambda worker: ended[worker] == -signal.SIGTERM)
        code, file = ended[worker], Path(self.reports.name, str(worker))
        report = file.read_text(encoding="utf-8", errors="replace").strip() if file.exists() else ""
        if report and code == DivergedError.exit_code:
            return DivergedError(report)
        return explain_exit(self.worker_name(worker), code, report, self.worker_timeout)

    def worker_name(self, worker: int) -> str:
        """Name of a worker in messages."""
        return f"worker {worker} (process {self.procs[worker].pid})"


class SyncWorkers(WorkerWatchdog, MultiSyncCollector):
    """TorchRL's synchronous multi-process collector, watched."""


class AsyncWorkers(WorkerWatchdog, MultiAsyncCollector):
    """TorchRL's asynchronous multi-process collector, watched."""

    @property
    def _queue_len(self) -> int:
        """Room for one batch a worker; TorchRL discards a batch that waits a second for room."""
        return self.num_workers
