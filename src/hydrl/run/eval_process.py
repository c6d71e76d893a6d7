"""Evaluations beside training, in a process of their own."""

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

ENDING = 5.0  # seconds in which a process whose pipe is closed has ended


class Beside(Protocol):
    """What plays evaluations, one at a time, while this process goes on.

    A *moment* is what :meth:`hydrl.run.eval_schedule.Looks.moment` gives.
    """

    def send(self, moment: dict[str, Any]) -> None:
        """Has an evaluation played; raises ``WorkerError`` where that is lost that plays it."""

    def poll(self, seconds: float = 0.0) -> bool:
        """Waits so long until the evaluation is over, or what plays it is lost; whether it is."""

    def receive(self) -> Evaluation | str:
        """The evaluation, or why there is none; raises as :meth:`send`."""

    def close(self) -> None:
        """Ends what plays, whatever it is at."""


class InAProcess:
    """A process of this machine.

    Args:
        evaluate: that process has an evaluator like this one.
        stop: as of :class:`hydrl.contrib.ray.evaluation.OnRay`; this one starts at once.
    """

    def __init__(self, evaluate: PolicyEvaluator, stop: Callable[[], object] | None = None) -> None:
        with worker_context(blocked_signals=STOP_SIGNALS) as context:  # which then ends it
            self.pipe, theirs = context.Pipe()
            given = CloudpickleWrapper(to_send(evaluate)), torch.get_num_threads(), dict(os.environ)
            self.process = context.Process(target=answer, args=(theirs, *given), daemon=True)
            self.process.start()
        theirs.close()

    def send(self, moment: dict[str, Any]) -> None:
        """See :class:`Beside`; the first time this waits until the process has started."""
        try:
            self.pipe.send_bytes(pickle.dumps(moment))
        except OSError:
            raise self.ended() from None

    def poll(self, seconds: float = 0.0) -> bool:
        """See :class:`Beside`."""
        return self.pipe.poll(seconds)

    def receive(self) -> Evaluation | str:
        """See :class:`Beside`."""
        try:
            came: Evaluation | str = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self.ended() from None
        return came

    def ended(self) -> WorkerError:
        """How the process ended."""
        self.process.join(ENDING)
        code = self.process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            memory = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
            how = f"was killed by {signal.Signals(-code).name}{memory}"
        return WorkerError(f"the process that evaluates (process {self.process.pid}) {how}")

    def close(self) -> None:
        """Ends the process, whatever it is at."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def to_send(evaluate: PolicyEvaluator) -> PolicyEvaluator:
    """One for another process, without the statistics, which look into the environment of this one."""
    there = copy(evaluate)
    there.normaliser = dict
    return there


def prepare(threads: int) -> None:
    """Everything that is set in the process that evaluates."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(threads)


def answer(pipe: Connection, evaluator: CloudpickleWrapper, threads: int, environ: dict[str, str]) -> None:
    """Runs in the process that evaluates: plays what it is asked for, one after another."""
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.update(environ)  # of now; what this is a copy of has that of an earlier run
    prepare(threads)
    with suppress(EOFError):  # the run has ended
        while True:
            pipe.send_bytes(pickle.dumps(played(evaluator.fn, pickle.loads(pipe.recv_bytes()))))


def played(evaluate: PolicyEvaluator, asked: dict[str, Any]) -> Evaluation | str:
    """An evaluation, or why there is none."""
    try:
        return play(evaluate, asked)
    except (UserError, RunError) as error:
        return str(error)
    except Exception:
        return f"\n{traceback.format_exc().strip()}"


def play(evaluate: PolicyEvaluator, asked: dict[str, Any]) -> Evaluation:
    """Plays an evaluation of the snapshot by :meth:`hydrl.run.eval_schedule.Looks.moment`."""
    there = copy(evaluate)  # with the same environments
    there.normaliser = lambda: asked["normaliser"]
    there.actor.load_state_dict(asked["actor"])
    GlobalRNGState().load_state_dict(asked["rng"])
    return there.play(asked["frames"], asked["episodes"], SeedStream.TRAINING)
