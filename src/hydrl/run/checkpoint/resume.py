"""Finds the checkpoint that a run is resumed or forked from, and checks that it is still the same run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import OmegaConf

from hydrl.config.migrations import new_config, with_encoders, with_pipelined
from hydrl.config.overrides import is_forked, run_folder_of
from hydrl.config.schema import NETWORKS, InitFrom, KeyScope, keys_with_scope, quantity
from hydrl.config.tree import find, paths, show
from hydrl.errors import UserError, print_lines
from hydrl.metric_names import RETURN_MEAN
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.run_folder import CONFIG, refuse_links, saved_yaml, summary

# Keys that a resumed run may change.
FREE = keys_with_scope(KeyScope.PROCESS, KeyScope.RECORD, KeyScope.LENGTH)
# Keys of the process, which every process sets anew.
OWN = keys_with_scope(KeyScope.PROCESS)
# Which machines collect, and how long the run waits for one.
MACHINES = {
    f"collector.{key}" for key in ("address", "num_collectors", "num_cpus", "num_gpus", "worker_timeout")
}
# What may be chosen, and what ``auto`` chooses by; what was chosen is compared.
CHOOSING = {"compatible_with", "requires", "compile_min_updates", "pipelined_min_updates"}
DATA = "data.path"  # may have been moved, or be named from another folder
# Keys that a fork may change in addition, except those that its rows or the names in its state depend on.
LEARNING = keys_with_scope(KeyScope.LEARNING)
FIXED = ("loss.networks", "loss.keys", "minibatches.n_steps", "minibatches.sequence")

SavedSettings = Mapping[str, Any]  # as they are saved
Changes = dict[str, tuple[Any, Any]]  # by key: as it was and as it is


@dataclass
class ResumePoint:
    """A checkpoint that a run is resumed or forked from.

    Attributes:
        checkpoint: a verified one.
        frames: how long the run had trained.
        settings: the run's, without secrets.
        run_ids: the run's ids at the loggers that have one.
        restarts: why episodes start anew, or ``None`` where everything continues exactly.
        buffer_rows: which rows the replay buffer held, and the files that have them.
        folder: of the run.
        data: which rows of an offline dataset it learned from, by
            :func:`hydrl.datasets.digest.record_data`; ``None`` where it had none or did not record it.
        classes: digests of the user's own classes that it depends on, by
            :func:`hydrl.run.checkpoint.user_classes.record_classes`; ``None`` where it did not record them.
        changed: of a fork, which continues in another folder, the keys that differ, each as it was and as it
            is; ``None`` where the run continues in its own.
    """

    checkpoint: Path
    frames: int
    settings: SavedSettings
    run_ids: Mapping[str, str]
    restarts: str | None
    buffer_rows: Mapping[str, Any]
    folder: Path
    data: Mapping[str, Any] | None = None
    classes: Mapping[str, str] | None = None
    changed: Changes | None = None

    @property
    def is_fork(self) -> bool:
        """Whether the run continues in another folder."""
        return self.changed is not None

    lines: ClassVar[tuple[str, ...]] = ()  # nothing is printed before it is restored

    @property
    def forked_from(self) -> Path | None:
        """The folder of the run that is forked."""
        return self.folder if self.is_fork else None

    @property
    def lineage(self) -> dict[str, Any]:
        """The entry of a fork in the summary."""
        origin = {"run": str(self.folder.absolute()), "frames": self.frames, "changed": self.changed}
        return {"forked_from": origin} if self.is_fork else {}

    def changes(self, *groups: str) -> bool:
        """Whether a fork changes a key of one of the groups."""
        return any(key.partition(".")[0] in groups for key in self.changed or ())

    @property
    def env_seed(self) -> int:
        """For environments that start anew: with the run's own they would repeat its first episodes."""
        return int(np.random.SeedSequence([self.settings["seed"], self.frames]).generate_state(1)[0] % 2**31)

    @property
    def normaliser(self) -> dict[str, Any]:
        """The observation statistics of the checkpoint."""
        return checkpoint.load(self.checkpoint, ["normaliser"])["normaliser"]


def find_resume_point(
    settings: SavedSettings, adopt: Callable[[SavedSettings], object], lock: Callable[[Path], object]
) -> ResumePoint | None:
    """Finds and verifies the checkpoint that ``resume`` names; ``None`` where the run starts anew.

    Locks the run folder, and changes nothing in it.

    Args:
        settings: of now, as they are saved.
        adopt: called with the saved settings before the two are compared; puts what ``auto`` was then in
            place of ``auto`` in ``settings``.
        lock: called with the run folder.

    Raises:
        UserError: if there is no such checkpoint, or with these settings it would be another run.
    """
    run, resume = Path(settings["run_dir"]), settings["resume"]
    is_fork = is_forked(resume, run)
    folder = run_folder_of(resume) if is_fork else run
    for path in {run, folder}:
        refuse_links(path)
    if not is_fork:
        lock(run)
    if resume is None:
        return None
    archives = checkpoint.archives(folder)
    if resume == "auto" and not archives:
        start_over(settings, adopt, run)
        return None
    archive, metadata = newest(resume, archives)
    frames = metadata["frames"]
    with checkpoint.report_damage(archive):
        total = settings["total_frames"]
        if total < frames and total != metadata["settings"]["total_frames"]:
            done = f"{folder} has trained for {frames:,} frames"
            raise UserError(f"total_frames={total}: {done}. Leave it out or give more.")
        saved = new_config(metadata["settings"])
        changed = check_same(settings, saved, adopt, fork_of=folder if is_fork else None)
        point = resume_point(archive, metadata, folder)
    if is_fork:
        return fork_point(settings, point, changed, lock)
    if changed:
        print_lines(f"resuming with {describe_changes(changed)}")
    counts = map(checkpoint.frames_of, archives)
    if later := [f"{count:,}" for count in counts if count > frames]:
        print_lines(
            f"resuming after {frames:,} frames; the next save removes later checkpoints: {', '.join(later)}"
        )
    return point


def start_over(settings: SavedSettings, adopt: Callable[[SavedSettings], object], run: Path) -> None:
    """Starts a run anew that was stopped before its first checkpoint, with the settings it was started with.

    Raises:
        UserError: if these are others.
    """
    if (config := run / CONFIG).is_file():
        with checkpoint.report_damage(config):
            saved = new_config(OmegaConf.to_container(saved_yaml(config)))
            if is_forked(saved.get("resume"), saved["run_dir"]):
                raise UserError(
                    f"resume=auto: {run} is a fork that was stopped before its first checkpoint. Fork again "
                    f"with resume={saved['resume']}."
                )
            check_same(settings, saved, adopt)
    print_lines(f"nothing to resume in {run}; starting a new run")


def newest(resume: str, archives: Sequence[Path]) -> tuple[Path, checkpoint.Metadata]:
    """The checkpoint that ``resume`` names, or the newest that is whole, with its metadata.

    Raises:
        UserError: if there is none.
    """
    if (named := Path(resume)).suffix == ".torchrl":
        return named, checkpoint.verify(named, with_rows=True)
    for archive, metadata in checkpoint.readable(archives, with_rows=True):
        return archive, metadata
    raise UserError(f"resume={resume}: no valid checkpoint. Start a new run in another folder.")


def resume_point(archive: Path, metadata: checkpoint.Metadata, folder: Path) -> ResumePoint:
    """The resume point of a checkpoint by its metadata, also of an older version."""
    run_ids = metadata["logger"] or {}
    return ResumePoint(
        checkpoint=archive,
        frames=metadata["frames"],
        settings=metadata["settings"],
        run_ids={"wandb": run_ids} if isinstance(run_ids, str) else run_ids,
        restarts=metadata["restarts"],
        buffer_rows=metadata["memory"],
        folder=folder,
        data=metadata.get("data"),
        classes=metadata.get("classes"),
    )


def fork_point(
    settings: SavedSettings, point: ResumePoint, changed: Changes, lock: Callable[[Path], object]
) -> ResumePoint:
    """The same point, resumed in the folder of ``settings`` as a run of its own for all loggers.

    Raises:
        UserError: if there is nothing left to learn.
    """
    if needed := needed_to_continue(settings, point):
        raise UserError(
            f"resume={point.folder}: the run is finished after {point.frames:,} frames. Fork with {needed}."
        )
    lock(Path(settings["run_dir"]))
    ending = f", with {describe_changes(changed)}" if changed else ""
    print_lines(f"forking {point.folder} after {point.frames:,} frames{ending}")
    return replace(point, run_ids={}, changed=changed)


def check_same(
    now: SavedSettings,
    then: SavedSettings,
    adopt: Callable[[SavedSettings], object],
    fork_of: Path | None = None,
) -> Changes:
    """Checks that everything that shapes what is learned is as it was, but for what a fork may change.

    Args:
        now: the present settings.
        then: those the run was started with.
        adopt: as of :func:`find_resume_point`.
        fork_of: the run's folder, where it continues in another.

    Returns:
        The keys that differ, each as it was and as it is.

    Raises:
        UserError: naming a key that may not.
    """
    if then.get("torch_threads") == "auto":  # of a run begun when that was always one
        then = {**then, "torch_threads": 1}
    adopt(then)
    changed = Changes()
    # What older runs had not, or said otherwise.
    added = {"init_from": InitFrom().model_dump(), "precision": "float32"}
    then = {**added, **with_encoders(with_pipelined(then, now), now, NETWORKS)}
    then["loss"] = {"unit_norm": ["*unit_weight"], **(then.get("loss") or {})}
    # Algorithm and task first, for other keys follow from them.
    for key in dict.fromkeys(["algo", "env.id", *paths(then), *paths(now)]):
        old, new = find(then, key), find(now, key)
        if isinstance(old, str):  # the folder may have been moved
            old = old.replace(then["run_dir"], now["run_dir"])
        if is_unchanged(key, old, new):
            continue
        is_moved = key == DATA and None not in (old, new)  # whether it is the same its digest tells
        is_free = is_moved or key.partition(".")[0] in FREE or key in MACHINES
        if not is_free and not (fork_of and may_change(key, old, new)):
            raise UserError(explain_change(key, old, new, fork_of))
        if key.partition(".")[0] not in OWN and (fork_of or not is_moved):
            changed[key] = (old, new)
    return changed


def is_unchanged(key: str, old: Any, new: Any) -> bool:
    """Whether a key says the same as before; of nested keys their own entries decide."""
    if old == new or (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return True
    if old is None and new == {}:  # a key that older runs had not, and nothing in it
        return True
    return bool(CHOOSING & {*key.split(".")})


def may_change(key: str, old: Any, new: Any) -> bool:
    """Whether a fork may change a key: a hyperparameter, and of components only the schedule."""
    group, _, within = key.partition(".")
    if group == "schedule":
        return True
    if group not in LEARNING or key.startswith(FIXED) or (not within and isinstance(old or new, Mapping)):
        return False
    is_grouping = key.startswith("loss.param_groups.") and None in (old, new)  # of the optimizer's state
    return not is_grouping and not any(name.startswith("_") for name in within.split("."))


def explain_change(key: str, old: Any, new: Any, fork_of: Path | None) -> str:
    """Why a key cannot change, and what to write instead."""
    if fork_of:
        return (
            f"{key}={show(new)}: cannot change in a fork; {fork_of} has {key}={show(old)}. Leave it out, or "
            f"start a new run with these weights: init_from={fork_of}."
        )
    advice = "add hydra.run.dir=NEW to fork the run there" if may_change(key, old, new) else "start a new run"
    return (
        f"{key}={show(new)}: the run was started with {key}={show(old)}, and it cannot change. "
        f"Leave it out, or {advice}."
    )


def describe_changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Keys as they are and were, in one line."""
    return ", ".join(f"{key}={show(new)} (was {show(old)})" for key, (old, new) in changed.items())


def needed_to_continue(settings: SavedSettings, point: ResumePoint) -> str:
    """What a finished run needs to continue; empty if it is not finished."""
    ended = summary(point.folder)
    if not ended:
        return ""
    batch = quantity(settings, "frames")
    is_trained = -(-settings["total_frames"] // batch) * batch <= point.frames
    reached = ended.get(RETURN_MEAN) if ended.get("solved_at_frames") is not None else None
    threshold = settings["eval"]["reward_threshold"] if settings["eval"]["stop_when_solved"] else None
    # A damaged summary is written anew.
    is_solved = isinstance(reached, int | float) and threshold is not None and reached >= threshold
    is_finished = ended.get("status") == "finished" and ended.get("frames") == point.frames
    if not is_finished or not (is_trained or is_solved):
        return ""
    return "a larger total_frames" if is_trained else "eval.stop_when_solved=false, as it was solved"


def is_finished(settings: SavedSettings, point: ResumePoint | None) -> bool:
    """Whether a resumed run is finished and has nothing left to do; prints it."""
    needed = needed_to_continue(settings, point) if point and not point.is_fork else ""
    if point and needed:
        run = settings["run_dir"]
        print_lines(f"{run} is finished after {point.frames:,} frames; to continue, set {needed}")
    return bool(needed)
