"""Pipelined collection: a background process collects the next batch while this one learns from the last.

Batch k + 1 is acted wholly by the policy and exploration after update k - 1. Weights go to the process and
statistics of normalizers come back only between batches, by copy, so the same seed gives the same bits.
"""

import ctypes
import faulthandler
import io
import math
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data.utils import CloudpickleWrapper
from torchrl.envs import TransformedEnv

from hydrl.envs.normalization import load_normalizer, normalizer_state, unfreeze_normalizers
from hydrl.errors import DivergedError, RunError, UserError, WorkerError
from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.collectors import Collector, collector_options, make_collector, worker_env
from hydrl.experience.forkserver import STOP_SIGNALS, worker_context
from hydrl.experience.worker_collectors import SHUTDOWN, STARTING, TICK, explain_exit, time_limit
from hydrl.experience.worker_reports import ReportFolder
from hydrl.limits import NonNegativeInt, PositiveFloat, PositiveInt

NUMPY_TYPES = {torch.float16, torch.float32, torch.float64, torch.bool}
NUMPY_TYPES |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass
class Collected:
    """A batch from the collecting process.

    Attributes:
        batch: ``[time]`` or ``[envs, time]``, on the CPU.
        statistics: of the normalizers after it, see :func:`hydrl.envs.normalizer_state`.
    """

    batch: TensorDictBase
    statistics: dict[str, Any]


@dataclass
class Failure:
    """An error of the collecting process, as it is sent.

    Attributes:
        kind: the class of one of hydrl's errors; ``None`` for others.
        text: the message, or the traceback of another error.
        frames: of a ``DivergedError``.
    """

    kind: type[Exception] | None
    text: str
    frames: int = 0


class CollectorServer:
    """The acting side: environments, and a copy of the policy that gets weights between batches.

    Args:
        make_env: builds the environments, see :func:`pipelined_collector`.
        policy: the copy.
        seed: of this process.
        options: of TorchRL's collector.

    Attributes:
        extras: for functions that :meth:`call` calls.
    """

    def __init__(
        self,
        make_env: Callable[..., TransformedEnv],
        policy: TensorDictModuleBase,
        seed: int,
        options: Mapping[str, Any],
    ) -> None:
        self.make_env, self.policy, self.extras = make_env, policy, dict[str, Any]()
        self.env = worker_env(make_env, seed)
        unfreeze_normalizers(self.env)  # running statistics change here and nowhere else
        self.collector = CheckedCollector(self.env, policy, track_traj_ids=False, **options)
        self.batches = iter(self.collector)

    def start(self) -> None:
        """Nothing: the answer says that the environments are built."""

    def collect(self, weights: Mapping[str, Any]) -> Collected:
        """Collects the next batch with ``weights``, a state of the policy."""
        self.policy.load_state_dict(weights)
        self.collector.publish()  # to the opponents in self-play
        return Collected(next(self.batches).to("cpu"), normalizer_state(self.env))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns ``function(server, *args)``."""
        return function(self, *args)


class CollectorProcess:
    """A :class:`CollectorServer` in a background process; it answers one request after the other.

    Args:
        worker_timeout: seconds the process may take to start, or for one request.
        *args: of the server.
    """

    def __init__(self, worker_timeout: float, *args: Any) -> None:
        self.worker_timeout, self.reports, self.sent_at = worker_timeout, ReportFolder(), time.monotonic()
        self.report = Path(self.reports.name, "report")
        with worker_context(blocked_signals=STOP_SIGNALS) as context:
            self.pipe, child_pipe = context.Pipe()
            options = self.report, worker_timeout, dict(os.environ)
            self.process = context.Process(
                target=serve, args=(child_pipe, CloudpickleWrapper(args), *options), daemon=True
            )
            self.process.start()
        child_pipe.close()

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the collecting process {self.process.pid}"

    def send(self, method: str, *args: Any) -> None:
        """Requests a call of the server's ``method``; arguments are copied."""
        self.sent_at = time.monotonic()
        try:
            self.pipe.send_bytes(to_bytes((method, args)))
        except OSError:
            raise self.exit_error() from None

    def poll(self, seconds: float) -> bool:
        """Waits up to ``seconds`` until :meth:`receive` need not wait; returns whether it need not."""
        return self.pipe.poll(seconds)

    def receive(self) -> Any:
        """Waits for the answer.

        Raises:
            UserError, RunError: if the request failed, or the process died or hangs.
        """
        while not self.poll(TICK):
            waited = time.monotonic() - self.sent_at
            if waited > self.worker_timeout + STARTING:  # a process that runs has ended itself by then
                status = psutil.Process(self.process.pid).status()
                raise WorkerError(f"no answer in {waited:.0f} seconds: {self.name} is {status}")
        try:
            answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self.exit_error() from None
        if isinstance(answer, Failure):
            raise to_error(answer, self.name)
        return answer

    def exit_error(self) -> RunError:
        """The error that says how the process ended."""
        self.process.join(SHUTDOWN)
        report = self.report.read_text(encoding="utf-8", errors="replace") if self.report.exists() else ""
        return explain_exit(self.name, self.process.exitcode or 0, report.strip(), self.worker_timeout)

    def close(self) -> None:
        """Ends the process, which has ``SHUTDOWN`` seconds to close its environments."""
        self.pipe.close()
        self.process.join(SHUTDOWN)
        if self.process.is_alive():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    child.kill()
            self.process.kill()
            self.process.join()
        self.reports.cleanup()


def serve(
    pipe: Connection, args: CloudpickleWrapper, report: Path, worker_timeout: float, environ: dict[str, str]
) -> None:
    """Runs in the collecting process: answers requests until the run closes the pipe or ends."""
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the fork server, which ends with the run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    for signum in STOP_SIGNALS:  # the run answers them; handlers are not inherited by programs it starts
        signal.signal(signum, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.environ.update(environ)  # this process is a copy of one that may have those of an earlier run
    with report.open("w", encoding="utf-8", buffering=1) as file:
        faulthandler.enable(file, all_threads=False)
        with time_limit(worker_timeout, file):
            server = attempt(CollectorServer, *args.fn)
        with suppress(EOFError, OSError):
            while True:
                method, arguments = pickle.loads(pipe.recv_bytes())
                with time_limit(worker_timeout, file):
                    failed = isinstance(server, Failure)
                    answer = server if failed else attempt(getattr(server, method), *arguments)
                pipe.send_bytes(to_bytes(answer))
        if not isinstance(server, Failure):
            with suppress(Exception):  # an environment that failed may fail here too
                server.collector.shutdown()
        faulthandler.disable()


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Returns ``function(*args)``, or a :class:`Failure` if it raises."""
    try:
        return function(*args)
    except DivergedError as error:
        return Failure(DivergedError, error.terms, error.frames)
    except (UserError, RunError) as error:
        return Failure(UserError if isinstance(error, UserError) else WorkerError, str(error))
    except BaseException:
        return Failure(None, traceback.format_exc().strip())


def to_error(failure: Failure, name: str) -> Exception:
    """The error to raise in the run for a failure of the process ``name``."""
    if failure.kind is DivergedError:
        return DivergedError(failure.text, failure.frames)
    return failure.kind(failure.text) if failure.kind else WorkerError(f"{name} failed:\n{failure.text}")


class TensorPickler(pickle.Pickler):
    """Pickler that copies tensors as NumPy arrays, on the CPU: ten times as fast as PyTorch's own way."""

    def reducer_override(self, value: Any) -> Any:
        """How a tensor is pickled; everything else as always."""
        if type(value) is torch.Tensor and value.dtype in NUMPY_TYPES:
            return torch.from_numpy, (value.detach().cpu().numpy(),)
        return NotImplemented


def to_bytes(message: Any) -> memoryview:
    """A message, pickled."""
    file = io.BytesIO()
    TensorPickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getbuffer()


class PipelinedCollector:
    """Collector whose next batch is collected in a background process while this one learns.

    Args:
        env: the training environment of this process; of it only the normalizers' statistics are used.
        policy: the actor with its exploration, which learns.
        process: collects.
        device: of the batches.

    Attributes:
        in_flight: the next batch, once it is received.
        frames: of the batches returned so far.
        has_failed: whether the process failed.
    """

    episode_restart_reason: str | None = None
    steps_env = False

    def __init__(
        self, env: TransformedEnv, policy: TensorDictModuleBase, process: CollectorProcess, device: str
    ) -> None:
        self.env, self.policy, self.process, self.device = env, policy, process, device
        self.in_flight: Collected | None = None
        self.frames, self.has_failed = 0, False
        self.process.send("start")
        self.is_busy = True  # the process has a request to answer

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches ``[time]`` or ``[envs, time]``; before it returns one it requests the next."""
        self.wait()
        if self.in_flight is None:
            self.request_batch()
        while True:
            self.wait()
            assert self.in_flight is not None
            batch, statistics = self.in_flight.batch.to(self.device), self.in_flight.statistics
            self.in_flight = None
            self.frames += batch.numel()
            self.load_statistics(statistics)
            self.request_batch()
            yield batch

    def request_batch(self) -> None:
        """Requests a batch by the present policy."""
        with self.noting_failures():
            self.process.send("collect", self.policy.state_dict())
        self.is_busy = True

    def wait(self, seconds: float = math.inf) -> bool:
        """Waits up to ``seconds`` for the batch that is being collected; returns whether there is none left.

        Raises:
            UserError, RunError: if the process failed, died or hangs.
        """
        if self.is_busy and (math.isinf(seconds) or self.process.poll(seconds)):
            with self.noting_failures():
                self.in_flight = self.process.receive()
            self.is_busy = False
        return not self.is_busy

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns ``function(server, *args)``, called in the process between two batches."""
        self.wait()
        with self.noting_failures():
            self.process.send("call", function, *args)
            return self.process.receive()

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Context manager that notes when the process fails, and that its batch is lost then."""
        try:
            yield
        except (UserError, RunError) as error:
            self.has_failed, self.is_busy = True, False
            if isinstance(error, WorkerError):
                error.in_batch = True
            raise

    def publish(self) -> None:
        """Nothing: weights go with the next request."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """The batch in flight, if ``running``, and the statistics; not the state of the process.

        Raises:
            TypeError: for a batch with other entries than tensors.
        """
        in_flight = self.in_flight if running else None
        return {
            "frames": self.frames,
            "normalizer": normalizer_state(self.env),
            "batch": None if in_flight is None else to_plain(in_flight.batch),
            "statistics": {} if in_flight is None else in_flight.statistics,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`, or that of a collector of asynchronous workers, which has frames alone."""
        self.frames = state["frames"]
        self.call(skip_frames, self.frames)
        if "normalizer" in state:
            self.load_statistics(state["normalizer"])
        if state.get("batch") is not None:
            self.in_flight = Collected(from_plain(state["batch"]), state["statistics"])

    def load_statistics(self, statistics: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Loads statistics into the normalizers of this process, for evaluations and checkpoints."""
        moved = {
            position: {name: value.to(self.device) for name, value in values.items()}
            for position, values in statistics.items()
        }
        load_normalizer(self.env, moved)

    def shutdown(self) -> None:
        """Ends the process."""
        self.process.close()


def skip_frames(server: CollectorServer, frames: int) -> None:
    """Sets the frames of a resumed run, so that random actions at the start are not repeated."""
    server.collector.skip_frames(frames)


def to_plain(batch: TensorDictBase) -> dict[str, Any]:
    """A batch as plain containers of tensors, with the batch sizes of nested entries.

    Raises:
        TypeError: for other entries.
    """
    entries = dict[str, Any]()
    for key, value in batch.items():
        if not isinstance(value, torch.Tensor | TensorDictBase):
            raise TypeError(f"{key} ({type(value).__name__})")
        entries[key] = to_plain(value) if isinstance(value, TensorDictBase) else value
    return {"batch_size": [*batch.batch_size], "names": [*batch.names], "entries": entries}


def from_plain(plain: Mapping[str, Any]) -> TensorDict:
    """The batch of :func:`to_plain`, on the CPU."""
    entries = {
        key: from_plain(value) if isinstance(value, Mapping) else value
        for key, value in plain["entries"].items()
    }
    return TensorDict(entries, plain["batch_size"], device="cpu", names=plain["names"])


def auto_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: PositiveInt,
    init_random_frames: NonNegativeInt,
    num_envs: PositiveInt,
    seed: int,
    device: str,
    pipelined: bool | Literal["auto"],
    worker_timeout: PositiveFloat = 120.0,
    stop: Callable[[], None] | None = None,
) -> Collector:
    """Makes a pipelined collector if ``pipelined``, else one in this process.

    ``auto`` is chosen by :meth:`hydrl.config.settings.Settings.resolve_auto`. Other args as of
    :func:`~hydrl.experience.collectors.make_collector`.
    """
    options: dict[str, Any] = {"init_random_frames": init_random_frames, "seed": seed, "device": device}
    options |= {"frames_per_batch": frames_per_batch, "num_envs": num_envs, "stop": stop}
    if pipelined is True:
        return pipelined_collector(env, make_env, policy, worker_timeout=worker_timeout, **options)
    return make_collector(env, make_env, policy, **options)


def pipelined_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: PositiveInt,
    init_random_frames: NonNegativeInt,
    num_envs: PositiveInt,
    worker_timeout: PositiveFloat,
    seed: int,
    device: str,
    stop: Callable[[], None] | None = None,
) -> PipelinedCollector:
    """Makes a pipelined collector, which acts on ``device`` in its process.

    Args as of :func:`~hydrl.experience.collectors.make_collector`. ``stop`` is unused: a signal ends a wait.

    Raises:
        UserError: if the policy cannot play as an opponent in self-play.
    """
    options = collector_options(env, policy, frames_per_batch, init_random_frames, device)
    env.close(raise_if_closed=False)
    process = CollectorProcess(worker_timeout, make_env, policy, seed + 10_000, options)
    return PipelinedCollector(env, policy, process, device)
