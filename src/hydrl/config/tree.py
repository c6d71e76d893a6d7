"""Nested configurations by dotted keys, and the options that the files of ``configs/`` offer."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, cast

import yaml
from omegaconf import OmegaConf

from hydrl.config import CONFIGS


def paths(values: Any, prefix: str = "") -> Iterator[str]:
    """The dotted path of every key in nested dictionaries."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield f"{prefix}{key}"
            yield from paths(value, f"{prefix}{key}.")


def find(values: Any, path: str) -> Any:
    """The value at a dotted path, or ``None``."""
    for part in path.split(".") if path else ():
        try:
            values = values[int(part) if isinstance(values, list) else part]
        except (LookupError, TypeError, ValueError):
            return None
    return values


def show(value: Any) -> str:
    """A value as you would type it, cut after 60 characters."""
    text = repr(value) if isinstance(value, float) else json.dumps(value).replace('"', "")
    return text if len(text) <= 60 else f"{text[:57]}..."


def option_names(group: Path) -> list[str]:
    """The names of the options of a group; a folder inside it is part of the name."""
    return sorted(str(file.relative_to(group).with_suffix("")) for file in group.rglob("*.yaml"))


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML as OmegaConf does, and by libyaml if PyYAML has it: ``1e-3`` is a float, a date is text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


EXPONENT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")  # text for YAML 1.1
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def read_yaml(file: Path) -> Any:
    """The content of a YAML file; ``None`` if it is empty."""
    return yaml.load(file.read_text(encoding="utf-8"), Loader=YamlLoader)


@cache
def read_option(option: PurePosixPath | str, folders: tuple[Path, ...] = (CONFIGS,)) -> dict[str, Any]:
    """The content of an option's file, ``/group/name``, merged over the options it starts from; read once."""
    files = (Path(f"{folder}{option}.yaml") for folder in folders)
    file = next((file for file in files if file.is_file()), None)
    own = OmegaConf.create((read_yaml(file) if file else None) or {})
    bases = [base for base in own.pop("defaults", []) if isinstance(base, str)]
    contents = [read_option(PurePosixPath(option).parent / base, folders) for base in bases]
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.merge(*contents, own)))


def option_target(option: str) -> str:
    """The ``_target_`` of hydrl's own option ``GROUP/NAME``, by which its components are told from others."""
    group, _, _ = option.partition("/")
    values = read_option(f"/{option}")
    return str(find(values, f"{group}._target_") or find(values, "module._target_") or values.get("_target_"))


def options_with_key(key: str, value: Any = None) -> list[str]:
    """The options, as they are typed, that have a dotted ``key``, and this ``value`` for it."""
    group, _, within = key.partition(".")
    options = []
    for name in option_names(CONFIGS / group) if within else []:
        values = read_option(f"/{group}/{name}")
        values = values.get(group, values)  # where it sets keys of other groups, too
        if within in paths(values) and value in (None, find(values, within)):
            options.append(f"{group}={name}")
    return options
