"""The command line around Hydra: a user's mistake is a line or two and exit code 2, never a traceback."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrl.errors import Interrupted, UserError


_exit_code = 0


def job(train: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Makes a function Hydra's job: a failure is told and remembered, and the rest of a sweep goes on."""

    @wraps(train)
    def wrapper(cfg: DictConfig) -> None:
        global _exit_code
        try:
            train(cfg)
        except UserError as error:
            _exit_code = complain(str(error))
        except Exception:
            traceback.print_exc()
            _exit_code = 1

    return wrapper


def run(main: Callable[[], Any], configs: Path) -> int:
    """Calls Hydra's ``main`` and turns what comes of it into an exit code.

    Returns:
        0 when trained, 2 for a user's mistake, 128 + signal when interrupted, 1 for a defect, which keeps
        its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's complaints arrive here instead of ending in its own exit(1)
    try:
        main()
    except Interrupted as error:
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except (HydraException, OmegaConfBaseException) as error:
        return complain(translate(error, configs, sys.argv[1:]))
    return _exit_code


def complain(message: str) -> int:
    """Prints a user's mistake; the exit code for it."""
    print(f"error: {message}", file=sys.stderr)
    return 2


def translate(error: Exception, configs: Path, arguments: list[str]) -> str:
    """Hydra's complaint about an override in one line that names key, value and what would do."""
    text = str(error)
    if found := re.search(r"Could not find '([\w./-]+)'", text):
        return unknown_choice(found[1], configs)
    if found := re.search(r"Could not override '([\w./@-]+)'", text):
        group = configs / found[1].replace(".", "/")
        if group.is_dir():
            return f"{found[1]}: is a group; choose with {found[1]}={'|'.join(choices(group))}"
        return unknown_override(found[1], configs, arguments)
    if found := re.search(r"Could not delete from config\. '?([\w.-]+)'?", text):
        key = found[1]
        return f"~{key}: there is nothing of that name to delete{known_keys(key.rpartition('.')[0], configs, arguments, key)}"
    if "No viable alternative" in text or type(error).__name__ == "OverrideParseException":
        return f"cannot read {text.splitlines()[0].split('`')[-2] if '`' in text else 'an argument'}; write key=value"
    return " ".join(line.strip() for line in text.splitlines() if line.strip())[:300]


def choices(group: Path) -> list[str]:
    """The names a group offers."""
    return sorted(file.stem for file in group.glob("*.yaml"))


def unknown_choice(choice: str, configs: Path) -> str:
    """``env/cartpol`` to a line that lists what ``env`` offers, nearest first."""
    group, _, name = choice.rpartition("/")
    offered = choices(configs / group)
    near = difflib.get_close_matches(name, offered, n=3, cutoff=0.5)
    rest = [each for each in offered if each not in near]
    return f"{group}={name}: no such choice; try {', '.join([*near, *rest])}"


def unknown_override(key: str, configs: Path, arguments: list[str]) -> str:
    """A key that is not in the composed configuration, with the value it was given."""
    value = next((each.split("=", 1)[1] for each in arguments if each.split("=")[0] == key), "")
    return f"{key}={value}: there is no such key{known_keys(key.rpartition('.')[0], configs, arguments, key)}"


def known_keys(parent: str, configs: Path, arguments: list[str], wrong: str) -> str:
    """The keys beside a wrong one, read from the configuration composed without the plain overrides."""
    groups = [each for each in arguments if "=" in each and (configs / each.split("=")[0].lstrip("+~")).is_dir()]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(configs), version_base="1.3"):
            cfg: Any = compose("train", overrides=[each for each in groups if "," not in each])
        node = OmegaConf.select(cfg, parent) if parent else cfg
    except (HydraException, OmegaConfBaseException):
        return ""
    if not isinstance(node, DictConfig):
        return f"; {parent} has no keys of its own"
    names = [f"{parent}.{name}" if parent else str(name) for name in node if not str(name).startswith("_")]
    near = difflib.get_close_matches(wrong, names, n=3)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {parent or 'the top level'} has {', '.join(names)}"
