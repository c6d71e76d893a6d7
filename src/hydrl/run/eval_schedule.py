"""When a run is evaluated: in the training loop, or in the background while training goes on."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from torchrl.checkpoint import GlobalRNGState

from hydrl import metric_names
from hydrl.errors import Interrupted, WorkerError
from hydrl.run.eval_process import EvalBackend, play_snapshot
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream, preserve_rng
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock

POLL_SECONDS = 0.5  # between two checks for signals while an evaluation is awaited


class EvalSchedule:
    """Evaluations every so many frames.

    Without a backend each is played in the loop when it is due. With one it is played in the background, with
    the weights and statistics of that moment, one at a time: if the next is due, training waits for it. After
    one that solved the task, training waits for the next too, because the run may end with it.

    Args:
        evaluator: plays the episodes.
        progress: the run's counters, which get the results.
        clock: the run's.
        every: frames between evaluations.
        episodes: of each evaluation.
        final_episodes: of the final evaluation.

    Attributes:
        backend: plays evaluations in the background; ``None`` plays them in the loop.
        on_result: called for each late result, with its frames, its mean return and whether it was the last
            one pending: so that the checkpoint of its frames and the log get it.
        pending: snapshots whose evaluation is not over, oldest first.
        is_playing: whether the backend plays the first of them.
    """

    def __init__(
        self,
        evaluator: PolicyEvaluator,
        progress: Progress,
        clock: Clock,
        every: int,
        episodes: int,
        final_episodes: int,
    ) -> None:
        self.evaluator, self.progress, self.clock = evaluator, progress, clock
        self.every, self.episodes, self.final_episodes = every, episodes, final_episodes
        self.backend: EvalBackend | None = None
        self.on_result: Sequence[Callable[[int, float, bool], object]] = ()
        self.pending: list[dict[str, Any]] = []
        self.is_playing = False

    def maybe_start(self) -> bool:
        """Plays an evaluation if one is due, or hands it to the backend; returns whether one is due."""
        if due := self.progress.due(self.every):
            if self.backend is None:
                self.evaluate_now()
            else:
                self.set_pending([*self.pending, self.snapshot()])
        return due

    def evaluate_now(self) -> None:
        """Plays an evaluation in the loop."""
        try:
            with self.clock.timeit(metric_names.EVALUATING):
                evaluation = self.evaluator(self.progress.frames, self.episodes)
        except Interrupted:  # it is played when the run is resumed, and saved as if it had been pending
            self.set_pending([self.snapshot()])
        else:
            self.progress.evaluated(evaluation, self.clock.elapsed)

    def evaluate_final(self, frames: int) -> Evaluation:
        """The final evaluation, in the loop and on seeds of its own; see :class:`PolicyEvaluator`."""
        with self.clock.timeit(metric_names.EVALUATING):
            return self.evaluator(frames, self.final_episodes, SeedStream.FINAL)

    def join(self, check_stop: Callable[[], object]) -> None:
        """Collects a result that is ready; waits for it where the next is pending or the run may end.

        Everything that can fail does so here, between two batches and after the log row is written. Without a
        backend only a resumed run has evaluations to play here.

        Args:
            check_stop: raises where the run is to end, see :meth:`hydrl.run.process.Stop.check`; called twice
                a second while an evaluation is awaited.
        """
        if self.backend is None:
            return self.play_pending(check_stop)
        if self.is_playing and self.backend.poll():
            self.receive()
        with self.clock.timeit(metric_names.EVALUATING):
            self.send_next()
            while len(self.pending) > self.max_pending:
                if self.backend.poll(POLL_SECONDS):
                    self.receive()
                    self.send_next()
                else:
                    check_stop()

    def play_pending(self, check_stop: Callable[[], object]) -> None:
        """Plays in the loop what an earlier process left pending."""
        while self.pending:
            check_stop()
            now = self.snapshot()
            with self.clock.timeit(metric_names.EVALUATING), preserve_rng():
                self.collect_result(play_snapshot(self.evaluator, self.pending[0]))
            self.evaluator.actor.load_state_dict(now["actor"])

    @property
    def max_pending(self) -> int:
        """How many evaluations may be pending while training goes on."""
        progress = self.progress
        may_end = not progress.batches_left or (progress.stop_when_solved and progress.reached)
        return 0 if may_end else 1

    def send_next(self) -> None:
        """Sends the next snapshot to an idle backend; the first waits until its process has started."""
        if self.backend is None or self.is_playing or not self.pending:
            return
        self.backend.send(self.pending[0])
        self.is_playing = True

    def receive(self) -> None:
        """Takes the backend's result.

        Raises:
            WorkerError: where the evaluation failed, or its process ended.
        """
        assert self.backend is not None
        result = self.backend.receive()
        self.is_playing = False
        if isinstance(result, str):
            frames = self.pending[0]["frames"]
            raise WorkerError(f"the evaluation after {frames:,} frames failed: {result}")
        self.collect_result(result)

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides an evaluation of this moment, copied: plain data and tensors."""
        return {
            "frames": self.progress.frames,
            "episodes": self.episodes,
            "actor": deepcopy(self.evaluator.actor.state_dict()),
            "normaliser": self.evaluator.normaliser(),
            "rng": GlobalRNGState().state_dict(),
        }

    def collect_result(self, evaluation: Evaluation) -> None:
        """Enters the result of the oldest pending evaluation in checkpoint, counters and log."""
        frames, *later = [snapshot["frames"] for snapshot in self.pending]
        self.progress.evaluated(evaluation, self.clock.elapsed, frames)
        self.set_pending(self.pending[1:])
        for listener in self.on_result:
            listener(frames, evaluation.mean, not later)

    def set_pending(self, snapshots: list[dict[str, Any]]) -> None:
        """Replaces the pending evaluations, and tells the counters."""
        self.pending = snapshots
        self.progress.awaited = [snapshot["frames"] for snapshot in snapshots]

    def state_dict(self) -> dict[str, Any]:
        """The pending evaluations, with the weights they are played with."""
        return {"asked": self.pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Those of :meth:`state_dict` are played when :meth:`join` is called."""
        self.set_pending(state["asked"])

    def close(self) -> None:
        """Ends the backend, whatever it is doing, and closes the evaluator."""
        if self.backend is not None:
            self.backend.close()
        self.evaluator.close()
