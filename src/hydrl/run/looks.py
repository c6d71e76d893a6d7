"""When training is looked at: by an evaluation in the loop's turn, or beside it in a process of its own."""

import ctypes
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import copy, deepcopy
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import torch
from torchrl.checkpoint import GlobalRNGState
from torchrl.data.utils import CloudpickleWrapper

from hydrl.errors import RunError, UserError, WorkerError
from hydrl.loop.clock import timeit
from hydrl.loop.evaluation import Episodes, Evaluation, Evaluator, untouched_randomness
from hydrl.parts.libraries import quieten_libraries, remember_missing_packages
from hydrl.run import checkpoint
from hydrl.run.record import Record

TICK = 0.5  # seconds between two looks at the signals while an evaluation is waited for
ENDING = 5.0  # seconds in which a process whose pipe is closed has ended


class Looks:
    """Evaluates where that is due, in the loop's turn.

    Args:
        record: the run's, with its counters and clock.
        evaluate: plays the episodes.
    """

    def __init__(self, record: Record, evaluate: Evaluator) -> None:
        self.record, self.evaluate, self.progress = record, evaluate, record.progress
        self.every, self.episodes = record.settings.eval.every_frames, record.settings.eval.episodes
        self.asked: list[dict[str, Any]] = []  # moments whose evaluation is not over

    def look(self) -> bool:
        """Evaluates if that is due; whether it is."""
        if due := self.progress.due(self.every):
            evaluation = self.evaluate(self.progress.frames, self.episodes)
            self.progress.evaluated(evaluation, self.record.clock.elapsed)
        return due

    def wait(self) -> None:
        """Plays what is not over, as only a run that evaluated beside and was stopped leaves it."""
        while self.asked:
            now = self.moment()
            with untouched_randomness():
                self.take_in(play(self.evaluate, self.asked[0]))
            self.evaluate.actor.load_state_dict(now["actor"])

    def moment(self) -> dict[str, Any]:
        """Copies all that decides how an evaluation of this moment goes; plain data and tensors."""
        return {
            "frames": self.progress.frames,
            "episodes": self.episodes,
            "actor": deepcopy(self.evaluate.actor.state_dict()),
            "normaliser": self.evaluate.normaliser(),
            "rng": GlobalRNGState().state_dict(),  # in the loop, what draws without a seed draws from these
        }

    def take_in(self, evaluation: Evaluation) -> None:
        """Enters the evaluation asked for first in the checkpoint, counters and row of its moment."""
        frames, record = self.asked[0]["frames"], self.record
        keep = record.settings.keep_checkpoints if len(self.asked) == 1 else None
        checkpoint.enter_score(record.directory, frames, evaluation.mean, keep=keep)
        self.progress.evaluated(evaluation, record.clock.elapsed, frames)
        self.ask(self.asked[1:])
        record.release(self.progress.known_before)

    def ask(self, moments: list[dict[str, Any]]) -> None:
        """Says which evaluations are not over."""
        self.asked, self.progress.awaited = moments, [each["frames"] for each in moments]

    def state_dict(self) -> dict[str, Any]:
        """The evaluations that are not over, with the weights they are played with."""
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Those of :meth:`state_dict` are played when :meth:`wait` is called."""
        self.ask(state["asked"])

    def close(self) -> None:
        """Ends what plays elsewhere."""


class LooksBeside(Looks):
    """The same in a process of its own, with the weights and statistics of the moment when it is due.

    Training goes on meanwhile. One evaluation is played at a time: where the next is due it is waited for, so
    none is left out. After one that solved the task the next is waited for too, for a run may end with it.

    Args:
        record, evaluate: as of :class:`Looks`; that process has an evaluator like this one.
        stop: called twice a second while an evaluation is waited for; what it raises ends the wait.

    Raises:
        WorkerError: where an evaluation fails, or its process ends.
    """

    def __init__(self, record: Record, evaluate: Evaluator, stop: Callable[[], object]) -> None:
        super().__init__(record, evaluate)
        self.stop, there = stop, copy(evaluate)
        self.busy = False
        there.normaliser = dict  # those of this process look into its environment
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        given = theirs, CloudpickleWrapper(there), torch.get_num_threads()
        self.process = context.Process(target=answer, args=given, daemon=True)
        resource_tracker.ensure_running()  # whose start would lift the mask
        # It inherits the mask: a signal to the whole group is the run's to answer, which then ends it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()

    def look(self) -> bool:
        """Asks for an evaluation if that is due; whether it is."""
        if due := self.progress.due(self.every):
            self.ask([*self.asked, self.moment()])
        return due

    def wait(self) -> None:
        """Takes in an evaluation that is over; waits for it where the next is asked for or the run may end.

        All that can fail does here, between two batches and with the log row written.
        """
        if self.busy and self.pipe.poll():
            self.receive()
        self.hand_over()
        with timeit("time/evaluate"):
            while len(self.asked) > self.may_be_open:
                if self.pipe.poll(TICK):
                    self.receive()
                    self.hand_over()
                else:
                    self.stop()

    @property
    def may_be_open(self) -> int:
        """How many evaluations may be under way while training goes on."""
        progress = self.progress
        ends = not progress.batches_left or (progress.stop_when_solved and progress.reached)
        return 0 if ends else 1

    def hand_over(self) -> None:
        """Has the next moment played, if none is; the first time this waits until the process has started."""
        if self.busy or not self.asked:
            return
        try:
            with timeit("time/evaluate"):
                self.pipe.send_bytes(pickle.dumps(self.asked[0]))
        except OSError:
            raise self.ended() from None
        self.busy = True

    def receive(self) -> None:
        """Takes in what has come."""
        try:
            came = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self.ended() from None
        self.busy = False
        if isinstance(came, str):
            raise WorkerError(f"the evaluation after {self.asked[0]['frames']:,} frames failed: {came}")
        self.take_in(came)

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


def make_looks(record: Record, evaluate: Evaluator, stop: Callable[[], object]) -> Looks:
    """Those of ``eval.mode``; arguments as of :class:`LooksBeside`."""
    beside = record.settings.eval.mode == "process"
    return LooksBeside(record, evaluate, stop) if beside else Looks(record, evaluate)


def answer(pipe: Connection, evaluator: CloudpickleWrapper, threads: int) -> None:
    """Runs in the process that evaluates: plays what it is asked for, one after another."""
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: it ends with the run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(threads)
    with suppress(EOFError):  # the run has ended
        while True:
            pipe.send_bytes(pickle.dumps(played(evaluator.fn, pickle.loads(pipe.recv_bytes()))))


def played(evaluate: Evaluator, asked: dict[str, Any]) -> Evaluation | str:
    """An evaluation, or why there is none."""
    try:
        return play(evaluate, asked)
    except (UserError, RunError) as error:
        return str(error)
    except Exception:
        return f"\n{traceback.format_exc().strip()}"


def play(evaluate: Evaluator, asked: dict[str, Any]) -> Evaluation:
    """Plays an evaluation of the moment that was asked for, see :meth:`Looks.moment`."""
    there = copy(evaluate)  # with the same environments
    there.normaliser = lambda: asked["normaliser"]
    there.actor.load_state_dict(asked["actor"])
    GlobalRNGState().load_state_dict(asked["rng"])
    return there.play(asked["frames"], asked["episodes"], Episodes.TRAINING)
