"""When a run is evaluated: in the training loop, or in the background while training goes on."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from typing import Any

from torchrl.checkpoint import GlobalRNGState

from hydrl import metric_names
from hydrl.envs.evaluation import join_evaluations
from hydrl.errors import Interrupted, WorkerError, warn_once
from hydrl.run.eval_process import (
    EvalBackend,
    play_snapshot,
    preserve_policy,
    split_evenly,
    start_helpers,
)
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock

POLL_SECONDS = 0.5  # between two checks for signals while an evaluation is awaited


class EvalSchedule:
    """Evaluations every so many frames.

    Without a backend each is played in the loop when it is due. With one it is played in the background, with
    the weights and statistics of that moment, one at a time: if the next is due, training waits for it.
    Either way the run ends at the same frames with the same weights: if an earlier policy turns out to have
    solved the environment, and fresh episodes confirm it, the run goes back to the checkpoint of that policy.

    Args:
        evaluator: plays the episodes.
        progress: the run's counters, which get the results.
        clock: the run's.
        every: frames between evaluations.
        episodes: of each evaluation.
        final_episodes: of the final evaluation.
        check_stop: raises where the run is to end, see :meth:`hydrl.run.process.Stop.check`; called twice a
            second while an evaluation is awaited.

    Attributes:
        backend: plays evaluations in the background; ``None`` plays them in the loop.
        return_to: goes back to the policy of so many frames, with which the run ends; whether it could.
        on_result: called for each late result, with its frames, its score and whether it was the last one
            pending: so that the log and the checkpoint of its frames get it.
        say: prints a line.
        pending: snapshots whose evaluation is not over, oldest first.
        is_playing: whether the backend plays the first of them.
        final: the last final evaluation, with its frames.
    """

    def __init__(
        self,
        evaluator: PolicyEvaluator,
        progress: Progress,
        clock: Clock,
        every: int,
        episodes: int,
        final_episodes: int,
        check_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self.evaluator, self.progress, self.clock, self.check_stop = evaluator, progress, clock, check_stop
        self.every, self.episodes, self.final_episodes = every, episodes, final_episodes
        self.backend: EvalBackend | None = None
        self.return_to: Callable[[int], bool] = lambda frames: False
        self.on_result: Sequence[Callable[[int, float, bool], object]] = ()
        self.say: Callable[[str], None] = print
        self.pending: list[dict[str, Any]] = []
        self.is_playing = False
        self.final: tuple[int, Evaluation] | None = None

    @property
    def ready_backend(self) -> EvalBackend | None:
        """The backend, if it takes evaluations now."""
        return self.backend if self.backend is not None and self.backend.is_ready else None

    def maybe_start(self) -> bool:
        """Plays an evaluation if one is due, or hands it to the backend; returns whether one is due."""
        if due := self.progress.due(self.every):
            if self.ready_backend is None:
                self.evaluate_now()
            else:
                self.set_pending([*self.pending, self.snapshot()])
        return due

    def evaluate_now(self) -> None:
        """Plays an evaluation in the loop."""
        try:
            with self.clock.timeit(metric_names.EVALUATING):
                evaluation = self.evaluator(self.progress.frames, self.episodes)
                evaluation = evaluation.with_values(self.evaluator.measure())
        except Interrupted:  # it is played when the run is resumed, and saved as if it had been pending
            self.set_pending([self.snapshot()])
        else:
            self.progress.evaluated(evaluation, self.clock.elapsed)

    def evaluate_final(self, frames: int) -> Evaluation:
        """The final evaluation, on seeds of its own; see :class:`PolicyEvaluator`.

        Args:
            frames: of the present policy, or those of :attr:`final`.
        """
        if self.final is None or self.final[0] != frames:
            with self.clock.timeit(metric_names.EVALUATING):
                self.final = frames, self.play_final(self.snapshot())
        return self.final[1]

    def play_final(self, snapshot: dict[str, Any]) -> Evaluation:
        """Plays the final evaluation of a snapshot, on all cores that are free."""
        fresh = snapshot | {"episodes": self.final_episodes, "seed_stream": int(SeedStream.FINAL)}
        parts, backend = len(self.evaluator.split(self.final_episodes)), self.backend
        try:
            return self.play_shared(fresh, parts, start_helpers(self.evaluator, parts, backend))
        except WorkerError as error:
            if backend is None or not backend.is_optional:
                raise
            self.drop_backend(error)
            return self.play_shared(fresh, parts, ())

    def play_shared(self, snapshot: dict[str, Any], parts: int, helpers: Sequence[EvalBackend]) -> Evaluation:
        """Plays a snapshot in parts, of which each helper plays as many as this process."""
        own, *shares = split_evenly(parts, 1 + len(helpers))
        with ExitStack() as stack:
            for helper in helpers:
                if helper is not self.backend:
                    stack.enter_context(closing(helper))
            for helper, share in zip(helpers, shares, strict=True):
                helper.send(snapshot | {"parts": [*share]})
            with preserve_policy(self.evaluator):
                evaluations = [play_snapshot(self.evaluator, snapshot | {"parts": [*own]})]
            for helper in helpers:
                while not helper.poll(POLL_SECONDS):
                    self.check_stop()
                evaluations.append(self.result_of(helper, "the final evaluation"))
        return join_evaluations(evaluations)

    def join(self) -> None:
        """Collects a result that is ready; waits for it where the next is pending or training is over.

        Everything that can fail does so here, between two batches and after the log row is written. Without a
        backend only a resumed run has evaluations to play here.
        """
        backend = self.ready_backend
        with self.clock.timeit(metric_names.EVALUATING):
            if backend is None:
                return self.play_pending()
            try:
                self.join_backend(backend)
            except WorkerError as error:
                if not backend.is_optional:
                    raise
                self.drop_backend(error)
                self.play_pending()

    def join_backend(self, backend: EvalBackend) -> None:
        """See :meth:`join`."""
        if self.is_playing and backend.poll():
            self.receive(backend)
        self.send_next(backend)
        while len(self.pending) > (1 if self.progress.batches_left else 0):
            if backend.poll(POLL_SECONDS):
                self.receive(backend)
                self.send_next(backend)
            else:
                self.check_stop()

    def play_pending(self) -> None:
        """Plays in the loop what an earlier process or a lost backend left pending."""
        while self.pending:
            self.check_stop()
            with preserve_policy(self.evaluator):
                evaluation = play_snapshot(self.evaluator, self.pending[0])
            self.collect_result(evaluation)

    def send_next(self, backend: EvalBackend) -> None:
        """Sends the next snapshot to an idle backend."""
        if self.pending and not self.is_playing:
            backend.send(self.pending[0])
            self.is_playing = True

    def receive(self, backend: EvalBackend) -> None:
        """Takes the backend's result.

        Raises:
            WorkerError: where the evaluation failed, or its process ended.
        """
        evaluation = self.result_of(backend, f"the evaluation after {self.pending[0]['frames']:,} frames")
        self.is_playing = False
        self.collect_result(evaluation)

    def result_of(self, backend: EvalBackend, name: str) -> Evaluation:
        """The evaluation that a backend has played; ``name`` is for the error where it failed."""
        result = backend.receive()
        if isinstance(result, str):
            raise WorkerError(f"{name} failed: {result}")
        return result

    def drop_backend(self, error: WorkerError) -> None:
        """Ends a backend that failed; the loop evaluates from now on."""
        if self.backend is not None:
            summary, *traceback = str(error).splitlines()
            warn_once(f"{summary}{''.join(traceback[-1:])}; evaluations go on in the training loop")
            self.backend.close()
        self.backend, self.is_playing = None, False

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides an evaluation of this moment, copied: plain data and tensors."""
        snapshot = {
            "frames": self.progress.frames,
            "episodes": self.episodes,
            "actor": deepcopy(self.evaluator.actor.state_dict()),
            "normaliser": self.evaluator.normaliser(),
            "rng": GlobalRNGState().state_dict(),
        }
        return snapshot | ({"values": values} if (values := self.evaluator.measure()) else {})

    def collect_result(self, evaluation: Evaluation) -> None:
        """Enters the result of the oldest pending evaluation in counters, log and checkpoint."""
        snapshot, *later = self.pending
        frames, progress = snapshot["frames"], self.progress
        is_earlier = frames < progress.frames  # else the loop confirms it
        reached = progress.stop_when_solved and progress.reaches_threshold(evaluation)
        fresh = self.play_final(snapshot) if is_earlier and reached else None
        if fresh is not None and progress.reaches_threshold(fresh) and self.return_to(frames):
            self.final, later = (frames, fresh), []
        progress.evaluated(evaluation, self.clock.elapsed, frames)
        if fresh is not None:
            progress.confirm(fresh, self.say)
        self.set_pending(later)
        score = evaluation.mean if fresh is None else fresh.mean
        for notify in self.on_result:
            notify(frames, score, not later)

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
