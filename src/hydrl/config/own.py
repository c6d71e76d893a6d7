"""A user's own choices, in folders that are named on the command line, and the modules beside them."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.mistakes import paths
from hydrl.config.overrides import key_of, quoted
from hydrl.errors import UserError


def folders(words: Sequence[str]) -> list[Path]:
    """What ``--config-dir`` and ``hydra.searchpath`` name among the words of a command line."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        if key in ("--config-dir", "-cd"):
            found.append(value if equals else following)
        elif key_of(word) == "hydra.searchpath":
            found += [each.strip(" '\"") for each in value.strip("[] ").split(",") if each]
    plain = [each.removeprefix("file://") for each in found]
    return [Path(each).absolute() for each in plain if "://" not in each]


def without_folders(words: Sequence[str]) -> list[str]:
    """The words of a command line but those that :func:`folders` reads."""
    following = [False, *(word in ("--config-dir", "-cd") for word in words)]
    said = r"(-cd|--config-dir)(=|$)|\+*hydra\.searchpath="
    return [
        word for word, taken in zip(words, following, strict=False) if not (taken or re.match(said, word))
    ]


def searchpath(own: Iterable[Path]) -> str:
    """The folders as one override for Hydra."""
    paths = [f"file://{each}" for each in own]
    plain = [each if re.fullmatch(r"[\w/.:-]+", each) else quoted(each) for each in paths]
    return f"hydra.searchpath=[{','.join(plain)}]"


def typed(own: Sequence[Path]) -> list[str]:
    """The folders as they are typed: Hydra takes one ``--config-dir``."""
    return [searchpath(own)] if len(own) > 1 else [f"--config-dir={each}" for each in own]


def use(own: Iterable[Path]) -> None:
    """Lets Python import what lies beside the folders, after all that it can import anyway.

    Raises:
        UserError: for a file that Hydra would never read, as hydrl has one of that name.
    """
    for folder in own:
        for file in sorted(folder.rglob("*.yaml")):
            if (CONFIGS / file.relative_to(folder)).exists():
                raise UserError(f"{file} is never read, as hydrl has one of that name; give it another")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))


def sources() -> list[Path]:
    """The folders that this run's choices are from, hydrl's first."""
    found = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    return [CONFIGS, *(Path(each.path) for each in found if each.schema == "file")]


def setter(key: str, among: Sequence[str] = ("debug", "experiment", "tuned", "algo")) -> str:
    """What was chosen that sets a dotted ``key`` of other groups, as it is typed, ``tuned=dqn/cartpole``."""

    def has(choice: PurePosixPath) -> bool:
        """Whether its file, or one that it is made from, has the key."""
        files = [Path(f"{folder}{choice}.yaml") for folder in sources()]
        said: list[Any] = [OmegaConf.to_container(OmegaConf.load(each)) for each in files if each.is_file()]
        made_from = [each for values in said for each in values.get("defaults", []) if isinstance(each, str)]
        return any(key in paths(values) for values in said) or any(
            has(choice.parent / each) for each in made_from
        )

    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    groups = [each for each in among if chosen.get(each)]
    found = [each for each in groups if has(PurePosixPath("/", each, chosen[each]))]
    return f"{found[0]}={chosen[found[0]]}" if found else ""


def remembered(run: Path) -> list[Path]:
    """The folders that a run was begun with; they are as trusted as the run folder is."""
    file = run / ".hydra" / "hydra.yaml"
    try:
        hydra = OmegaConf.load(file).hydra.runtime
        own = [each.path for each in hydra.config_sources if "command-line" in each.provider]
        return [Path(hydra.cwd, each.removeprefix("file://")) for each in own if "://" not in each]
    except Exception:  # none, or whatever somebody may have put there
        return []
