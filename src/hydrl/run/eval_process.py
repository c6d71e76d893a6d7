"""Background evaluations in a process of this machine."""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from itertools import pairwise
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Protocol

import torch
from torchrl.checkpoint import GlobalRNGState
from torchrl.data.utils import CloudpickleWrapper

from hydrl.config.auto_values import count_cores
from hydrl.errors import RunError, UserError, WorkerError, warn_once
from hydrl.experience.forkserver import STOP_SIGNALS, worker_context
from hydrl.library_setup import quieten_libraries, remember_missing_packages
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream, preserve_rng

JOIN_SECONDS = 5.0  # in which a process whose pipe is closed has ended


class EvalBackend(Protocol):
    """What plays evaluations in the background, one at a time.

    A *snapshot* is what :meth:`hydrl.run.eval_schedule.EvalSchedule.snapshot` returns.

    Attributes:
        is_optional: whether the training loop plays what this backend cannot play.
    """

    is_optional: bool

    @property
    def is_ready(self) -> bool:
        """Whether it takes evaluations now; the training loop plays them until it does."""

    def send(self, snapshot: dict[str, Any]) -> None:
        """Starts an evaluation; raises ``WorkerError`` where the process that plays it is lost."""

    def poll(self, seconds: float = 0.0) -> bool:
        """Waits up to ``seconds`` until the evaluation is over or its process is lost; whether it is."""

    def receive(self) -> Evaluation | str:
        """The evaluation, or why it failed; raises as :meth:`send`."""

    def close(self) -> None:
        """Ends the process, whatever it is doing."""


def start_eval_process(
    evaluator: PolicyEvaluator, *, stop: Callable[[], object] | None = None, is_optional: bool = False
) -> "EvalProcess | None":
    """Starts an :class:`EvalProcess`; ``None`` where the policy or its environment cannot be sent to one."""
    try:
        return EvalProcess(evaluator, is_optional=is_optional)
    except Exception as error:  # whatever a class of the user's own raises when it is pickled
        if not is_optional:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            warn_once(f"eval.backend=process: evaluates inline, as no process can be started: {reason}")
        return None


class EvalProcess:
    """An evaluation backend in a process of this machine.

    Args:
        evaluator: the process gets a copy of it.
        is_optional: starts it while training goes on; the training loop evaluates until it is ready.

    Attributes:
        starter: a thread that starts the process, which waits for the imports of Python's forkserver;
            ``None`` where it was started at once.
        is_idle: whether it has played an evaluation and waits for the next one.
    """

    def __init__(self, evaluator: PolicyEvaluator, *, is_optional: bool = False) -> None:
        self.is_optional, self.is_closed, self.is_idle = is_optional, False, False
        content = pickle.dumps(CloudpickleWrapper(portable(evaluator)))  # before any weight changes
        with worker_context(blocked_signals=STOP_SIGNALS) as context:  # which then ends it
            self.pipe, self.child_pipe = context.Pipe()
            arguments = self.child_pipe, content, torch.get_num_threads(), dict(os.environ)
            self.process = context.Process(target=serve_evaluations, args=arguments, daemon=True)
            self.starter = Thread(target=self.try_to_start, daemon=True) if is_optional else None
            self.starter.start() if self.starter else self.start()

    def start(self) -> None:
        """Starts the process and leaves its end of the pipe to it."""
        self.process.start()
        self.child_pipe.close()

    def try_to_start(self) -> None:
        """Starts the process in a thread; if that fails it is never ready, and the loop evaluates."""
        with suppress(Exception):
            self.start()
            if self.is_closed:
                self.process.kill()

    @property
    def is_ready(self) -> bool:
        """See :class:`EvalBackend`."""
        return self.process.pid is not None and not (self.starter and self.starter.is_alive())

    def send(self, snapshot: dict[str, Any]) -> None:
        """See :class:`EvalBackend`."""
        self.is_idle = False
        try:
            self.pipe.send_bytes(pickle.dumps(snapshot))
        except OSError:
            raise self.exit_error() from None

    def poll(self, seconds: float = 0.0) -> bool:
        """See :class:`EvalBackend`."""
        return self.pipe.poll(seconds)

    def receive(self) -> Evaluation | str:
        """See :class:`EvalBackend`."""
        try:
            result: Evaluation | str = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self.exit_error() from None
        self.is_idle = True
        return result

    def exit_error(self) -> WorkerError:
        """The error that says how the process ended."""
        self.process.join(JOIN_SECONDS)
        code = self.process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            memory = ", as the system does if memory runs out" if code == -signal.SIGKILL else ""
            how = f"was killed by {signal.Signals(-code).name}{memory}"
        return WorkerError(f"the evaluation process {self.process.pid} {how}")

    def close(self) -> None:
        """See :class:`EvalBackend`; a process that is still starting ends once it has started."""
        self.is_closed = True
        self.pipe.close()
        if self.is_idle:  # it ends by itself; Python would report the locks of a killed one as leaked
            self.process.join(JOIN_SECONDS)
        if self.is_ready:
            self.process.kill()
            self.process.join()


def start_helpers(evaluator: PolicyEvaluator, parts: int, backend: EvalBackend | None) -> "list[EvalProcess]":
    """Processes that play parts of an evaluation beside this one: ``backend``, and new ones for more cores.

    Args:
        evaluator: of the policy.
        parts: how many parts there are.
        backend: of the run; where it is no :class:`EvalProcess` that is ready, there are none.
    """
    cores = count_cores() // torch.get_num_threads()
    if not isinstance(backend, EvalProcess) or not backend.is_ready or min(parts, cores) < 2:
        return []
    return [backend, *(EvalProcess(evaluator) for _ in range(min(parts, cores) - 2))]


def portable(evaluator: PolicyEvaluator) -> PolicyEvaluator:
    """A copy for another process, without environments, and statistics that refer to one."""
    remote = copy(evaluator)
    remote.normaliser, remote.measure, remote.envs, remote.last = dict, dict, {}, None
    return remote


def prepare(threads: int) -> None:
    """Sets up libraries and threads in the process that evaluates."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(threads)


def serve_evaluations(pipe: Connection, content: bytes, threads: int, environ: dict[str, str]) -> None:
    """Runs in the process that evaluates: plays each snapshot it receives.

    Args:
        pipe: to the run.
        content: the evaluator, pickled.
        threads: of PyTorch.
        environ: environment variables of the run.
    """
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.update(environ)  # this process is a copy of one that has those of an earlier run
    prepare(threads)
    evaluator: PolicyEvaluator = pickle.loads(content).fn
    with suppress(EOFError):  # the run has ended
        while True:
            pipe.send_bytes(pickle.dumps(try_snapshot(evaluator, pickle.loads(pipe.recv_bytes()))))


def try_snapshot(evaluator: PolicyEvaluator, snapshot: dict[str, Any]) -> Evaluation | str:
    """The evaluation of a snapshot, or why it failed."""
    try:
        return play_snapshot(evaluator, snapshot)
    except (UserError, RunError) as error:
        return str(error)
    except Exception:
        return f"\n{traceback.format_exc().strip()}"


def play_snapshot(evaluator: PolicyEvaluator, snapshot: dict[str, Any]) -> Evaluation:
    """Plays the evaluation of a snapshot by :meth:`hydrl.run.eval_schedule.EvalSchedule.snapshot`."""
    player = copy(evaluator)  # with the same environments
    player.normaliser = lambda: snapshot["normaliser"]
    player.actor.load_state_dict(snapshot["actor"])
    GlobalRNGState().load_state_dict(snapshot["rng"])
    seed_stream = snapshot.get("seed_stream", SeedStream.TRAINING)
    evaluation = player.play(snapshot["frames"], snapshot["episodes"], seed_stream, snapshot.get("parts"))
    return evaluation.with_values(snapshot.get("values", {}))


@contextmanager
def preserve_policy(evaluator: PolicyEvaluator) -> Iterator[None]:
    """Context manager that restores the policy's weights and all global random generators."""
    weights = deepcopy(evaluator.actor.state_dict())
    try:
        with preserve_rng():
            yield
    finally:
        evaluator.actor.load_state_dict(weights)


def split_evenly(count: int, shares: int) -> list[range]:
    """The numbers up to ``count`` in so many ranges of about the same length."""
    bounds = (count * share // shares for share in range(shares + 1))
    return [range(first, end) for first, end in pairwise(bounds)]
