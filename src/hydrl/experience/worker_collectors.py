"""Processes that collect: each says why it ends, and the run hears of it within seconds.

TorchRL's collectors over processes lose the reason a worker died for, or wait for it for ever.
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
from typing import Any

import psutil
from tensordict import TensorDictBase
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector

from hydrl.errors import DivergedError, Interrupted, RunError, UserError, WorkerError
from hydrl.experience.checked_collector import FiniteCollector
from hydrl.experience.forkserver import STOPPING, starting
from hydrl.experience.worker_reports import Reports

TICK = 0.5  # seconds between two looks at the workers while the run waits for them
SHUTDOWN = 5.0  # seconds workers are given to close their environments before they are killed
STARTING = 60.0  # seconds over `worker_timeout` in which a worker may start Python


class WorkerCollector(FiniteCollector):
    """TorchRL's collector as it runs in a worker, which leaves a report where it fails.

    Python's ``faulthandler`` writes the report of a crash, and ends a worker that takes too long.

    Args:
        folder: of the reports.
        environ: the run's environment variables, for what this is a copy of has those of an earlier run.
        worker_timeout: seconds it may take to start, and for each batch.
        worker_idx: its number, from 0, which is its report's name.
        *args, **kwargs: TorchRL's own.
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
        if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run, even while it loops in C
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING - {signal.SIGINT})  # by which TorchRL ends it
        self.worker_timeout, self.of = worker_timeout, f" of worker {worker_idx}"
        self.report = (folder / str(worker_idx)).open("w", encoding="utf-8", buffering=1)
        faulthandler.enable(self.report, all_threads=False)
        with self.reported():
            super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches."""
        return each_within(self.reported, super().iterator())

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Reports why the block fails, or where it is when it takes too long, and ends the process."""
        if math.isfinite(self.worker_timeout):
            faulthandler.dump_traceback_later(self.worker_timeout, exit=True, file=self.report)
        try:
            yield
        except DivergedError as error:
            print(error.terms, file=self.report)
            raise SystemExit(error.exit_code) from None
        except BaseException:
            traceback.print_exc(file=self.report)
            raise SystemExit(1) from None  # of which multiprocessing prints nothing
        finally:
            faulthandler.cancel_dump_traceback_later()


def descendants() -> set[psutil.Process]:
    """Processes that this one has started, and these."""
    return set(psutil.Process().children(recursive=True))


def end_new(before: set[psutil.Process]) -> None:
    """Kills the descendants that are not among ``before``, but for the one that frees what processes share.

    All are stopped first: one that still starts others would leave those behind, which print a traceback when
    what they share with this process is gone.
    """
    stopped = set[psutil.Process]()
    seen = before
    while new := descendants() - seen:
        seen = seen | new
        for process in new:
            with suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in str(process.cmdline()):
                    process.suspend()
                    stopped.add(process)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def each_within(
    context: Callable[[], AbstractContextManager[None]], batches: Iterator[TensorDictBase]
) -> Iterator[TensorDictBase]:
    """The batches; the context is entered while one is waited for."""
    while True:
        with context():
            batch = next(batches)
        yield batch


class WorkerLost(BaseException):
    """An error on its way out of TorchRL, which swallows an ``Exception`` and waits on."""


class Watched:
    """Makes TorchRL's collector over processes notice within seconds that a worker has ended.

    The signal ``SIGALRM`` breaks whatever TorchRL waits in, so it must wait in the main thread.

    Args:
        worker_timeout: seconds a worker may take to start, and for each batch, before it ends itself.
        stop: called twice a second while the run waits; what it raises ends the wait.
        **options: TorchRL's own.

    Raises:
        WorkerError: here, while iterating and while sending weights.
        DivergedError: where a worker met what is no number.
    """

    restarts = "they are in processes of their own"
    steps = False
    procs: list[Any]
    _frames: int
    _iter: int

    def __init__(
        self, *args: Any, worker_timeout: float, stop: Callable[[], object] | None = None, **options: Any
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "collector: workers are watched by a signal, which comes to the main thread alone; use "
                "collector=single, or train from the main thread"
            )
        self.worker_timeout, self.stop = worker_timeout, stop or int
        self.since: float | None = None
        self.before: set[psutil.Process] | None = descendants()
        self.reports = Reports()
        made = partial(WorkerCollector, folder=Path(self.reports.name), worker_timeout=worker_timeout)
        made = partial(made, environ=dict(os.environ))
        try:
            with starting(deaf_to={signal.SIGINT}), self.watch():
                super().__init__(*args, collector_class=made, **options)  # type: ignore[call-arg]
        except BaseException:
            self.shutdown()
            raise
        self.before = None

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches."""
        return each_within(self.watch, super().iterator())  # type: ignore[misc]

    def update_policy_weights_(self, *args: Any, **kwargs: Any) -> None:
        """Sends the weights; workers acknowledge them."""
        with self.watch():
            super().update_policy_weights_(*args, **kwargs)  # type: ignore[misc]

    def publish(self) -> None:
        """As above; TorchRL calls that by its own name too.

        What ends the run here does so within a batch, which is learned from and not yet looked at.
        """
        try:
            self.update_policy_weights_()
        except (Interrupted, WorkerError) as error:
            error.midway = True
            raise

    def state(self, *, running: bool) -> dict[str, Any]:
        """Counters alone."""
        return {"frames": self._frames, "iter": self._iter}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`."""
        self._frames, self._iter = state["frames"], state["iter"]

    def shutdown(self, timeout: float | None = None, *args: Any, **kwargs: Any) -> None:
        """Ends the workers and what carries weights to them, within ``SHUTDOWN`` seconds.

        Left alone, Python would wait for them when it exits, and TorchRL would start a thread while it does.
        """
        super().shutdown(SHUTDOWN if timeout is None else timeout, *args, **kwargs)  # type: ignore[misc]
        for scheme in (getattr(self, "_weight_sync_schemes", None) or {}).values():
            scheme.shutdown()
        if self.since is None:  # else TorchRL shuts down before it raises, and they are still to be read
            self.reports.cleanup()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Looks at the workers at every tick, and where TorchRL fails because of one of them, says so."""
        self.since = time.monotonic()
        handler = signal.signal(signal.SIGALRM, lambda *_: self.look())
        timer = signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        try:
            try:
                self.look()
                yield
            except Exception:
                for _ in range(20):  # the worker may take a second to end
                    self.look()
                    time.sleep(0.05)
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                self.since = None
        except WorkerLost as lost:
            raise lost.args[0] from None

    def look(self) -> None:
        """Raises what ``stop`` does, or :class:`WorkerLost` for a worker that has ended or is silent."""
        try:
            if signal.SIGINT in signal.sigpending():  # blocked while workers start
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self.stop()
        except BaseException:
            if self.before is not None:  # what starts is deaf to the signal that TorchRL sends
                end_new(self.before)
            raise
        procs = {n: each for n, each in enumerate(getattr(self, "procs", [])) if not each._closed}
        if ended := {n: each.exitcode for n, each in procs.items() if each.exitcode is not None}:
            time.sleep(0.2)  # in which a signal to the whole process group reaches the run too
            self.stop()
            raise WorkerLost(self.why(ended))
        waited = time.monotonic() - (self.since or math.inf)
        if waited > self.worker_timeout + STARTING:  # a worker that runs has ended itself by then
            states = [f"{self.name(n)} is {psutil.Process(each.pid).status()}" for n, each in procs.items()]
            raise WorkerLost(WorkerError(f"no answer in {waited:.0f} seconds: {', '.join(states)}"))

    def why(self, ended: Mapping[int, int]) -> RunError:
        """How the first worker ended, with its own report.

        Args:
            ended: exit codes by worker; TorchRL terminates the others when one has ended.
        """
        worker = min(ended, key=lambda each: ended[each] == -signal.SIGTERM)
        code, file = ended[worker], Path(self.reports.name, str(worker))
        report = file.read_text(encoding="utf-8", errors="replace").strip() if file.exists() else ""
        if report and code == DivergedError.exit_code:
            return DivergedError(report)
        how = "failed" if report else f"ended with exit code {code}"
        if code < 0:
            memory = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
            how = f"was killed by {signal.Signals(-code).name}{memory}"
        elif report.startswith("Timeout"):
            limit = f"collector.worker_timeout={self.worker_timeout:g}"
            how = f"took longer than {limit} seconds to start or for a batch"
        return WorkerError(f"{self.name(worker)} {how}" + (f":\n{report}" if report else ""))

    def name(self, worker: int) -> str:
        """What a message calls a worker."""
        return f"worker {worker} (process {self.procs[worker].pid})"


class SyncWorkers(Watched, MultiSyncCollector):
    """TorchRL's collector whose workers wait for each other."""


class AsyncWorkers(Watched, MultiAsyncCollector):
    """TorchRL's collector whose workers never wait for each other."""

    @property
    def _queue_len(self) -> int:
        """Room for a batch of each: one that finds none for a second is thrown away and collected anew."""
        return self.num_workers
