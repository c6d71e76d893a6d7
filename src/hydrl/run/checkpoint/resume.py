"""Going on with a run: what to start from, and that it is still the same run.

``python train.py resume=DIR`` becomes the command the run was started with, before Hydra reads it. Nothing
that lies in a run folder is imported or built before :mod:`hydrl.config.trust` has looked at it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hydrl.config import CONFIGS, user_dirs
from hydrl.config.migrations import renamed, with_encoders
from hydrl.config.overrides import as_typed, forks, key_of, plain, quoted, run_of
from hydrl.config.schema import NETWORKS, InitFrom, Role, keys
from hydrl.config.settings import Settings, check_stranger
from hydrl.config.tree import find, paths, show
from hydrl.errors import UserError, print_lines
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.run_folder import lock, newest_run_hint, refuse_links, saved_yaml, summary

# What a resumed run may change.
FREE = keys(Role.PROCESS, Role.RECORD, Role.LENGTH)
# Said on the command line of each process for itself.
OWN = keys(Role.PROCESS)
# Which machines collect where there are several, and how long one is waited for.
MACHINES = {
    f"collector.{each}" for each in ("address", "num_collectors", "num_cpus", "num_gpus", "worker_timeout")
}
DATA = "data.path"  # may have been moved, or be named from another folder
# What a fork may change in addition; but for what its rows, or the names in its state, depend on.
LEARNING = keys(Role.LEARNING)
HELD = ("loss.networks", "loss.keys", "minibatches.n_steps", "minibatches.sequence")


@dataclass
class Origin:
    """What a run goes on from.

    Attributes:
        checkpoint: a verified one.
        frames: how long the run had trained.
        settings: the run's, without secrets.
        run_ids: the run's names at the loggers that keep one.
        restarts: why the environments start anew, or ``None`` where everything goes on as it stood.
        memory: which rows the replay memory held, and the files that have them.
        folder: of the run.
        data: which rows of data it learned from, by :func:`hydrl.datasets.digest.record_data`; ``None``
            where it had none or did not record it.
        classes: digests of the user's own that it depends on, by
            :func:`hydrl.run.checkpoint.user_classes.record_classes`; ``None`` where it did not record them.
        changed: of a fork, which goes on in another folder, its keys that differ, each as it was and as it
            is; ``None`` where the run goes on in its own.
    """

    checkpoint: Path
    frames: int
    settings: Mapping[str, Any]
    run_ids: Mapping[str, str]
    restarts: str | None
    memory: Mapping[str, Any]
    folder: Path
    data: Mapping[str, Any] | None = None
    classes: Mapping[str, str] | None = None
    changed: Mapping[str, tuple[Any, Any]] | None = None

    @property
    def forked(self) -> bool:
        """Whether it goes on in another folder."""
        return self.changed is not None

    @property
    def told(self) -> dict[str, Any]:
        """Of a fork in the summary."""
        return {"run": str(self.folder.absolute()), "frames": self.frames, "changed": self.changed}

    def changes(self, *groups: str) -> bool:
        """Whether a fork changes a key of one of the groups."""
        return any(key.partition(".")[0] in groups for key in self.changed or ())

    @property
    def env_seed(self) -> int:
        """For environments that start anew: with the run's own they would begin as they began before."""
        return int(np.random.SeedSequence([self.settings["seed"], self.frames]).generate_state(1)[0] % 2**31)


def normaliser(origin: Origin | None) -> dict[str, Any] | None:
    """The statistics a resumed run observes with."""
    return checkpoint.load(origin.checkpoint, ["normaliser"])["normaliser"] if origin else None


def expand(arguments: Sequence[str]) -> list[str]:
    """A command line with ``resume=DIR``, as the run's own with what else is said; others as they are.

    Raises:
        UserError: if no run lies there, or what lies there could do more than say how to train.
    """
    given = [each for each in arguments if each.startswith("resume=")]
    path = plain(given[-1].partition("=")[2]) if given else "null"
    if path == "null":
        return list(arguments)
    if path.lower() in ("", "none"):
        raise UserError(f"resume={path} names no run; write resume=DIR, or resume=null for none")
    keys = [key_of(each) for each in arguments]
    if path == "auto":
        if "hydra.run.dir" not in keys and "hydra.sweep.dir" not in keys:
            raise UserError(
                "resume=auto looks into the run's own folder, and a new one is made for each; "
                "say which, as hydra.run.dir=DIR (hydra.sweep.dir=DIR with -m)"
            )
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise UserError(f"resume={path} goes on with one run; go on with a sweep by resume=auto")
    if new := [each for each in keys if each.partition(".")[0] == "init_from"]:
        raise UserError(
            f"{new[0]} begins a new run, and resume={path} goes on with one; leave one of them out"
        )
    named, run = Path(path), run_of(path)
    if not named.exists():
        kind = "folder" if named == run else "checkpoint"
        raise UserError(f"resume={path}: there is no such {kind}; give a run's, or resume=auto")
    begun = [] if user_dirs.folders(arguments) else user_dirs.remembered(run)
    if begun and "trust=true" not in arguments:
        raise UserError(
            f"resume={path} was begun with choices of one's own; add {shlex.join(user_dirs.typed(begun))} or "
            "where they lie now, or trust=true if you trust what lies there"
        )
    now, algo = [each for each in arguments if each.startswith("algo=")], find(saved_config(run), "algo")
    # The run's other words would not fit another algorithm.
    if now and algo is not None and now[-1] != (then := f"algo={algo}"):
        raise UserError(f"{now[-1]} would make it another run: it was started with {then}; leave it out")
    saved = [each for each in saved_overrides(run) if key_of(each) not in {*keys, *OWN}]
    if "logger" in keys:  # another choice, which need not have the saved one's keys
        saved = [each for each in saved if not key_of(each).startswith("logger.")]
    refuse_handed_over(saved, named)
    first = next(place for place, each in enumerate(arguments) if "=" in each and each[0] != "-")
    typed = [each for each in arguments[first:] if not each.startswith("resume=")]
    # Options such as --config-dir stand first, and what is typed now after resume=, see config.settings.
    resumed = [*saved, f"resume={quoted(named)}", *typed]
    if "hydra.run.dir" not in keys:  # else it is a fork
        resumed.append(f"hydra.run.dir={quoted(run)}")
    return [*arguments[:first], *resumed, *([user_dirs.searchpath(begun)] if begun else [])]


def saved_config(run: Path) -> Any:
    """What Hydra composed for a run."""
    refuse_links(run)
    return saved_yaml(run / ".hydra" / "config.yaml")


def refuse_handed_over(saved: Sequence[str], named: Path) -> None:
    """Refuses to go on where a choice of the run is not there.

    Raises:
        UserError: naming it.
    """
    config = saved_config(run_of(named))
    if lost := [each for each in saved if was_handed_over(each, config)]:
        raise UserError(
            f"resume={named}: {lost[0]} was a class of the process that began the run; go on there, or in "
            f"Python with hydrl.train(resume={str(named)!r}, {key_of(lost[0])}=CLASS)"
        )


def was_handed_over(word: str, config: Any) -> bool:
    """Whether a word chooses what only the process that began the run had (`api.python_classes`).

    Args:
        word: of the run.
        config: what Hydra saved of it.
    """
    group, _, name = word.partition("=")
    if f"{name}.yaml" in ConfigStore.instance().repo.get(group, {}):
        return False
    target, id = (find(config, f"{group}.{key}") for key in ("_target_", "id"))
    return str(target).startswith("hydrl.api.python_classes.") or str(id).startswith("hydrl/")


def command(settings: Settings, folder: str) -> str:
    """What goes on with a run of this process, with all that would be asked for beside ``resume=folder``."""
    begun = user_dirs.remembered(Path(settings.run_dir))
    words = ["python", "train.py", f"resume={folder}", *user_dirs.typed(begun)]
    try:
        check_stranger(settings)
    except UserError:
        words.append("trust=true")
    return as_typed(shlex.join(words))


def saved_overrides(run: Path) -> list[str]:
    """What the run was started with; only what chooses and sets, as a stranger may have written it.

    Raises:
        UserError: if there is none, or it is anything else.
    """
    file = run / ".hydra" / "overrides.yaml"
    refuse_links(run)
    if not file.is_file():
        raise UserError(
            f"resume={run}: no run lies there (it has no .hydra/overrides.yaml){newest_run_hint(run)}"
        )
    try:
        found = cast(list[str], OmegaConf.to_container(OmegaConf.load(file), resolve=False))
        parsed = OverridesParser.create().parse_overrides(found)
    except Exception:  # whatever somebody may have put there
        raise UserError(f"resume={run}: its .hydra/overrides.yaml is not a list of overrides") from None
    for text, override in zip(found, parsed, strict=True):
        if not shapes_the_run(override):
            raise UserError(f"resume={run}: its {file.name} holds {text}, which sets more than the run")
    return found


def shapes_the_run(override: Override) -> bool:
    """Whether it is a choice within ``configs/`` or sets a key of the run, and does no more."""
    key = override.key_or_group
    if re.search(r"\$\{[^}]*\$\{", override.input_line or ""):  # as ${oc.${key}:NAME}, which hides what it is
        return False
    if (CONFIGS / key).is_dir():
        value = None if override.is_delete() else override.value()
        names = [] if value is None else value if isinstance(value, list) else [value]
        return all(re.fullmatch(r"[\w-]+(/[\w-]+)*", str(getattr(each, "text", each))) for each in names)
    return key.partition(".")[0] in Settings.model_fields and not override.is_sweep_override()


def origin(settings: Settings) -> Origin | None:
    """The checkpoint to go on from, read through and found to be of the same run; ``None`` to start anew.

    Holds the run folder, and changes nothing in it.

    Raises:
        UserError: if there is none, or going on with these settings would make it another run.
    """
    run, fork = Path(settings.run_dir), forks(settings.resume, settings.run_dir)
    folder = run_of(settings.resume) if fork and settings.resume else run
    for each in {run, folder}:
        refuse_links(each)
    if not fork:
        lock(run)
    if settings.resume is None:
        return None
    named, there = Path(settings.resume), checkpoint.archives(folder)
    if settings.resume == "auto" and not there:
        if (begun := run / "config_resolved.yaml").is_file():  # stopped before its first checkpoint
            with checkpoint.report_damage(begun):
                check_begun(settings, renamed(OmegaConf.to_container(saved_yaml(begun))))
        print_lines(f"nothing to resume in {run}; starting at the beginning")
        return None
    if named.suffix == ".torchrl":
        archive, metadata = named, checkpoint.verify(named, memory=True)
    else:
        archive, metadata = next(checkpoint.readable(there, memory=True), (named, {}))
    if not metadata:
        raise UserError(
            f"resume={settings.resume} has no valid checkpoint; start the run anew in another folder"
        )
    frames, total = metadata["frames"], settings.total_frames
    with checkpoint.report_damage(archive):
        if total < frames and total != metadata["settings"]["total_frames"]:
            raise UserError(
                f"total_frames={total} is less than the {frames} that {folder} has done; leave it out"
            )
        changed = check_same(settings, renamed(metadata["settings"]), folder if fork else None)
        known = metadata["logger"] or {}
        run_ids = {"wandb": known} if isinstance(known, str) else known  # as older runs kept it
        restarts, memory = metadata["restarts"], metadata["memory"]
    read = metadata.get("data"), metadata.get("classes")
    start = Origin(archive, frames, metadata["settings"], run_ids, restarts, memory, folder, *read)
    if fork:
        return forked(settings, start, changed)
    if changed:
        print_lines(f"goes on with {shown(changed)}")
    if ahead := [f"{checkpoint.frames_of(each):,}" for each in there if checkpoint.frames_of(each) > frames]:
        print_lines(
            f"goes on after {frames:,} frames; later checkpoints go once it saves: {', '.join(ahead)}"
        )
    return start


def forked(settings: Settings, start: Origin, changed: Mapping[str, tuple[Any, Any]]) -> Origin:
    """The same, to go on from in the folder of ``settings``, as a run of its own for all loggers; holds that.

    Raises:
        UserError: if there is nothing left to learn.
    """
    if further := wanted(settings, start):
        raise UserError(
            f"{start.folder} is finished, after {start.frames:,} frames; a fork of it needs {further}"
        )
    lock(Path(settings.run_dir))
    told = f", with {shown(changed)}" if changed else ""
    print_lines(f"a fork of {start.folder} after {start.frames:,} frames{told}")
    return replace(start, run_ids={}, changed=changed)


def check_begun(settings: Settings, then: Mapping[str, Any]) -> None:
    """A run that was stopped before its first checkpoint begins anew as it began.

    Raises:
        UserError: if it would begin otherwise.
    """
    if forks(then.get("resume"), then["run_dir"]):
        raise UserError(
            f"resume=auto: {settings.run_dir} was to be a fork and was stopped before it had a checkpoint; "
            f"fork once more, by resume={then['resume']}"
        )
    check_same(settings, then)


def check_same(
    settings: Settings, then: Mapping[str, Any], fork: Path | None = None
) -> dict[str, tuple[Any, Any]]:
    """Everything that shapes what is learned is as it was, but for what a fork may change.

    Args:
        settings: of now.
        then: those the run was begun with.
        fork: the run's folder, where it goes on in another.

    Returns:
        The keys that are not, each as it was and as it is.

    Raises:
        UserError: naming a key that has to be.
    """
    if then.get("torch_threads") == "auto":  # of a run begun when that was always one
        then = {**then, "torch_threads": 1}
    settings.keep(then)
    now, changed = settings.shown, dict[str, tuple[Any, Any]]()
    # What older runs had not, or said otherwise.
    then = {"init_from": InitFrom().model_dump(), **with_encoders(then, now, NETWORKS)}
    # Algorithm and task first, for other keys follow from them.
    for key in dict.fromkeys(["algo", "env.id", *paths(then), *paths(now)]):
        old, new = find(then, key), find(now, key)
        if isinstance(old, str):  # the folder may have been moved
            old = old.replace(then["run_dir"], now["run_dir"])
        if old == new or (isinstance(old, Mapping) and isinstance(new, Mapping)):
            continue
        if old is None and new == {}:  # a key that older runs had not, and nothing in it
            continue
        if {"fits", "needs"} & {*key.split(".")}:  # what may be chosen at all, not what was
            continue
        moved = key == DATA and None not in (old, new)  # whether it is the same its digest tells
        free = moved or key.partition(".")[0] in FREE or key in MACHINES
        if not free and not (fork and may_change(key, old, new)):
            raise UserError(another(key, old, new, fork))
        if key.partition(".")[0] not in OWN and (fork or not moved):
            changed[key] = (old, new)
    return changed


def may_change(key: str, old: Any, new: Any) -> bool:
    """Whether a fork may change a key: a number that it learns by, no part but the schedule."""
    group, _, within = key.partition(".")
    if group == "schedule":
        return True
    if group not in LEARNING or key.startswith(HELD) or (not within and isinstance(old or new, Mapping)):
        return False
    grouping = key.startswith("loss.param_groups.") and None in (old, new)  # by which parameters are kept
    return not grouping and not any(each.startswith("_") for each in within.split("."))


def another(key: str, old: Any, new: Any, fork: Path | None) -> str:
    """Why a key cannot change, and what would do."""
    if fork:
        return (
            f"{key}={show(new)} cannot change in a fork: {fork} was started with {key}={show(old)}; leave "
            f"out what sets it, or begin a new run with its weights, by init_from={fork}"
        )
    advice = "add hydra.run.dir=NEW to fork the run there" if may_change(key, old, new) else "start a new run"
    return (
        f"{key}={show(new)} would make it another run: it was started with {key}={show(old)}; "
        f"leave out what sets it, or {advice}"
    )


def shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Keys as they are and were."""
    return ", ".join(f"{key}={show(new)} (was {show(old)})" for key, (old, new) in changed.items())


def wanted(settings: Settings, start: Origin) -> str:
    """What a run that has come to its end is to be given to go on; nothing where it has not."""
    written = summary(start.folder)
    if not written:
        return ""
    trained, score = settings.batches * settings.frames_per_batch <= start.frames, settings.eval
    reached = written.get("eval/return_mean") if written.get("solved_at_frames") is not None else None
    reached = reached if isinstance(reached, int | float) else None  # a damaged one is written anew
    wanted_least = score.solved_at if score.stop_when_solved else None
    solved = reached is not None and wanted_least is not None and reached >= wanted_least
    ended = written.get("status") == "finished" and written.get("frames") == start.frames
    if not ended or not (trained or solved):
        return ""
    return "a larger total_frames" if trained else "eval.stop_when_solved=false, for it was solved"


def finished(settings: Settings, start: Origin | None) -> bool:
    """Whether a resumed run has come to its end and is asked for nothing more; says so."""
    further = wanted(settings, start) if start and not start.forked else ""
    if start and further:
        print_lines(f"{settings.run_dir} is finished, after {start.frames:,} frames; to go on give {further}")
    return bool(further)
