"""The command line of a resumed run: ``resume=DIR`` becomes the words that the run was started with.

This happens before Hydra reads them. Nothing of a run folder is imported or built before
:mod:`hydrl.config.trust` has checked it.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hydrl.config import CONFIGS, user_dirs
from hydrl.config.migrations import new_words
from hydrl.config.overrides import key_of, localize_commands, quoted, run_folder_of, unquote_path
from hydrl.config.schema import RunConfig
from hydrl.config.tree import find
from hydrl.errors import UserError
from hydrl.run.checkpoint.resume import OWN
from hydrl.run.run_folder import from_here, refuse_links, run_hint, saved_yaml


def expand(arguments: Sequence[str]) -> list[str]:
    """Expands ``resume=DIR`` to the words of that run and what is typed beside it; other words stay.

    Raises:
        UserError: if there is no such run, or its folder could do more than say how to train.
    """
    resume = [word for word in arguments if word.startswith("resume=")]
    path = unquote_path(resume[-1].partition("=")[2]) if resume else "null"
    if path == "null":
        return list(arguments)
    typed_keys = [key_of(word) for word in arguments]
    check_words(path, arguments, typed_keys)
    if path == "auto":
        return list(arguments)
    run = run_folder_of(path)
    own_dirs = [] if user_dirs.named_folders(arguments) else user_dirs.saved_folders(run)
    if own_dirs and "trust=true" not in arguments:
        raise UserError(
            f"resume={path}: the run uses options from other folders. Add "
            f"{shlex.join(user_dirs.folder_options(own_dirs))} or where they are now, "
            "or trust=true if you trust them."
        )
    check_algo(run, arguments)
    saved = [word for word in saved_overrides(run) if key_of(word) not in {*typed_keys, *OWN}]
    if "logger" in typed_keys:  # another choice, which need not have the saved one's keys
        saved = [word for word in saved if not key_of(word).startswith("logger.")]
    refuse_python_classes(saved, Path(path))
    first = next(index for index, word in enumerate(arguments) if "=" in word and word[0] != "-")
    typed = [word for word in arguments[first:] if not word.startswith("resume=")]
    # Options such as --config-dir stand first, and what is typed now after resume=, see config.settings.
    resumed = [*saved, f"resume={quoted(path)}", *typed]
    if "hydra.run.dir" not in typed_keys:  # else it is a fork
        resumed.append(f"hydra.run.dir={quoted(run)}")
    return [*arguments[:first], *resumed, *([user_dirs.searchpath(own_dirs)] if own_dirs else [])]


def check_words(path: str, arguments: Sequence[str], typed_keys: Sequence[str]) -> None:
    """Checks ``resume=PATH`` and the words beside it.

    Raises:
        UserError: if they do not go together, or there is no such run.
    """
    if path.lower() in ("", "none"):
        raise UserError(f"resume={path}: not a run. Write resume=DIR, or resume=null for none.")
    if path == "auto":
        if "hydra.run.dir" not in typed_keys and "hydra.sweep.dir" not in typed_keys:
            raise UserError(
                "resume=auto: each run has a new folder unless you name one. Add hydra.run.dir=DIR "
                "(hydra.sweep.dir=DIR with -m)."
            )
        return
    if {"-m", "--multirun"} & set(arguments):
        raise UserError(f"resume={path}: resumes one run, not a sweep. Resume a sweep with resume=auto.")
    if warm_start := [key for key in typed_keys if key.partition(".")[0] == "init_from"]:
        raise UserError(
            f"{warm_start[0]}: starts a new run, and resume={path} continues one. Leave one of them out."
        )
    if not Path(path).exists():
        kind = "folder" if Path(path) == run_folder_of(path) else "checkpoint"
        raise UserError(f"resume={path}: there is no such {kind}. Give that of a run, or resume=auto.")


def check_algo(run: Path, arguments: Sequence[str]) -> None:
    """Refuses another algorithm, which the run's other words would not fit.

    Raises:
        UserError: naming it.
    """
    now = [word for word in arguments if word.startswith("algo=")]
    algo = find(saved_config(run), "algo")
    if now and algo is not None and now[-1] != (then := f"algo={algo}"):
        raise UserError(f"{now[-1]}: the run was started with {then}, and it cannot change. Leave it out.")


def saved_config(run: Path) -> Any:
    """Reads what Hydra composed for a run."""
    refuse_links(run)
    return saved_yaml(run / ".hydra" / "config.yaml")


def refuse_python_classes(saved: Sequence[str], path: Path) -> None:
    """Refuses to resume a run whose classes only another process has.

    Raises:
        UserError: naming one.
    """
    config = saved_config(run_folder_of(path))
    if lost := [word for word in saved if is_python_class(word, config)]:
        raise UserError(
            f"resume={path}: {lost[0]} was a class of the process that started the run. Resume it there, or "
            f"in Python with hydrl.train(resume={str(path)!r}, {key_of(lost[0])}=CLASS)."
        )


def is_python_class(word: str, config: Any) -> bool:
    """Whether a word chooses a class that only the process that began the run had (`api.python_classes`).

    Args:
        word: of the run.
        config: what Hydra saved of it.
    """
    group, _, name = word.partition("=")
    if f"{name}.yaml" in ConfigStore.instance().repo.get(group, {}):
        return False
    target, id = (find(config, f"{group}.{key}") for key in ("_target_", "id"))
    return str(target).startswith("hydrl.api.python_classes.") or str(id).startswith("hydrl/")


def resume_command(run: Path, needs_trust: Callable[[], bool]) -> str:
    """The command that resumes a run of this process.

    Args:
        run: its folder.
        needs_trust: whether it takes ``trust=true``.
    """
    own_dirs = user_dirs.folder_options(user_dirs.saved_folders(run))
    words = ["python", "train.py", f"resume={from_here(run)}", *own_dirs, *["trust=true"] * needs_trust()]
    return localize_commands(shlex.join(words))


def saved_overrides(run: Path) -> list[str]:
    """Reads the words a run was started with; only choices and keys, for somebody else may have written them.

    Raises:
        UserError: if there are none, or anything else.
    """
    file = run / ".hydra" / "overrides.yaml"
    refuse_links(run)
    if not file.is_file():
        hint = run_hint(run)
        if run.is_dir() and not any(run.iterdir()):
            hint = f"Start a run there with hydra.run.dir={run} in place of resume={run}."
        raise UserError(f"resume={run}: not a run (no .hydra/overrides.yaml). {hint}")
    parser = OverridesParser.create()
    try:
        saved = cast(list[str], OmegaConf.to_container(OmegaConf.load(file), resolve=False))
        parser.parse_overrides(saved)
    except Exception:  # whatever somebody may have put there
        raise UserError(f"resume={run}: its .hydra/overrides.yaml is not a list of overrides") from None
    words = new_words(saved)
    for word, override in zip(words, parser.parse_overrides(words), strict=True):
        if not is_of_run(override):
            raise UserError(f"resume={run}: its {file.name} has {word}, which sets more than keys of the run")
    return words


def is_of_run(override: Override) -> bool:
    """Whether an override is a choice within ``configs/`` or sets a key of the run, and does no more."""
    key = override.key_or_group
    if re.search(r"\$\{[^}]*\$\{", override.input_line or ""):  # as ${oc.${key}:NAME}, which hides what it is
        return False
    if (CONFIGS / key).is_dir():
        value = None if override.is_delete() else override.value()
        names = [] if value is None else value if isinstance(value, list) else [value]
        return all(re.fullmatch(r"[\w-]+(/[\w-]+)*", str(getattr(name, "text", name))) for name in names)
    return key.partition(".")[0] in RunConfig.model_fields and not override.is_sweep_override()
