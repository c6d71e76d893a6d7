"""Folders with a user's own options, ``--config-dir=DIR``, and the modules next to them."""

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from yaml import YAMLError

from hydrl.config import CONFIGS
from hydrl.config.migrations import check_file
from hydrl.config.overrides import chosen_options, key_of, quoted
from hydrl.config.tree import paths, read_option
from hydrl.errors import UserError

GLOBAL_PACKAGE = "# @package _global_"  # first line of a file with top-level keys


def named_folders(words: Sequence[str]) -> list[Path]:
    """Folders named by ``--config-dir`` and ``hydra.searchpath`` on a command line."""
    return split_folders(words)[0]


def split_folders(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """These folders, and the other words."""
    named: list[str] = []
    others = []
    left = iter(words)
    for word in left:
        key, equals, value = word.partition("=")
        if key in ("--config-dir", "-cd"):
            named.append(value if equals else next(left, ""))
        elif key_of(word) == "hydra.searchpath":
            named += [name.strip(" '\"") for name in value.strip("[] ").split(",")]
        else:
            others.append(word)
    plain = [name.removeprefix("file://") for name in named if name]
    return [Path(name).absolute() for name in plain if "://" not in name], others


def searchpath(folders: Iterable[Path]) -> str:
    """The folders as one override for Hydra."""
    paths = [f"file://{path}" for path in folders]
    plain = [path if re.fullmatch(r"[\w/.:-]+", path) else quoted(path) for path in paths]
    return f"hydra.searchpath=[{','.join(plain)}]"


def folder_options(folders: Sequence[Path]) -> list[str]:
    """The folders as options; Hydra takes one ``--config-dir``."""
    return [searchpath(folders)] if len(folders) > 1 else [f"--config-dir={path}" for path in folders]


def add_folders(folders: Iterable[Path]) -> None:
    """Lets Python import modules next to the folders, after all others.

    Raises:
        UserError: where Hydra would read none of it, not a file, as hydrl has one of that name, or one
            whose keys would lie elsewhere.
    """
    groups = ["hydra", *(entry.name for entry in CONFIGS.iterdir() if entry.is_dir())]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder. Name one that holds groups such as actor/ or env/.")
        if not any((folder / group).is_dir() for group in groups):
            raise UserError(
                f"{folder}: holds no group of options, such as actor/ or env/. Name the folder that does."
            )
        files = sorted(folder.rglob("*.yaml"))
        for file in files:
            if (CONFIGS / file.relative_to(folder)).exists():
                raise UserError(f"{file}: is never read, as hydrl has one of that name. Rename it.")
            check_package(file, file.relative_to(folder).parts[0])
        for file in files:
            check_file(file, file.relative_to(folder).parts[0], package_of(file))
        for file in (path for group in groups for path in folder.glob(f"{group}/**/*.yml")):
            raise UserError(f"{file}: is never read. Give it the ending .yaml.")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))


def check_package(file: Path, group: str) -> None:
    """Checks that a file has the same package as the others of its group: the top level or not.

    Raises:
        UserError: if it does not.
    """
    if not (CONFIGS / group).is_dir():
        return
    theirs = [
        path.read_text(encoding="utf-8").startswith(GLOBAL_PACKAGE)
        for path in (CONFIGS / group).rglob("*.yaml")
    ]
    package = package_of(file)
    if all(theirs) and package != "_global_" and package.startswith("_"):
        raise UserError(
            f"{file}: does not begin with the line `{GLOBAL_PACKAGE}`, as every file of {group}/ does. "
            f"Write it above all else, for without it `KEY:` is read as {group}.KEY."
        )
    if not any(theirs) and package == "_global_":
        with suppress(YAMLError):  # which Hydra reports
            known = {
                *read_option("/train"),
                *(entry.name for entry in CONFIGS.iterdir()),
                "hydra",
                "defaults",
            }
            if lost := [str(key) for key in OmegaConf.load(file) if key not in known]:
                raise UserError(
                    f"{file}: {lost[0]} is no key at the top level. Leave out the line "
                    f"`{GLOBAL_PACKAGE}`, as the files of {group}/ do."
                )


def package_of(file: Path) -> str:
    """The package that a file names, ``_group_`` where it names none.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        header = re.match(r"(?:\s*#\s*@\w+.*\n)*?\s*#\s*@package\s+(\S+)", file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}.") from None
    return header[1] if header else "_group_"  # as Hydra has it


def option_folders() -> tuple[Path, ...]:
    """Folders of this run's options, hydrl's first."""
    config_sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    return CONFIGS, *(Path(source.path) for source in config_sources if source.schema == "file")


def find_setter(key: str, among: Sequence[str] = ("debug", "experiment", "tuned", "algo")) -> str:
    """The option that sets a dotted ``key`` of another group, such as ``tuned=dqn/cartpole``."""
    option_of_group = chosen_options()
    owners = [
        group
        for group in among
        if key in paths(read_option(f"/{group}/{option_of_group.get(group)}", option_folders()))
    ]
    return f"{owners[0]}={option_of_group[owners[0]]}" if owners else ""


def saved_folders(run: Path) -> list[Path]:
    """Folders of a run's own options; they are as trusted as the run folder."""
    file = run / ".hydra" / "hydra.yaml"
    try:
        hydra = OmegaConf.load(file).hydra.runtime
        folders = [source.path for source in hydra.config_sources if "command-line" in source.provider]
        return [Path(hydra.cwd, path.removeprefix("file://")) for path in folders if "://" not in path]
    except Exception:  # none, or whatever somebody may have put there
        return []
