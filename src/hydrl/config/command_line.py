"""The command line around Hydra: a user's mistake is a line or two and exit code 2, never a traceback."""

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, TypeVar, cast, get_args

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config import CONFIGS
from hydrl.config.mistakes import choices, instead, no_such_choice, no_such_key, offer, paths, unresolved
from hydrl.config.overrides import key_of, without_none
from hydrl.config.settings import Settings
from hydrl.errors import Interrupted, RunError, UserError

# Launchers of Hydra's own house, and the extra each needs.
LAUNCHERS = {"submitit_local": "submitit", "submitit_slurm": "submitit"}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
# Hydra's own options.
FLAGS = ["-h --help", "--hydra-help", "--version", "-m --multirun", "--run", "-r --resolve"]
FLAGS += ["-sc --shell-completion"]
VALUES = ["-p --package", "-cp --config-path", "-cn --config-name", "-cd --config-dir", "-i --info"]

T = TypeVar("T")


def run(main: Callable[[], Any], expand: Callable[[Sequence[str]], list[str]] = list) -> int:
    """Calls Hydra's ``main`` and turns what comes of it into an exit code.

    Args:
        main: decorated by ``hydra.main``.
        expand: makes the command line that Hydra reads of the one that was typed.

    Returns:
        0 if all that Hydra was asked for was done, 2 for a user's mistake, 128 + signal when interrupted,
        and else what :func:`job` or a sweep ended with.
    """
    # Hydra's complaints arrive here instead of ending in its own exit(1).
    os.environ["HYDRA_FULL_ERROR"] = "1"

    def work() -> None:
        try:
            sys.argv[1:] = without_none(expand(sys.argv[1:]))
            check_arguments(sys.argv[1:])
            main()
        except (UserError, BrokenPipeError):
            raise
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise UserError(translate(error, sys.argv[1:])) from None
        except OSError as error:  # from Hydra's own work: what a job raises never gets here
            raise UserError(
                f"{error.filename or 'the run folder'} cannot be written: {error.strerror}; choose a folder "
                "with hydra.run.dir=DIR (hydra.sweep.dir=DIR with -m)"
            ) from None

    return told(work)


def script(main: Callable[[list[str]], None], usage: str | None) -> int:
    """Calls a script's ``main`` with the words of the command line; the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage)
        return 0
    return told(lambda: main(sys.argv[1:]))


def told(work: Callable[[], None]) -> int:
    """Calls ``work`` and tells in a line what it raises that is no defect; the exit code."""
    try:
        work()
    except (UserError, RunError) as error:
        return complain(str(error), error.exit_code)
    except Interrupted as error:
        return error.exit_code
    except SystemExit as end:  # of a job or a sweep, which have told why
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def job(train: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Makes a function Hydra's job: a failure is told here, as Hydra would tell it at length.

    Raises:
        SystemExit: with the exit code of a failure.
    """

    @wraps(train)
    def wrapper(cfg: DictConfig) -> None:
        try:
            train(cfg)
        except (UserError, RunError) as error:
            code = complain(str(error), error.exit_code)
        except Exception as error:
            code = 1
            if isinstance(error, OSError) and error.errno in UNWRITABLE:
                where = error.filename or "the run folder"
                complain(f"{where} cannot be written: {error.strerror}; what was saved before is intact")
            else:
                traceback.print_exc()
        else:
            return
        if code == 2:
            remove_unused_folder()
        raise SystemExit(code)

    return wrapper


def remove_unused_folder() -> None:
    """Takes away the empty folder that Hydra made for a run which was refused, not one that was named."""
    hydra = HydraConfig.get()
    if not any(each.startswith("hydra.run.dir") for each in hydra.overrides.hydra):
        for folder in Path(hydra.runtime.output_dir, "_").parents[:2]:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def complain(message: str, code: int = 2) -> int:
    """Prints what is no defect, as a user's mistake; the exit code for it."""
    print(f"error: {message}", file=sys.stderr)
    return code


def read(kind: type[T], words: list[str], example: str) -> T:
    """``key=value`` words to a script's arguments.

    Args:
        kind: a dataclass of the keys with their types and defaults.
        words: of the command line.
        example: shown to who leaves the ``=`` out.

    Raises:
        UserError: for an unknown key or a wrong type.
    """
    arguments = OmegaConf.structured(kind)
    for word in words:
        if "=" not in word:
            raise UserError(f"{word}: write key=value, as {example}")
        try:
            arguments.merge_with_dotlist([word])
            OmegaConf.resolve(arguments)
        except (OmegaConfBaseException, YAMLError) as error:
            reason, keys = str(error).splitlines()[0], ", ".join(kind.__annotations__)
            raise UserError(f"{word}: {reason}; the keys are {keys}") from None
    if missing := sorted(OmegaConf.missing_keys(arguments)):
        raise UserError(f"{missing[0]} has no value; give one, as {example}")
    return cast(T, OmegaConf.to_object(arguments))


class Options(argparse.ArgumentParser):
    """Hydra's options and overrides, read before Hydra does."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("overrides", nargs="*")
        for names in FLAGS:
            self.add_argument(*names.split(), action="store_true")
        for names in VALUES:
            self.add_argument(*names.split())
        self.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])

    def error(self, message: str) -> NoReturn:
        """What argparse would print with the usage of all options."""
        raise UserError(f"{message}; write key=value, options such as -m before the first, and see --help")


def check_arguments(arguments: Sequence[str]) -> None:
    """What Hydra would answer at length, with a traceback or not at all.

    Raises:
        UserError: for an unknown option, an argument without a key and an unknown or deleted choice.
    """
    options = Options().parse_args(arguments)
    for argument in options.overrides:
        key, equals, value = argument.partition("=")
        group = key_of(argument)
        if not group or not (equals or key.startswith("~")):
            raise UserError(
                f"cannot read {argument}; write {group or 'KEY'}={value or 'VALUE'}, without blanks"
            )
        if group in ("hydra.run.dir", "hydra.sweep.dir") and not value:
            raise UserError(f"{argument} names no folder; write {group}=DIR")
        if not (CONFIGS / group).is_dir() or options.config_dir:
            continue
        field = Settings.model_fields.get(group)
        null = ["null"] if field is None or NoneType in get_args(field.annotation) else []
        if key.startswith("~") and not null:
            raise UserError(f"{argument}: {group} cannot be left out{offer(group)}")
        offered = [*choices(CONFIGS / group), *null]
        if "," in value and {"none", "null"} & set(value.split(",")):
            raise UserError(f"{argument}: a sweep has choices only; run the members without one by ~{group}")
        for choice in value.split(",") if equals and re.fullmatch(r"[\w./,-]*", value) else ():
            if choice.removesuffix(".yaml") not in offered:
                raise UserError(no_such_choice(group, choice, offered))


def translate(error: Exception, arguments: Sequence[str]) -> str:
    """Hydra's complaint in one line that names key, value and what would do."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override}; write dotted.key=value, and quote what has blanks or brackets"
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    if found := re.search(r"Could not override '(\S+?)'(?:.+ to override (?:one of )?(.+?)\? )?", text):
        key, mounts = found[1], found[2]
        if not mounts:
            return no_such_key(key, given(key, arguments), composed(key, arguments))
        use = mounts.replace(", ", " or ")
        return f"{key}={given(key, arguments)}: it is chosen for each network; use {use}"
    if found := re.search(r"Could not delete from config\. '(\S+)' does not exist", text):
        near = instead(found[1], paths(composed(found[1], arguments)))
        return f"~{found[1]}: there is nothing of that name{near}"
    if found := re.search(r"(?:An item is already at '|Multiple values for )(\S+?)('|\. )", text):
        typed = f"{found[1]}={given(found[1], arguments)}"
        return f"+{typed}: {found[1]} is there already; write {typed}"
    if found := re.search(r"(Ambiguous value for argument|Sweep parameters) '(.+?)' ", text):
        key, _, value = found[2].partition("=")
        is_list = found[1].startswith("Ambiguous") and not (CONFIGS / key).is_dir()
        write = f"write {key}=[{value}] for a list, or " if is_list else ""
        return f"{found[2]}: more than one value; {write}add -m to run them all"
    if found := re.search(r"Could not find '(\S+)/(\S+?)' Available options in '\S+': (.*)", text):
        if found[1] == "hydra/launcher" and (extra := LAUNCHERS.get(found[2])):
            return f"{found[1]}={found[2]} needs a package that is not installed; pip install -e '.[{extra}]'"
        offered = found[3].partition(" Config search path")[0].split()
        return no_such_choice(found[1], found[2], offered)
    if error.__cause__:
        text += f": {str(error.__cause__).splitlines()[0]}"
    return text.partition(" Config search path")[0]


def given(key: str, arguments: Sequence[str]) -> str:
    """The value the command line gives a key."""
    return next((each.partition("=")[2] for each in arguments if key_of(each) == key), "")


def composed(key: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration ``key`` is looked for in: the choices of the command line and none of its values."""
    plain = [each for each in arguments if re.fullmatch(r"~?[\w/]+(=[\w./-]+)?", each)]
    chosen = [each for each in plain if (CONFIGS / key_of(each)).is_dir() and key_of(each) != key]
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            cfg = compose("train", overrides=chosen, return_hydra_config=key.startswith("hydra."))
    except (HydraException, OmegaConfBaseException):
        return {}
    return cast(dict[str, Any], OmegaConf.to_container(cfg))
