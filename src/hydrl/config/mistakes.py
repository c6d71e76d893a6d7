"""How a user's mistake is told: the key, the value, and what would do, nearest first."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from hydrl.config import CONFIGS

WORDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
}


def explain(error: ValidationError, values: Any, node: str = "", accepted: Iterable[str] = ()) -> str:
    """What is wrong with the first wrong key, as one line in the user's terms.

    Args:
        error: pydantic's.
        values: the whole configuration.
        node: the dotted path of the part of it that pydantic was given.
        accepted: the keys that could be in that part, where more than it has.
    """

    def key_of(complaint: Mapping[str, Any]) -> str:
        """Its dotted path, without the union member or list index that pydantic adds."""
        path = [node] * bool(node) + [str(part) for part in complaint["loc"]]
        while path[1:] and not isinstance(find(values, ".".join(path[:-1])), Mapping):
            path.pop()
        return ".".join(path)

    key = key_of(error.errors()[0])
    value = find(values, key)
    complaints = {each["type"]: each["msg"] for each in error.errors() if key_of(each) == key}
    match next(iter(complaints)):
        case "extra_forbidden":
            return no_such_key(key, show(value), values, [f"{node}.{each}" for each in accepted])
        case "missing":
            return f"{key} is missing and cannot be left out{offer(key) or f'; give +{key}=VALUE'}"
        case "no_target" if value and "_target_" not in value:
            return f"{key} has {', '.join(value)} and names no part to take them{offer(key)}"
        case "no_target":
            target = show(find(value, "_target_"))
            return f"{key}._target_={target}: should be the dotted path of a class or function"
        case "dict_type" | "model_type" | "model_attributes_type":
            drop = f"; drop it with ~{key}" if "." in key and value is None else offer(key)
            return f"{key}={show(value)}: should be a group of keys{drop or '; set those'}"
    line = f"{key}={show(value)}: should be "
    line += " or ".join(dict.fromkeys(WORDS.get(kind) or shorten(text) for kind, text in complaints.items()))
    if isinstance(value, float) and value.is_integer() and complaints.keys() & {"int_type", "int_from_float"}:
        return f"{line}; write {key}={int(value)}"
    if "list_type" in complaints and not isinstance(value, Mapping):
        return f"{line}; write {key}=[{show(value)}]"
    return line


def unresolved(error: OmegaConfBaseException) -> str:
    """What an interpolation or a mandatory key lacks."""
    text, key = " ".join(str(error.msg or error).split()), error.full_key
    if found := re.search(r"Missing mandatory value: ([\w.]+)", text):
        return f"{found[1]} has no value; give one, as {found[1]}=VALUE"
    if found := re.search(r"Environment variable '([^']+)' not found", text):
        return f"{key}: the environment variable {found[1]} is not set"
    if found := re.search(r"Interpolation key '([^']+)' not found", text):
        return f"{found[1]} is missing, and {key} is made from it; leave it in, or set {key}=VALUE"
    return f"{key}: {text}" if key else text


def show(value: Any) -> str:
    """A value as one would type it, cut where it gets long."""
    text = repr(value) if isinstance(value, float) else json.dumps(value).replace('"', "")
    return text if len(text) <= 60 else f"{text[:57]}..."


def shorten(message: str) -> str:
    """Pydantic's ``Input should be greater than or equal to 0`` to ``at least 0``."""
    message = message.removeprefix("Input should be ").replace("a valid ", "a ").replace("'", "")
    return message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


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


def no_such_key(key: str, value: str, values: Mapping[str, Any], accepted: Iterable[str] = ()) -> str:
    """Names a wrong key and the right ones.

    Args:
        key: dotted.
        value: what it was given, as shown.
        values: the configuration it is looked for in.
        accepted: further keys that could be there.
    """
    line = f"{key}={value}: there is no such key{instead(key, [*paths(values), *accepted])}"
    target = find(values, f"{key.rpartition('.')[0]}._target_")
    if target and "; did you mean" not in line and not accepted:
        line += f". For another argument of {target} write +{key}={value}"
    return line


def instead(key: str, known: Iterable[str]) -> str:
    """What of the ``known`` dotted paths could stand in place of ``key``, for the end of a sentence."""
    below: dict[str, dict[str, str]] = {}  # each group's names, with their paths
    known = [path for path in dict.fromkeys(known) if path != key]
    for path in known:
        above, _, name = path.rpartition(".")
        below.setdefault(above, {})[name] = path
    group, _, name = key.replace("/", ".").rpartition(".")
    siblings = below.get(group, {})
    near = [siblings[each] for each in difflib.get_close_matches(name, siblings)]
    near = near or [names[name] for names in below.values() if name in names][:4]
    if not near and not (group and siblings):
        near = difflib.get_close_matches(key, known, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    while group and group not in known:
        group = group.rpartition(".")[0]
    listed = ", ".join(name for name in below.get(group, ()) if not name.startswith("_"))
    return f"; {group or 'the top level'} has {listed or 'no keys of its own'}"


def choices(group: Path) -> list[str]:
    """The names a group of ``configs/`` offers; a folder inside it is part of the name."""
    return sorted(str(file.relative_to(group).with_suffix("")) for file in group.rglob("*.yaml"))


def no_such_choice(group: str, choice: str, offered: list[str]) -> str:
    """Lists what a group offers, nearest first."""
    near = difflib.get_close_matches(choice, offered, n=3, cutoff=0.5)
    rest = [each for each in offered if each not in near]
    return f"{group}={choice}: no such choice; try {', '.join([*near, *rest])}"


def offer(group: str) -> str:
    """The choices of a group, for the end of a sentence; nothing for what is no group."""
    return f"; choose {group}={'|'.join(names)}" if (names := choices(CONFIGS / group)) else ""
