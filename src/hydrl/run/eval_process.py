"""Background evaluations in a process of this machine."""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from torchrl.checkpoint import GlobalRNGState
from torchrl.data.utils import CloudpickleWrapper

from hydrl.errors import RunError, UserError, WorkerError
from hydrl.experience.forkserver import STOP_SIGNALS, worker_context
from hydrl.library_setup import quieten_libraries, remember_missing_packages
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream

JOIN_SECONDS = 5.0  # in which a process whose pipe is closed has ended


class EvalBackend(Protocol):
    """What plays evaluations in the background, one at a time.

    A *snapshot* is what :meth:`hydrl.run.eval_schedule.EvalSchedule.snapshot` returns.
    """

    def send(self, snapshot: dict[str, Any]) -> None:
        """Starts an evaluation; raises ``WorkerError`` where the process that plays it is lost."""

    def poll(self, seconds: float = 0.0) -> bool:
        """Waits up to ``seconds`` until the evaluation is over or its process is lost; whether it is."""

    def receive(self) -> Evaluation | str:
        """The evaluation, or why it failed; raises as :meth:`send`."""

    def close(self) -> None:
        """Ends the process, whatever it is doing."""


class EvalProcess:
    """An evaluation backend in a process of this machine.

    Args:
        evaluator: the process gets a copy of it.
        stop: called by other backends while they start; this one starts at once.
    """

    def __init__(self, evaluator: PolicyEvaluator, *, stop: Callable[[], object] | None = None) -> None:
        with worker_context(blocked_signals=STOP_SIGNALS) as context:  # which then ends it
            self.pipe, child_pipe = context.Pipe()
            arguments = CloudpickleWrapper(portable(evaluator)), torch.get_num_threads(), dict(os.environ)
            self.process = context.Process(
                target=serve_evaluations, args=(child_pipe, *arguments), daemon=True
            )
            self.process.start()
        child_pipe.close()

    def send(self, snapshot: dict[str, Any]) -> None:
        """See :class:`EvalBackend`; the first call waits until the process has started."""
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
        """See :class:`EvalBackend`."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def portable(evaluator: PolicyEvaluator) -> PolicyEvaluator:
    """A copy for another process, without the statistics, which refer to this process's environment."""
    remote = copy(evaluator)
    remote.normaliser = dict
    return remote


def prepare(threads: int) -> None:
    """Sets up libraries and threads in the process that evaluates."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(threads)


def serve_evaluations(
    pipe: Connection, evaluator: CloudpickleWrapper, threads: int, environ: dict[str, str]
) -> None:
    """Runs in the process that evaluates: plays each snapshot it receives."""
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.update(environ)  # this process is a copy of one that has those of an earlier run
    prepare(threads)
    with suppress(EOFError):  # the run has ended
        while True:
            pipe.send_bytes(pickle.dumps(try_snapshot(evaluator.fn, pickle.loads(pipe.recv_bytes()))))


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
    return player.play(snapshot["frames"], snapshot["episodes"], SeedStream.TRAINING)
