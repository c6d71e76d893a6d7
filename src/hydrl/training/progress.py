"""A run's progress: counters, what is due, and the best score."""

from collections.abc import Callable
from math import inf
from typing import Any

from hydrl.training.evaluator import Evaluation

COUNTERS = ["frames", "before", "updates", "evaluated_at", "score", "best", "best_at", "earlier"]
COUNTERS += ["solved_at_frames", "solved_at_seconds"]


class Progress:
    """Counts frames and updates, knows what is due and how well the policy did.

    Args:
        batches: of the whole run.
        frames_per_batch: of the collector.
        solved_return: mean return that counts as solved; ``None`` where there is none.
        stop_when_solved: whether the run ends once it has.

    Attributes:
        frames: environment frames so far.
        updates: steps of the optimizer so far.
        evaluation: the last one.
        evaluated_at: frames of the policy that was evaluated.
        awaited: frames of the policies with pending evaluations, in order.
        score: mean return of that policy, see :meth:`confirmed`.
        best: the highest score.
        best_at: frames at the best score.
        earlier: these two before the last evaluation.
        solved_at_frames: frames at the first evaluation at or above the threshold.
        solved_at_seconds: seconds from the run's beginning to it.
        resumed_at: frames at which the run was resumed.
    """

    def __init__(
        self, batches: int, frames_per_batch: int, solved_return: float | None, stop_when_solved: bool = False
    ) -> None:
        self.batches, self.frames_per_batch = batches, frames_per_batch
        self.solved_return, self.stop_when_solved = solved_return, stop_when_solved
        self.frames = self.before = self.updates = 0
        self.evaluation: Evaluation | None = None
        self.evaluated_at: int | None = None
        self.awaited: list[int] = []
        self.score: float | None = None
        self.best: float | None = None
        self.best_at: int | None = None
        self.earlier: tuple[float | None, int | None] = (None, None)
        self.solved_at_frames: int | None = None
        self.solved_at_seconds: float | None = None
        self.resumed_at: list[int] = []

    @property
    def batches_left(self) -> int:
        """Batches still to come."""
        return max(0, self.batches - self.frames // self.frames_per_batch)

    @property
    def total_frames(self) -> int:
        """Frames of the whole run."""
        return self.batches * self.frames_per_batch

    def due(self, every: int) -> bool:
        """Whether the last batch reached or passed a multiple of ``every`` frames."""
        return crossed(every, self.before, self.frames)

    def collected(self, batch_frames: int) -> None:
        """Adds a fresh batch."""
        self.before, self.frames = self.frames, self.frames + batch_frames

    def learned(self, batch_updates: int) -> None:
        """Adds the updates on a batch."""
        self.updates += batch_updates

    def evaluated(self, evaluation: Evaluation, seconds: float, frames: int | None = None) -> None:
        """Adds an evaluation, finished ``seconds`` after the run began.

        Args:
            evaluation: of the current policy, or of an earlier one if ``frames`` is given.
            seconds: when it was finished.
            frames: of training of the evaluated policy.
        """
        self.evaluation, self.evaluated_at = evaluation, self.frames if frames is None else frames
        self.earlier = self.best, self.best_at
        self.set_score(evaluation)
        if self.reached and self.solved_at_frames is None:
            self.solved_at_frames, self.solved_at_seconds = self.evaluated_at, seconds

    def set_score(self, evaluation: Evaluation) -> None:
        """Sets the score of the policy that was evaluated last."""
        self.score = evaluation.mean
        if self.best is None or self.score > self.best:
            self.best, self.best_at = self.score, self.evaluated_at

    @property
    def improved(self) -> bool:
        """Whether the current policy has the best score, or may have once its evaluation is finished."""
        return self.frames in (self.best_at, *self.awaited)

    @property
    def known_before(self) -> float:
        """Frames before which every evaluation is finished."""
        return min(self.awaited, default=inf)

    @property
    def evaluation_now(self) -> Evaluation | None:
        """The evaluation of the current policy, if there is one."""
        return self.evaluation if self.evaluated_at == self.frames else None

    @property
    def solved(self) -> bool:
        """Whether the current policy's evaluation reaches the threshold."""
        return self.evaluation_now is not None and self.reached

    @property
    def reached(self) -> bool:
        """Whether the last evaluation reaches the threshold, whichever policy it is of."""
        return self.evaluation is not None and self.reaches_threshold(self.evaluation)

    def confirmed(self, evaluate: Callable[[int], Evaluation], say: Callable[[str], None]) -> bool:
        """Whether the run ends here: the current evaluation reaches the threshold, and so do fresh episodes.

        The policy's score is then that of the fresh episodes, which may be lower: the highest of many
        evaluations is partly luck.

        Args:
            evaluate: plays them, given the frames of training.
            say: prints a line if they do not reach it.
        """
        if not (self.stop_when_solved and self.solved):
            return False
        return self.confirm(evaluate(self.frames), say)

    def confirm(self, fresh: Evaluation, say: Callable[[str], None]) -> bool:
        """Scores the policy that was evaluated last by fresh episodes; whether they reach the threshold.

        Args:
            fresh: the evaluation of these episodes.
            say: see :meth:`confirmed`.
        """
        self.best, self.best_at = self.earlier
        self.set_score(fresh)
        solved = self.reaches_threshold(fresh)
        if not solved and (self.batches_left or self.evaluated_at != self.frames):
            episodes = len(fresh.returns)
            mean, threshold = f"{fresh.mean:,.1f}", f"{self.solved_return:,g}"
            say(f"not solved: {episodes} fresh episodes returned {mean}; the threshold is {threshold}")
        return solved

    def reaches_threshold(self, evaluation: Evaluation) -> bool:
        """Whether a mean return counts as solved; never, where no threshold is set."""
        return self.solved_return is not None and evaluation.mean >= self.solved_return

    def state_dict(self) -> dict[str, Any]:
        """Counters and the last evaluation, as plain data."""
        last = self.evaluation
        return {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "evaluation": None
            if last is None
            else (last.returns, last.lengths, last.cut_episodes, last.info, [*map(dict, last.samples)]),
            "resumed_at": self.resumed_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        for name in COUNTERS:  # those that a checkpoint of an earlier version lacks stay as they are
            setattr(self, name, state["counters"].get(name, getattr(self, name)))
        self.evaluation = None if state["evaluation"] is None else Evaluation(*state["evaluation"])
        self.resumed_at = [*state["resumed_at"], self.frames]


def crossed(every: int, before: int, frames: int) -> bool:
    """Whether a multiple of ``every`` lies in ``(before, frames]``; batches need not divide ``every``."""
    return frames // every > before // every
