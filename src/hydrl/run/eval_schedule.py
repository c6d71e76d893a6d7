"""When training is looked at: by an evaluation in the loop's turn, or by one beside it, elsewhere."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torchrl.checkpoint import GlobalRNGState

from hydrl.errors import Interrupted, WorkerError
from hydrl.run.checkpoint import archive
from hydrl.run.eval_process import Beside, play
from hydrl.run.logging.run_logger import Record
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, preserve_rng
from hydrl.training.timers import timeit

TICK = 0.5  # seconds between two looks at the signals while an evaluation is waited for


class Looks:
    """Evaluates where that is due, in the loop's turn.

    Args:
        record: the run's, with its counters and clock.
        evaluate: plays the episodes.
        stop: raises where the run is to end, see :meth:`hydrl.run.process.Stop.here`.
    """

    def __init__(self, record: Record, evaluate: PolicyEvaluator, stop: Callable[[], object]) -> None:
        self.record, self.evaluate, self.progress = record, evaluate, record.progress
        self.stop = stop
        self.every, self.episodes = record.settings.eval.every_frames, record.settings.eval.episodes
        self.asked: list[dict[str, Any]] = []  # moments whose evaluation is not over

    def look(self) -> bool:
        """Evaluates if that is due; whether it is."""
        if due := self.progress.due(self.every):
            try:
                evaluation = self.evaluate(self.progress.frames, self.episodes)
            except Interrupted:  # it is played when the run goes on, which is saved as if it had waited
                self.ask([self.moment()])
            else:
                self.progress.evaluated(evaluation, self.record.clock.elapsed)
        return due

    def wait(self) -> None:
        """Plays what is not over, as only a run that was stopped leaves it."""
        while self.asked:
            self.stop()
            now = self.moment()
            with preserve_rng():
                self.take_in(play(self.evaluate, self.asked[0]))
            self.evaluate.actor.load_state_dict(now["actor"])

    def moment(self) -> dict[str, Any]:
        """Copies all that decides how an evaluation of this moment goes; plain data and tensors."""
        return {
            "frames": self.progress.frames,
            "episodes": self.episodes,
            "actor": deepcopy(self.evaluate.actor.state_dict()),
            "normaliser": self.evaluate.normaliser(),
            "rng": GlobalRNGState().state_dict(),
        }

    def take_in(self, evaluation: Evaluation) -> None:
        """Enters the evaluation asked for first in the checkpoint, counters and row of its moment."""
        frames, record = self.asked[0]["frames"], self.record
        keep = record.settings.keep_checkpoints if len(self.asked) == 1 else None
        archive.enter_score(record.directory, frames, evaluation.mean, keep=keep)
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
    """The same elsewhere, with the weights and statistics of the moment when it is due.

    Training goes on meanwhile. One evaluation is played at a time: where the next is due it is waited for, so
    none is left out. After one that solved the task the next is waited for too, for a run may end with it.

    Args:
        record, evaluate: as of :class:`Looks`.
        there: plays what it is sent, with an evaluator like this one.
        stop: called twice a second while an evaluation is waited for; what it raises ends the wait.

    Raises:
        WorkerError: where an evaluation fails, or its process ends.
    """

    def __init__(
        self, record: Record, evaluate: PolicyEvaluator, there: Beside, stop: Callable[[], object]
    ) -> None:
        super().__init__(record, evaluate, stop)
        self.there, self.busy = there, False

    def look(self) -> bool:
        """Asks for an evaluation if that is due; whether it is."""
        if due := self.progress.due(self.every):
            self.ask([*self.asked, self.moment()])
        return due

    def wait(self) -> None:
        """Takes in an evaluation that is over; waits for it where the next is asked for or the run may end.

        All that can fail does here, between two batches and with the log row written.
        """
        if self.busy and self.there.poll():
            self.receive()
        self.hand_over()
        with timeit("time/evaluate"):
            while len(self.asked) > self.may_be_open:
                if self.there.poll(TICK):
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
        with timeit("time/evaluate"):
            self.there.send(self.asked[0])
        self.busy = True

    def receive(self) -> None:
        """Takes in what has come."""
        came = self.there.receive()
        self.busy = False
        if isinstance(came, str):
            raise WorkerError(f"the evaluation after {self.asked[0]['frames']:,} frames failed: {came}")
        self.take_in(came)

    def close(self) -> None:
        """Ends what plays elsewhere, whatever it is at."""
        self.there.close()


def make_looks(record: Record, evaluate: PolicyEvaluator, stop: Callable[[], object]) -> Looks:
    """Those of ``eval.backend``; arguments as of :class:`LooksBeside`."""
    there = record.settings.eval_backend(evaluate, stop=stop)
    return Looks(record, evaluate, stop) if there is None else LooksBeside(record, evaluate, there, stop)
