"""Going on with a run: what to start from, and that it is still the same run.

``python train.py resume=DIR`` becomes the command the run was started with, before Hydra reads it. Nothing
that lies in a run folder is imported or built before :mod:`hydrl.config.trust` has looked at it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hydrl.config import CONFIGS, own
from hydrl.config.mistakes import find, paths, show
from hydrl.config.moved import renamed
from hydrl.config.overrides import as_typed, key_of, plain, quoted
from hydrl.config.schema import Role, keys
from hydrl.config.settings import Settings, check_stranger
from hydrl.errors import UserError
from hydrl.run import checkpoint
from hydrl.run.folder import lock, meant, refuse_links, summary

# What a resumed run may change.
FREE = keys(Role.PROCESS, Role.RECORD, Role.LENGTH)
# Said on the command line of each process for itself.
OWN = keys(Role.PROCESS)


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
    """

    checkpoint: Path
    frames: int
    settings: Mapping[str, Any]
    run_ids: Mapping[str, str]
    restarts: str | None
    memory: Mapping[str, Any]

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
    if "hydra.run.dir" in keys:
        raise UserError(f"resume={path} goes on in its own folder; leave hydra.run.dir out")
    named = Path(path)
    run = named.parent.parent if named.suffix == ".torchrl" else named
    if not named.exists():
        raise UserError(f"resume={path}: there is no such folder; give a run's, or resume=auto")
    begun = [] if own.folders(arguments) else own.remembered(run)
    if begun and "trust=true" not in arguments:
        raise UserError(
            f"resume={path} was begun with choices of one's own; add {shlex.join(own.typed(begun))} or where "
            "they lie now, or trust=true if you trust what lies there"
        )
    config, now = run / ".hydra" / "config.yaml", [each for each in arguments if each.startswith("algo=")]
    # The run's other words would not fit another algorithm.
    if now and config.is_file() and now[-1] != (then := f"algo={find(OmegaConf.load(config), 'algo')}"):
        raise UserError(f"{now[-1]} would make it another run: it was started with {then}; leave it out")
    saved = [each for each in saved_overrides(run) if key_of(each) not in {*keys, *OWN}]
    first = next(place for place, each in enumerate(arguments) if "=" in each and each[0] != "-")
    typed = [each for each in arguments[first:] if not each.startswith("resume=")]
    # Options such as --config-dir stand first, and what is typed now after resume=, see config.settings.
    resumed = [*saved, f"resume={quoted(named)}", *typed, f"hydra.run.dir={quoted(run)}"]
    return [*arguments[:first], *resumed, *([own.searchpath(begun)] if begun else [])]


def command(settings: Settings, folder: str) -> str:
    """What goes on with a run of this process, with all that would be asked for beside ``resume=folder``."""
    begun = own.remembered(Path(settings.run_dir))
    words = ["python", "train.py", f"resume={folder}", *own.typed(begun)]
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
        raise UserError(f"resume={run}: no run lies there (it has no .hydra/overrides.yaml){meant(run)}")
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
    run = Path(settings.run_dir)
    refuse_links(run)
    lock(run)
    if settings.resume is None:
        return None
    named, there = Path(settings.resume), checkpoint.archives(run)
    if settings.resume == "auto" and not there:
        if (begun := run / "config_resolved.yaml").is_file():  # stopped before its first checkpoint
            check_same(settings, renamed(OmegaConf.to_container(OmegaConf.load(begun))))
        print(f"nothing to resume in {run}; starting at the beginning")
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
    if total < frames and total != metadata["settings"]["total_frames"]:
        raise UserError(f"total_frames={total} is less than the {frames} that {run} has done; leave it out")
    check_same(settings, renamed(metadata["settings"]))
    if ahead := [f"{checkpoint.frames_of(each):,}" for each in there if checkpoint.frames_of(each) > frames]:
        print(f"goes on after {frames:,} frames; later checkpoints go once it saves: {', '.join(ahead)}")
    restarts, memory = metadata["restarts"], metadata["memory"]
    known = metadata["logger"] or {}
    run_ids = {"wandb": known} if isinstance(known, str) else known  # as older runs kept it
    return Origin(archive, frames, metadata["settings"], run_ids, restarts, memory)


def check_same(settings: Settings, then: Mapping[str, Any]) -> None:
    """Everything that shapes what is learned is as it was; says what else is not.

    Raises:
        UserError: naming a key that is not.
    """
    if then.get("torch_threads") == "auto":  # of a run begun when that was always one
        then = {**then, "torch_threads": 1}
    settings.keep(then)
    now, changed = settings.shown, list[str]()
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
        if key.partition(".")[0] not in FREE:
            raise UserError(
                f"{key}={show(new)} would make it another run: it was started with {key}={show(old)}; "
                "leave out what sets it, or start a new run"
            )
        if key.partition(".")[0] not in OWN:
            changed.append(f"{key}={show(new)} (was {show(old)})")
    if changed:
        print(f"goes on with {', '.join(changed)}")


def finished(settings: Settings, start: Origin | None) -> bool:
    """Whether a resumed run has come to its end and is asked for nothing more; says so."""
    written = summary(Path(settings.run_dir))
    if start is None or not written:
        return False
    trained = settings.batches * settings.frames_per_batch <= start.frames
    solved = settings.eval.stop_when_solved and start.frames < start.settings["total_frames"]
    if (written["status"], written["frames"]) != ("finished", start.frames) or not (trained or solved):
        return False
    further = "a larger total_frames" if trained else "eval.stop_when_solved=false, for it was solved"
    print(f"{settings.run_dir} is finished, after {start.frames:,} frames; to go on give {further}")
    return True
