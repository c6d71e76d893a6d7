"""Processes that collect: what each notes of itself, and how the run learns that one died or hangs.

TorchRL's collectors over processes lose the reason a worker died for, or wait for it for ever.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from tensordict import TensorDictBase
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector

from hydrl.errors import WorkerError

TICK = 0.5  # seconds between two looks at the workers while the run waits for them
SHUTDOWN = 5.0  # seconds workers are given to close their environments before they are killed
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def note(folder: Path, worker: int, kind: str) -> Path:
    """A file about one worker.

    ``busy`` is there, newly written, while it starts or collects a batch; ``report`` says why it failed;
    ``stack`` is where its Python was when it crashed or was asked.
    """
    return folder / f"{worker}.{kind}"


class WorkerCollector(Collector):
    """TorchRL's collector as it runs in a worker, which notes what it does.

    Args:
        folder: of its notes.
        worker_idx: its number, from 0.
        *args, **kwargs: TorchRL's own.
    """

    def __init__(self, *args: Any, folder: Path, worker_idx: int, **kwargs: Any) -> None:
        die_with_parent()
        self.note = partial(note, folder, worker_idx)
        self.name = f"worker {worker_idx} (process {os.getpid()})"
        self.stack = self.note("stack").open("ab")
        faulthandler.enable(self.stack, all_threads=False)
        faulthandler.register(signal.SIGUSR1, self.stack, all_threads=False)
        with self.busy():
            super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches, each noted while it is collected."""
        batches = super().iterator()
        while True:
            with self.busy():
                batch = next(batches)
            yield batch

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Notes that the worker is busy, and why it fails if it does."""
        self.note("busy").touch()
        try:
            yield
        except BaseException:
            draft = self.note("draft")
            draft.write_text(f"{self.name} failed:\n{traceback.format_exc()}")
            draft.rename(self.note("report"))  # at once, so that nobody reads half of it
            raise SystemExit(1) from None  # of which multiprocessing prints nothing
        finally:
            self.note("busy").unlink(missing_ok=True)


def die_with_parent() -> None:
    """Ends this process when its parent ends, however that happens and whatever this one is doing."""
    if sys.platform == "linux":  # by the kernel, since the thread below cannot run while C code holds the GIL
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class WorkerLost(BaseException):
    """A :class:`WorkerError` on its way out of TorchRL, which swallows an ``Exception`` and waits on."""


class Watched:
    """Makes TorchRL's collector over processes notice within seconds that a worker died or hangs.

    The signal ``SIGALRM`` breaks whatever TorchRL waits in, so it must wait in the main thread.

    Args:
        worker_timeout: seconds of waiting that a worker may take to start, or to collect one batch.
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
        self.notes = Path(tempfile.mkdtemp(prefix="hydrl-workers-"))
        self.remove_notes = weakref.finalize(self, shutil.rmtree, self.notes, ignore_errors=True)
        self.watching = False
        self.looked = time.monotonic()
        self.ended: set[int] = set()
        self.waited: dict[int, tuple[int, float]] = {}
        self.asked: set[tuple[int, int]] = set()
        # Workers inherit the mask: Ctrl-C goes to every process of the terminal, and is the run's to answer.
        resource_tracker.ensure_running()  # whose start would lift the mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self.watch():
                collector_class = partial(WorkerCollector, folder=self.notes)
                super().__init__(*args, collector_class=collector_class, **options)  # type: ignore[call-arg]
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
                batch = next(batches, None)
            if batch is None:
                return
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
            self.remove_notes()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Looks at the workers at every tick, and where TorchRL fails because of one of them, says so."""

        def tick(signum: int, frame: FrameType | None) -> None:
            self.look()

        self.watching = True
        handler = signal.signal(signal.SIGALRM, tick)
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
        """Raises what ``stop`` does, or :class:`WorkerLost` for a worker that failed, ended or hangs."""
        if signal.SIGINT in signal.sigpending():  # blocked while workers start
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if self.stop:
            self.stop()
        now = time.monotonic()
        # While the run does something else, or is suspended, hardly any of the time counts as waiting.
        passed, self.looked = min(now - self.looked, 2 * TICK), now
        procs = list(enumerate(getattr(self, "procs", [])))
        for worker, _ in procs:
            if (report := note(self.notes, worker, "report")).exists():
                raise WorkerLost(report.read_text().strip())
        for worker, proc in sorted(procs, key=lambda each: exit_code(each[1]) == -signal.SIGTERM):
            if exit_code(proc) is not None:
                # Told at the second look: a signal to the whole process group reaches `stop` first. TorchRL
                # terminates the others when one has ended, so those come last.
                if worker in self.ended:
                    raise WorkerLost(self.epitaph(worker, proc))
                self.ended.add(worker)
            else:
                self.check_pace(worker, proc, passed)

    def epitaph(self, worker: int, proc: Any) -> str:
        """How a worker ended that could not report it."""
        code = proc.exitcode
        if code >= 0:
            return f"worker {worker} (process {proc.pid}) ended by itself with exit code {code}"
        told = f"worker {worker} (process {proc.pid}) was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            told += ", as the system does when memory runs out"
        stack = self.stack(worker)
        return f"{told} in:\n{stack}" if stack else told

    def check_pace(self, worker: int, proc: Any, passed: float) -> None:
        """Adds ``passed`` seconds to those waited for a busy worker; raises when they are too many."""
        try:
            since = note(self.notes, worker, "busy").stat().st_mtime_ns
        except FileNotFoundError:
            since = 0 if note(self.notes, worker, "stack").exists() else -1  # idle, or not there yet
        before, waited = self.waited.get(worker, (since, 0.0))
        waited = waited + passed if since and since == before else 0.0
        self.waited[worker] = since, waited
        if waited <= self.worker_timeout:
            return
        if (worker, since) not in self.asked:  # answered by the next tick
            self.asked.add((worker, since))
            if since > 0:
                os.truncate(note(self.notes, worker, "stack"), 0)
                os.kill(proc.pid, signal.SIGUSR1)
            return
        told = (
            f"worker {worker} (process {proc.pid}) has not delivered for {waited:.0f} s, longer than "
            f"collector.worker_timeout={self.worker_timeout:g}; it "
        )
        stack = self.stack(worker)
        raise WorkerLost(told + (f"is in:\n{stack}" if stack else "is still starting Python"))

    def stack(self, worker: int) -> str:
        """Where Python was in a worker that crashed or was asked, down to what this file called."""
        file = note(self.notes, worker, "stack")
        text = file.read_text(errors="replace") if file.exists() else ""
        for rest in (f'File "{__file__}"', "Extension modules:"):
            text = text.partition(rest)[0].rstrip()
        return text


def exit_code(proc: Any) -> int | None:
    """Of a process that ended; ``None`` for one that lives, or that TorchRL has closed."""
    try:
        return proc.exitcode
    except ValueError:
        return None


class SyncWorkers(Watched, MultiSyncCollector):
    """TorchRL's collector whose workers wait for each other."""


class AsyncWorkers(Watched, MultiAsyncCollector):
    """TorchRL's collector whose workers never wait."""
