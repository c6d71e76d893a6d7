"""A user's own choices, in folders that are named on the command line, and the modules beside them."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.mistakes import content, paths
from hydrl.config.overrides import choices_made, key_of, quoted
from hydrl.errors import UserError


def folders(words: Sequence[str]) -> list[Path]:
    """What ``--config-dir`` and ``hydra.searchpath`` name among the words of a command line."""
    return split(words)[0]


def split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Those folders, and the words that name none."""
    named: list[str] = []
    others = []
    left = iter(words)
    for word in left:
        key, equals, value = word.partition("=")
        if key in ("--config-dir", "-cd"):
            named.append(value if equals else next(left, ""))
        elif key_of(word) == "hydra.searchpath":
            named += [each.strip(" '\"") for each in value.strip("[] ").split(",")]
        else:
            others.append(word)
    plain = [each.removeprefix("file://") for each in named if each]
    return [Path(each).absolute() for each in plain if "://" not in each], others


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
        UserError: where Hydra would read none of it, or not a file, as hydrl has one of that name.
    """
    groups = ["hydra", *(each.name for each in CONFIGS.iterdir() if each.is_dir())]
    for folder in own:
        if folder.is_dir() and not any((folder / each).is_dir() for each in groups):
            raise UserError(f"{folder} holds no group of choices, as actor/ or env/; name the one that does")
        for file in sorted(folder.rglob("*.yaml")):
            if (CONFIGS / file.relative_to(folder)).exists():
                raise UserError(f"{file} is never read, as hydrl has one of that name; give it another")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))


def sources() -> tuple[Path, ...]:
    """The folders that this run's choices are from, hydrl's first."""
    found = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    return CONFIGS, *(Path(each.path) for each in found if each.schema == "file")


def setter(key: str, among: Sequence[str] = ("debug", "experiment", "tuned", "algo")) -> str:
    """What was chosen that sets a dotted ``key`` of other groups, as it is typed, ``tuned=dqn/cartpole``."""
    chosen = choices_made()
    found = [each for each in among if key in paths(content(f"/{each}/{chosen.get(each)}", sources()))]
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
