"""The command line around Hydra: a user's mistake is a line or two and exit code 2, never a traceback."""

import errno
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config.mistakes import choices, instead, no_such_choice, no_such_key, offer
from hydrl.config.settings import CONFIGS, unresolved
from hydrl.errors import Interrupted, RunError, UserError
from hydrl.run.resume import expand

# Folders of configs/ that are no groups of choices, for which Hydra takes every one of them.
SWEEPS = {
    "wandb": "sweeps, as for wandb sweep configs/wandb/bayes.yaml; W&B logs a run with logger=wandb",
    "search": "what python scripts/search.py algo=ppo env=cartpole draws from",
}
# Choices of hydra/launcher that run a sweep's members in other processes, and the extra each needs.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)

T = TypeVar("T")


def groups(hydra: Hydra, parent: str = "", listed: Any = Hydra.list_all_config_groups) -> list[str]:
    """What ``--help`` lists: the folders that hold choices."""
    return [each for each in listed(hydra, parent) if each not in SWEEPS]


Hydra.list_all_config_groups = groups


def attempt(train: Callable[[DictConfig], None], cfg: DictConfig) -> tuple[int, str]:
    """Runs a job and tells a failure; its exit code and, if it failed, why."""
    try:
        train(cfg)
    except UserError as error:
        return complain(str(error)), str(error)
    except RunError as error:
        complain(str(error))
        return error.exit_code, str(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            where = error.filename or "the run folder"
            complain(f"{where} cannot be written: {error.strerror}; what was saved before is whole")
        else:
            traceback.print_exc()
        return 1, f"{type(error).__name__}: {error}"
    return 0, ""


def keep_command(cfg: DictConfig) -> None:
    """Writes ``.hydra/`` as Hydra does, but once the run begins: a refused one changes no folder."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir) / ".hydra"
    folder.mkdir(exist_ok=True)
    OmegaConf.save(cfg, folder / "config.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": hydra}), folder / "hydra.yaml")
    OmegaConf.save(hydra.overrides.task, folder / "overrides.yaml")


def run(main: Callable[[], Any], configs: Path = CONFIGS) -> int:
    """Calls Hydra's ``main`` and turns what comes of it into an exit code.

    Returns:
        0 when trained, 2 for a user's mistake, 3 when diverged, 128 + signal when interrupted, 1 for a
        defect, which keeps its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # Hydra's complaints arrive here instead of ending in its own exit(1)
    )
    try:
        sys.argv[1:] = expand(sys.argv[1:])
        check_arguments(sys.argv[1:], configs)
        main()
    except Interrupted as error:
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        return complain(str(error))
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        return complain(translate(error, configs, sys.argv[1:]))
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # from Hydra's own work: what a job raises never gets here
        where = error.filename or "the run folder"
        return complain(
            f"{where} cannot be written: {error.strerror}; choose a folder with hydra.run.dir=DIR"
            " (hydra.sweep.dir=DIR with -m)"
        )
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in LAUNCHERS.values():
            raise
        complain(
            f"a member's process was killed, as when memory runs out, and with it the sweep "
            f"({type(error).__name__})"
        )
        return 1
    return 0


def script(main: Callable[[list[str]], None], usage: str | None) -> int:
    """Calls a script's ``main`` with the words of the command line; the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage)
        return 0
    try:
        main(sys.argv[1:])
    except UserError as error:
        return complain(str(error))
    except RunError as error:
        complain(str(error))
        return error.exit_code
    except Interrupted as error:
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


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
        key, equals, _ = word.partition("=")
        if not equals:
            raise UserError(f"{word}: write key=value, as {example}")
        if key not in (keys := kind.__annotations__):
            raise UserError(f"{word}: there is no such key{instead(key, dict.fromkeys(keys))}")
        try:
            arguments.merge_with_dotlist([word])
            OmegaConf.resolve(arguments)
        except (OmegaConfBaseException, YAMLError) as error:
            raise UserError(f"{word}: {str(error).splitlines()[0]}") from None
    if missing := sorted(OmegaConf.missing_keys(arguments)):
        raise UserError(f"{missing[0]} has no value; give one, as {example}")
    return cast(T, OmegaConf.to_object(arguments))


def complain(message: str) -> int:
    """Prints a user's mistake; the exit code for it."""
    print(f"error: {message}", file=sys.stderr)
    return 2


def check_arguments(arguments: list[str], configs: Path) -> None:
    """What Hydra would answer at length, with a traceback or not at all.

    Raises:
        UserError: for an unknown option, an argument without a key and an unknown or deleted choice.
    """
    parser = get_args_parser()
    parser.error = refuse_options
    options = parser.parse_args(arguments)
    for argument in options.overrides:
        key, _, value = argument.partition("=")
        group = key.lstrip("+~")
        if not group or ("=" not in argument and not key.startswith("~")):
            raise UserError(
                f"cannot read {argument}; write {group or 'KEY'}={value or 'VALUE'}, without blanks"
            )
        if group in SWEEPS:
            raise UserError(f"{argument}: configs/{group} holds {SWEEPS[group]}")
        if group == "hydra/launcher":
            check_launcher(value, arguments)
        if not (configs / group).is_dir() or options.config_dir:
            continue
        if key.startswith("~"):
            raise UserError(f"{argument}: {group} cannot be deleted{offer(configs, group)}")
        for choice in value.split(",") if re.fullmatch(r"[\w./,-]*", value) and "=" in argument else ():
            if choice.removesuffix(".yaml") not in (offered := choices(configs / group)):
                raise UserError(no_such_choice(group, choice, offered))


def check_launcher(name: str, arguments: list[str]) -> None:
    """The package of a launcher is there, and no secret would come to lie in the files it makes.

    Raises:
        UserError: naming the extra, or the secret's key.
    """
    extra = LAUNCHERS.get(name)
    if extra and importlib.util.find_spec(f"hydra_plugins.hydra_{extra}_launcher") is None:
        raise UserError(
            f"hydra/launcher={name} needs a package that is not installed; pip install -e '.[{extra}]'"
        )


def refuse_options(message: str) -> NoReturn:
    """Takes argparse's place, which would print the usage."""
    raise UserError(f"{message}; write key=value, options such as -m before the first, and see --help")


def translate(error: Exception, configs: Path, arguments: list[str]) -> str:
    """Hydra's complaint in one line that names key, value and what would do."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override}; write dotted.key=value, and quote what has blanks or brackets"
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    if found := re.search(r"Could not override '(\S+?)'", text):
        return no_such_key(found[1], given(found[1], arguments), composed(found[1], configs, arguments))
    if found := re.search(r"Could not delete from config\. '(\S+)' does not exist", text):
        known = composed(found[1], configs, arguments)
        return f"~{found[1]}: there is nothing of that name{instead(found[1], known)}"
    if found := re.search(r"An item is already at '(\S+?)'|Multiple values for (\S+?)\. ", text):
        key = found[1] or found[2]
        return f"+{key}={given(key, arguments)}: {key} is there already; write {key}={given(key, arguments)}"
    if found := re.search(r"Ambiguous value for argument '(.+?)' 1\.", text):
        key, _, value = found[1].partition("=")
        return f"{found[1]}: more than one value; write {key}=[{value}] for a list, or add -m to run them all"
    if found := re.search(r"Could not find '(\S+)/(\S+?)' Available options in '\S+': (.*)", text):
        offered = found[3].partition(" Config search path")[0].split()
        offered += [each for each in LAUNCHERS if found[1] == "hydra/launcher" and each not in offered]
        return no_such_choice(found[1], found[2], offered)
    if found := re.search(r"Sweep parameters '(.+?)' requires", text):
        return f"{found[1]}: more than one value; add -m to run them all"
    if error.__cause__:
        text += f": {str(error.__cause__).splitlines()[0]}"
    return text.partition(" Config search path")[0]


def given(key: str, arguments: list[str]) -> str:
    """The value the command line gives a key."""
    return next(
        (each.partition("=")[2] for each in arguments if each.partition("=")[0].lstrip("+~") == key), ""
    )


def composed(key: str, configs: Path, arguments: list[str]) -> dict[str, Any]:
    """The configuration ``key`` is looked for in: the choices of the command line and none of its values."""
    groups = [each for each in arguments if re.fullmatch(r"[\w/]+=[\w./-]+", each)]
    groups = [each for each in groups if (configs / each.partition("=")[0]).is_dir()]
    try:
        with initialize_config_dir(str(configs), version_base="1.3"):
            cfg = compose("train", overrides=groups, return_hydra_config=key.startswith("hydra."))
    except (HydraException, OmegaConfBaseException):
        return {}
    return cast(dict[str, Any], OmegaConf.to_container(cfg))
