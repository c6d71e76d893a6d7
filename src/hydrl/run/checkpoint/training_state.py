"""Everything that decides how a run goes on, gathered from the parts and put back into them."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchrl.checkpoint import GlobalRNGState
from torchrl.data import ReplayBuffer
from torchrl.envs import TransformedEnv

from hydrl.envs import normalizer_state
from hydrl.errors import DivergedError, Interrupted, RunError, UserError, WorkerError
from hydrl.experience.collectors import Collector
from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.env_state.capture import NotCapturedError, simulator_state
from hydrl.run.checkpoint.env_state.verify import CannotGoOnError, Rehearsal
from hydrl.run.checkpoint.fork import changed_states
from hydrl.run.checkpoint.replay_buffer import Memory, Moment
from hydrl.run.checkpoint.resume import Origin, shown
from hydrl.run.run_folder import from_here

AGE = 1.0  # seconds; a younger snapshot is near enough to the beginning of a batch
SHARE = 20  # times what the last one took pass before the next


@dataclass
class Snapshot:
    """A moment between two batches, as a checkpoint will have it.

    Attributes:
        states: of all parts, copies of their own.
        metadata: of the checkpoint, but for the replay memory.
        moment: of the replay memory.
    """

    states: Mapping[str, Any]
    metadata: Mapping[str, Any]
    moment: Moment | None = None


class TrainingState:
    """Saves a run's parts as a checkpoint, and puts those of an earlier process back.

    Args:
        record: the run's, with its counters, open log row and clock; says what is resumed.
        env: the training environment of this process, with its normalisers.
        collector: with the running episodes, where it collects in this process.
        buffer: with all it holds; ``None`` where nothing is kept.
        learner: what else has a ``state_dict``, by name: actor, loss with its target networks,
            exploration, target updater, optimizer, update, minibatches, schedule; ``None`` is left out.
        make_env: makes environments as ``env`` is, in which its state is tried.
        looks: with the evaluation that is not over.
    """

    def __init__(
        self,
        record: Any,
        env: TransformedEnv,
        collector: Collector,
        buffer: ReplayBuffer | None,
        learner: Mapping[str, Any],
        make_env: Callable[[], TransformedEnv],
        looks: Any,
    ) -> None:
        self.record, self.settings, self.progress = record, record.settings, record.progress
        self.env, self.collector = env, collector
        self.memory = Memory(buffer, record.directory)
        parts = {"sampler": buffer.sampler, "writer": buffer.writer} if buffer is not None else {}
        self.learner = {name: each for name, each in {**learner, **parts}.items() if each is not None}
        # Plain data, kept as one; the record looks at the progress that was put back before it, and looks
        # tell both of what they await.
        self.books: dict[str, Any] = {
            "progress": record.progress,
            "metrics": record.metrics,
            "clock": record.clock,
        }
        self.books |= {"record": record, "looks": looks}
        self.rehearsal = Rehearsal(env, make_env)
        self.restarts: str | None = None  # why the environments will start anew, once that was found
        self.saved_at: int | None = None
        self.snapshot: Snapshot | None = None
        self.taken_at = self.took = 0.0  # seconds

    @contextmanager
    def saved_if_cut_short(self) -> Iterator[None]:
        """Where the block is cut short, saves what was reached and says in the summary how it ended."""
        if told := self.memory.room(self.env, self.settings.steps_of_a_row):
            self.record.say(told)
        try:
            yield
        except DivergedError as error:  # what it has now is of no use
            self.record.finish(status="diverged")
            raise DivergedError(error.terms, error.frames or self.progress.frames, self.saved_at) from None
        except (Interrupted, WorkerError) as error:
            self.go_back() if error.midway else self.save()
            self.record.finish(status=error.status)
            raise

    def go_back(self) -> None:
        """Saves the last snapshot and counts from it; of the batch that was broken off nothing has been done.

        Where there is none, as while a checkpoint is loaded, the newest checkpoint stays what it is.
        """
        if self.snapshot is None:
            return
        frames, books = self.snapshot.metadata["frames"], self.snapshot.states["books"]
        self.write(self.snapshot)
        again = "" if self.collector.steps_env or not self.collector.restart_reason else " collected and"
        self.record.say(
            f"broken off in a batch: saved as it stood after {frames:,} frames; those after it "
            f"are{again} learned from again when the run is resumed"
        )
        resumed_at = [*self.progress.resumed_at]
        for name in ("progress", "metrics", "looks"):
            self.books[name].load_state_dict(books[name])
        self.progress.resumed_at = resumed_at
        self.record.go_back(books["record"])

    def save(self) -> None:
        """Writes a checkpoint of this moment between two batches, if there is none yet.

        Raises:
            SaveError: where the disk is full or refuses.
        """
        if self.saved_at != self.progress.frames:
            self.rehearse()
            self.write(self.take_snapshot())

    def remember(self) -> None:
        """Called before each batch: takes a snapshot where the last is old, by what taking one costs.

        So a batch that took over a second begins with one, and a stop that cannot wait for its end goes back
        there. Of shorter ones there is one a second: a batch that takes longer than the others did goes back
        a second further.
        """
        if self.snapshot is None or time.monotonic() - self.taken_at > max(AGE, SHARE * self.took):
            self.take_snapshot()

    def take_snapshot(self) -> Snapshot:
        """Copies all that a checkpoint of this moment needs, if that is not done yet."""
        if self.snapshot is not None and self.snapshot.metadata["frames"] == self.progress.frames:
            return self.snapshot
        began = time.monotonic()
        simulator, restarts = self.simulator()
        states = {name: each.state_dict() for name, each in self.learner.items()}
        states |= {
            "collector": self.collector.state(running=simulator is not None) | {"simulator": simulator},
            "normaliser": normalizer_state(self.env),
            "books": {name: each.state_dict() for name, each in self.books.items()},
            "rng": GlobalRNGState().state_dict(),
        }
        states = deepcopy(states)
        states["books"]["rehearsal"] = self.rehearsal.first
        self.snapshot = Snapshot(states, self.metadata(restarts), self.memory.moment())
        self.taken_at = time.monotonic()
        self.took = self.taken_at - began
        return self.snapshot

    def metadata(self, restarts: str | None) -> dict[str, Any]:
        """What a checkpoint of this moment says of itself, but for the replay memory."""
        progress = self.progress
        metadata: dict[str, Any] = {
            "frames": progress.frames,
            "updates": progress.updates,
            "restarts": restarts,
            "logger": self.record.run_ids,
            "settings": self.settings.shown,
            "data": self.record.data,
            "classes": self.record.classes,
        }
        if progress.evaluation_now:
            metadata["eval/return_mean"] = progress.score
        return metadata

    def write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint, and the rows of the memory that are on no disk of this run."""
        if self.saved_at == snapshot.metadata["frames"]:
            return
        metadata = {**snapshot.metadata, "memory": self.memory.save(snapshot.moment)}
        # While an evaluation is not over none goes, for the best may be the one that it tells of.
        awaited = snapshot.states["books"]["looks"]["asked"]
        keep = self.settings.keep_checkpoints if not awaited else None
        archive.save(self.record.directory, snapshot.states, metadata, keep=keep)
        self.memory.prune()
        self.saved_at = snapshot.metadata["frames"]

    def simulator(self) -> tuple[Any, str | None]:
        """Where the running episodes stand, or why that cannot be kept."""
        if not self.collector.steps_env:
            return None, self.collector.restart_reason
        if self.restarts is not None:
            return None, self.restarts
        try:
            return simulator_state(self.env, self.rehearsal.fresh), None
        except NotCapturedError as error:
            return None, f"{error} is neither plain data nor known to be constant"

    def rehearse(self) -> None:
        """Tries, before the first checkpoint is written, whether the running episodes can go on from it."""
        if not self.collector.steps_env or self.rehearsal.tried or self.restarts is not None:
            return
        standing = self.collector.state(running=True)
        try:
            self.rehearsal.before_saving(standing["carrier"])
            self.collector.load_state(standing)
        except NotCapturedError:  # nothing was stepped, and :meth:`simulator` says so
            return
        except CannotGoOnError as error:
            self.restarts, self.snapshot = str(error), None
            self.record.say(f"where this run is resumed the environments start anew: {error}")
            if self.rehearsal.stepped:
                self.collector.load_state(standing | {"carrier": None})

    def load(self, origin: Origin | None) -> None:
        """Puts a checkpoint's parts back, where there is one; the random number generators come last.

        Raises:
            UserError: if the checkpoint does not fit what was built.
            RunError: if something else, as a full disk, is in the way.
        """
        if origin is None:
            return
        parts = [*self.learner, "collector", "books", "rng", *["normaliser"] * origin.forked]
        if origin.settings.get("schedule") is None and "schedule" in parts:  # which a fork brings
            parts.remove("schedule")
        states = archive.load(origin.checkpoint, parts)
        try:
            lost = self.put_back(states, origin)
        except (UserError, RunError):
            raise
        except OSError as error:
            where = error.filename or origin.checkpoint
            raise RunError(f"{where}: {error.strerror or error}; {origin.checkpoint} is whole") from error
        except Exception as error:  # a state of other parts, or whatever somebody else put into the file
            reason = " ".join(str(error).split())[:200]
            run = f"a fork with {shown(origin.changed)}" if origin.changed else "this run"
            if origin.forked:  # which has not begun
                self.record.configuration.unlink(missing_ok=True)
            raise UserError(
                f"{origin.checkpoint} does not fit {run}: {type(error).__name__}: {reason}"
            ) from error
        self.saved_at = self.progress.frames
        restarts = lost or origin.restarts
        how = f"the environments start anew: {restarts}" if restarts else "all goes on as it stood"
        if origin.changed:
            how = f"with {shown(origin.changed)}; {how.replace('all goes', 'all else goes')}"
        went_on = "forked" if origin.forked else "resumed"
        place = from_here(origin.checkpoint)
        self.record.say(f"{went_on} after {origin.frames:,} frames from {place}; {how}")
        if origin.changes("optim", "schedule"):
            rate = self.learner["optimizer"].state_dict()["param_groups"][0]["lr"]
            by = "; schedule=null keeps it constant" if self.settings.schedule else ""
            self.record.say(f"the learning rate is now {rate:g}{by}")

    def put_back(self, states: Mapping[str, Any], origin: Origin) -> str | None:
        """Gives every part its state, and says why the running episodes are lost where they are."""
        rows = origin.checkpoint.parent if origin.forked else None
        self.memory.load(
            origin.memory, self.env.device, rows
        )  # first, for a sampler hears of what is written
        if origin.changed:
            states = {**states, **changed_states(origin, self.settings, self.env, self.learner, states)}
        paced = origin.settings["anneal_frames"] != self.settings.anneal_frames
        paced |= origin.changes("optim", "schedule", "loss")
        for name, each in self.learner.items():
            if name == "schedule" and paced:
                batches = origin.frames // self.settings.frames_per_batch
                fast_forward(each, self.learner["optimizer"], batches)
            else:
                each.load_state_dict(states[name])
        for name in [each for each in self.books if each != "looks" or each in states["books"]]:  # as older
            self.books[name].load_state_dict(states["books"][name])
        if origin.forked:
            states = self.begin_fork(states, origin)
        self.rehearsal.first = states["books"].get("rehearsal")
        self.collector.load_state(states["collector"])
        lost = self.put_back_simulator(states["collector"])
        self.collector.publish()
        GlobalRNGState().load_state_dict(states["rng"])
        return lost

    def begin_fork(self, states: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
        """Writes a fork's first checkpoint, from which it is a run by itself, and returns its states."""
        own = {name: each.state_dict() for name, each in self.learner.items()}
        books = {name: each.state_dict() for name, each in self.books.items()}
        collector = states["collector"]
        if "own" in collector:  # with the policy, and so with the exploration as it was
            now = self.collector.state(running=False)["own"]
            policy = {name: each for name, each in now.items() if name == "policy_state_dict"}
            collector = {**collector, "own": {**collector["own"], **policy}}
        begun = {**states, **own, "collector": collector, "books": {**states["books"], **books}}
        self.write(Snapshot(begun, self.metadata(origin.restarts)))
        return begun

    def put_back_simulator(self, state: dict[str, Any]) -> str | None:
        """Lets the running episodes go on, or says why they cannot; that costs them and never the run."""
        if state["simulator"] is None:
            return None
        try:
            self.rehearsal.before_loading(state["simulator"], state["carrier"])
        except CannotGoOnError as error:
            self.collector.load_state(state | {"carrier": None})
            return str(error)
        return None


def fast_forward(schedule: LRScheduler, optimizer: Optimizer, batches: int) -> None:
    """Takes a schedule over another length to where it would stand after ``batches``."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer should step first
        for _ in range(batches):
            schedule.step()
