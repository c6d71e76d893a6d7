"""Saves everything that decides how a run continues, and puts it back."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import TransformedEnv

from hydrl.envs import load_normalizer, normalizer_state
from hydrl.errors import DivergedError, Interrupted, RunError, UserError, WorkerError
from hydrl.metric_names import COLLECTING, RETURN_MEAN
from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.env_state import running_episodes
from hydrl.run.checkpoint.fork import changed_states
from hydrl.run.checkpoint.replay_buffer import BufferFiles, BufferSnapshot
from hydrl.run.checkpoint.resume import ResumePoint, describe_changes
from hydrl.run.run_folder import CONFIG, from_here
from hydrl.training.progress import Progress

AGE = 1.0  # seconds; a younger snapshot is near enough to the beginning of a batch
GRACE = 8.0  # seconds that a batch in a collecting process may still take after an interrupt
SHARE = 50  # the next snapshot waits this many times what the last one took
# Components of plain data, in the order they are restored; a checkpoint has them as one, `books`.
COUNTERS = ("progress", "metrics", "clock", "record", "looks")


@dataclass
class Snapshot:
    """A moment between two batches, as a checkpoint will have it.

    Attributes:
        states: copies of all state dictionaries.
        metadata: of the checkpoint, but for the replay buffer.
        rows: of the replay buffer.
    """

    states: Mapping[str, Any]
    metadata: Mapping[str, Any]
    rows: BufferSnapshot | None = None


class Checkpointer:
    """Saves the components of a run as checkpoints, and restores those of an earlier process.

    Args:
        run_dir: the run folder.
        components: of the run, by name, each with a ``state_dict``; ``None`` is left out. ``env`` is saved
            with its normalizers, ``collector`` with the running episodes if it steps ``env``, ``buffer`` with
            its rows, and :data:`COUNTERS` as plain data.
        make_env: makes another environment like ``env``, in which captured states are tried.
        metadata: of each checkpoint: ``settings`` as they are saved, ``data``, ``classes``, ``logger``.
        keep: how many of the newest checkpoints stay.
        say: prints a line.
    """

    progress: Progress

    def __init__(
        self,
        run_dir: Path,
        components: Mapping[str, Any],
        make_env: Callable[[], TransformedEnv],
        metadata: Mapping[str, Any],
        keep: int,
        say: Callable[[str], object],
    ) -> None:
        self.run_dir, self.run_metadata, self.keep, self.say = run_dir, metadata, keep, say
        self.components = {name: own for name, own in components.items() if own is not None}
        self.env, self.collector = self.components.pop("env"), self.components.pop("collector")
        self.counters = {name: self.components.pop(name) for name in COUNTERS}
        self.progress = self.counters["progress"]
        if (buffer := self.components.pop("buffer", None)) is not None:
            self.components |= {"sampler": buffer.sampler, "writer": buffer.writer}
        self.buffer_files = BufferFiles(buffer, run_dir)
        self.episodes = running_episodes(self.env, self.collector, make_env)
        self.saved_at: int | None = None  # frames of the newest checkpoint
        self.snapshot: Snapshot | None = None
        self.solved: Snapshot | None = None  # with which the run ends
        self.snapshot_at = self.snapshot_seconds = 0.0  # when the last was taken, and how long that took

    @contextmanager
    def saved_on_interrupt(self, finish: Callable[..., object]) -> Iterator[None]:
        """Saves where the block is cut short; ``finish(status=...)`` says in the summary how it ended."""
        try:
            yield
        except DivergedError as error:  # the present state is of no use
            finish(status="diverged")
            raise DivergedError(error.terms, error.frames or self.progress.frames, self.saved_at) from None
        except (Interrupted, WorkerError) as error:
            self.save() if self.can_save_now(error) else self.save_last_snapshot()
            if isinstance(error, Interrupted) and self.is_trained:
                self.say("interrupted before the final evaluation ended; a resumed run evaluates again")
            finish(status=error.status)
            raise

    def can_save_now(self, error: Interrupted | WorkerError) -> bool:
        """Whether this is a moment between two batches, also in a collecting process."""
        try:
            return not error.in_batch and self.episodes.wait(GRACE)
        except (UserError, RunError):  # of the collecting process
            return False

    @property
    def is_trained(self) -> bool:
        """Whether the newest checkpoint has all frames, so that only the final evaluation is left."""
        return not self.progress.batches_left and self.saved_at == self.progress.frames

    def save_last_snapshot(self) -> None:
        """Saves the last snapshot and counts from it, as if the batch that was broken off had not begun.

        Without a snapshot, as while a checkpoint is loaded, the newest checkpoint stays what it is.
        """
        if self.snapshot is None:
            return
        frames, counters = self.snapshot.metadata["frames"], self.snapshot.states["books"]
        self.write(self.snapshot)
        if not self.is_trained:
            again = (
                ""
                if self.collector.steps_env or not self.collector.episode_restart_reason
                else "collects and "
            )
            self.say(
                f"interrupted in a batch: the checkpoint is of {frames:,} frames; a resumed run {again}"
                "learns from the batch again"
            )
        self.rewind_counters(counters)

    def rewind_counters(self, states: Mapping[str, Any]) -> None:
        """Gives the counters earlier states of this run; time goes on."""
        resumed_at = [*self.progress.resumed_at]
        for name, counter in self.counters.items():
            if name != "clock":
                getattr(counter, "rewind", counter.load_state_dict)(states[name])
        self.progress.resumed_at = resumed_at

    def maybe_save(self, every: int) -> None:
        """Saves if the policy has the best score or ``every`` frames have passed; else keeps a snapshot.

        Before that it waits for the batch that a collecting process collects, which a checkpoint holds.
        """
        with self.counters["clock"].timeit(COLLECTING):
            self.episodes.wait()
        if self.progress.improved or self.progress.due(every):
            self.save()
        self.snapshot_if_old()

    def save(self) -> None:
        """Writes a checkpoint of this moment between two batches, if there is none yet.

        Raises:
            SaveError: where the disk is full or refuses.
        """
        if self.saved_at != self.progress.frames:
            if reason := self.episodes.rehearse():
                self.snapshot = None
                self.say(f"if this run is resumed, its episodes start anew: {reason}")
            self.write(self.take_snapshot())

    def snapshot_if_old(self) -> None:
        """Takes a snapshot before a batch where the last is old, compared with what taking one costs.

        A batch of over a second therefore begins with one, and a stop that cannot wait for its end goes back
        to it. Of shorter batches there is about one snapshot a second.
        """
        if self.snapshot is None or time.monotonic() - self.snapshot_at > max(
            AGE, SHARE * self.snapshot_seconds
        ):
            self.take_snapshot()

    def take_snapshot(self) -> Snapshot:
        """Copies all that a checkpoint of this moment needs, if that is not done yet."""
        if self.snapshot is not None and self.snapshot.metadata["frames"] == self.progress.frames:
            return self.snapshot
        began = time.monotonic()
        collector, restart_reason = self.episodes.capture()
        states = {name: component.state_dict() for name, component in self.components.items()}
        states |= {
            "collector": collector,
            "normaliser": normalizer_state(self.env),
            "books": {name: counter.state_dict() for name, counter in self.counters.items()},
            "rng": GlobalRNGState().state_dict(),
        }
        states = deepcopy(states)
        states["books"]["rehearsal"] = self.episodes.rehearsed
        self.snapshot = Snapshot(states, self.metadata(restart_reason), self.buffer_files.snapshot())
        self.snapshot_at = time.monotonic()
        self.snapshot_seconds = self.snapshot_at - began
        return self.snapshot

    def metadata(self, restart_reason: str | None) -> dict[str, Any]:
        """The metadata of a checkpoint of this moment, but for the replay buffer."""
        progress = self.progress
        metadata = {
            "frames": progress.frames,
            "updates": progress.updates,
            "restarts": restart_reason,
            **self.run_metadata,
        }
        if progress.evaluation_now:
            metadata[RETURN_MEAN] = progress.score
        return metadata

    def write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, and the rows of the replay buffer that are not yet on disk."""
        if self.saved_at == snapshot.metadata["frames"]:
            return
        metadata = {**snapshot.metadata, "memory": self.buffer_files.save(snapshot.rows)}
        # While an evaluation is pending none is removed, for its checkpoint may be the best.
        pending = snapshot.states["books"]["looks"]["asked"]
        archive.save(self.run_dir, snapshot.states, metadata, keep=None if pending else self.keep)
        self.buffer_files.prune()
        self.saved_at = snapshot.metadata["frames"]

    def set_score(self, frames: int, score: float, is_last: bool) -> None:
        """Enters a result in the checkpoint of its frames; after the last pending one old checkpoints go."""
        if self.solved is not None:
            self.write_solved(self.solved)
        else:
            archive.set_score(self.run_dir, frames, score, keep=self.keep if is_last else None)

    def return_to(self, frames: int) -> bool:
        """Goes back to the checkpoint of an earlier policy, with which the run ends.

        Counters, policy and statistics are those of then. What only learning needs stays as it is.

        Returns:
            Whether there is such a checkpoint; a fork has none of before it began.

        Raises:
            UserError: if it is damaged.
        """
        file = archive.archive_of(self.run_dir, frames)
        if not file.exists():
            return False
        metadata = archive.verify(file)
        states = archive.load(file, [*self.components, "collector", "normaliser", "books", "rng"])
        self.rewind_counters(states["books"])
        self.components["actor"].load_state_dict(states["actor"])
        load_normalizer(self.env, states["normaliser"])
        self.solved, self.snapshot = Snapshot(states, metadata), None
        return True

    def write_solved(self, snapshot: Snapshot) -> None:
        """Writes the checkpoint of :meth:`return_to` anew, with the result; later ones are removed."""
        books = {name: counter.state_dict() for name, counter in self.counters.items()}
        states = {**snapshot.states, "books": {**snapshot.states["books"], **books}}
        metadata = {**snapshot.metadata, **self.run_metadata, RETURN_MEAN: self.progress.score}
        archive.save(self.run_dir, states, metadata, keep=self.keep)
        self.buffer_files.prune()
        self.saved_at = self.progress.frames

    def load(self, point: ResumePoint | None) -> None:
        """Restores a checkpoint, where there is one; the random number generators come last.

        Raises:
            UserError: if the checkpoint does not fit what was built.
            RunError: if something else, as a full disk, is in the way.
        """
        if point is None:
            return
        names = [*self.components, "collector", "books", "rng", *["normaliser"] * point.is_fork]
        if point.settings.get("schedule") is None and "schedule" in names:  # which a fork adds
            names.remove("schedule")
        states = archive.load(point.checkpoint, names)
        try:
            restart_reason = self.restore(states, point)
        except (UserError, RunError):
            raise
        except OSError as error:
            where = error.filename or point.checkpoint
            raise RunError(f"{where}: {error.strerror or error}; {point.checkpoint} is whole") from error
        except Exception as error:  # a state of other components, or whatever somebody else put into the file
            reason = " ".join(str(error).split())[:200]
            run = f"a fork with {describe_changes(point.changed)}" if point.changed else "this run"
            if point.is_fork:  # which has not begun
                (self.run_dir / CONFIG).unlink(missing_ok=True)
            raise UserError(
                f"{point.checkpoint} does not fit {run}: {type(error).__name__}: {reason}"
            ) from error
        self.saved_at = self.progress.frames
        self.say_resumed(point, restart_reason or point.restarts)

    def say_resumed(self, point: ResumePoint, restart_reason: str | None) -> None:
        """Prints what was resumed, and what continues differently."""
        everything = "everything else" if point.changed else "everything"
        how = (
            f"episodes start anew: {restart_reason}" if restart_reason else f"{everything} continues exactly"
        )
        verb = "forked" if point.is_fork else "resumed"
        self.say(f"{verb} after {point.frames:,} frames from {from_here(point.checkpoint)}; {how}")
        if point.changes("optim", "schedule"):
            rate = self.components["optimizer"].state_dict()["param_groups"][0]["lr"]
            by = "; schedule=null keeps it constant" if self.run_metadata["settings"]["schedule"] else ""
            self.say(f"the learning rate is now {rate:g}{by}")

    def restore(self, states: Mapping[str, Any], point: ResumePoint) -> str | None:
        """Gives every component its state; why the running episodes are lost, where they are."""
        rows = point.checkpoint.parent if point.is_fork else None
        # First, because a sampler is notified of what is written.
        self.buffer_files.load(point.buffer_rows, self.env.device, rows)
        if point.changed:
            states = {**states, **changed_states(point, self.env, self.components, states)}
        self.restore_parts(states, point)
        for name, counter in self.counters.items():
            if name in states["books"] or name != "looks":  # which older runs lack
                counter.load_state_dict(states["books"][name])
        if point.is_fork:
            states = self.begin_fork(states, point)
        restart_reason = self.episodes.restore(states["collector"], states["books"].get("rehearsal"))
        self.collector.publish()
        GlobalRNGState().load_state_dict(states["rng"])
        return restart_reason

    def restore_parts(self, states: Mapping[str, Any], point: ResumePoint) -> None:
        """Gives the components their states; a schedule of another length is stepped to where it would be."""
        is_rescheduled = point.settings["anneal_frames"] != self.run_metadata["settings"]["anneal_frames"]
        is_rescheduled |= point.changes("optim", "schedule", "loss")
        for name, component in self.components.items():
            if name == "schedule" and is_rescheduled:
                batches = point.frames // self.progress.frames_per_batch
                fast_forward(component, self.components["optimizer"], batches)
            else:
                component.load_state_dict(states[name])

    def begin_fork(self, states: Mapping[str, Any], point: ResumePoint) -> dict[str, Any]:
        """Writes a fork's first checkpoint, from which it is a run by itself, and returns its states."""
        components = {name: component.state_dict() for name, component in self.components.items()}
        counters = {name: counter.state_dict() for name, counter in self.counters.items()}
        collector = states["collector"]
        if "own" in collector:  # with the policy, and so with the exploration as it was
            now = self.collector.state(running=False)["own"]
            policy = {name: value for name, value in now.items() if name == "policy_state_dict"}
            collector = {**collector, "own": {**collector["own"], **policy}}
        fork = {**states, **components, "collector": collector, "books": {**states["books"], **counters}}
        self.write(Snapshot(fork, self.metadata(point.restarts)))
        return fork


def fast_forward(schedule: LRScheduler, optimizer: Optimizer, batches: int) -> None:
    """Steps a schedule of another length to where it would be after ``batches``."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer should step first
        for _ in range(batches):
            schedule.step()
