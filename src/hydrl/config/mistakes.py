"""How a user's mistake is told: the key, the value, and what would do, nearest first."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

WORDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "string_type": "text",
}


def show(value: Any) -> str:
    """A value as one would type it, cut where it gets long."""
    text = repr(value) if isinstance(value, float) else json.dumps(value).replace('"', "")
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong_value(key: str, value: Any, complaints: Iterable[Mapping[str, Any]]) -> str:
    """``key=value: should be ...``, from pydantic's complaints about one value."""
    kinds = {each["type"] for each in complaints}
    wishes = dict.fromkeys(WORDS.get(each["type"]) or shorten(each["msg"]) for each in complaints)
    line = f"{key}={show(value)}: should be {' or '.join(wishes)}"
    if isinstance(value, float) and value.is_integer() and kinds & {"int_type", "int_from_float"}:
        return f"{line}; write {key}={int(value)}"
    if "list_type" in kinds and not isinstance(value, Mapping):
        return f"{line}; write {key}=[{show(value)}]"
    return line


def shorten(message: str) -> str:
    """Pydantic's ``Input should be greater than or equal to 0`` to ``at least 0``."""
    message = message.removeprefix("Input ").removeprefix("should be ").replace("'", "")
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
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values


def meant(key: str, known: Iterable[str]) -> list[str]:
    """The dotted paths somebody who wrote ``key`` may have meant, likeliest first."""
    parent, _, name = key.replace("/", ".").rpartition(".")
    known = [each for each in dict.fromkeys(known) if each != key]
    siblings = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == parent}
    near = [siblings[each] for each in difflib.get_close_matches(name, siblings)]
    namesakes = [each for each in known if each.rpartition(".")[2] == name]
    return (
        near
        or namesakes[:4]
        or ([] if siblings and parent else difflib.get_close_matches(key, known, cutoff=0.7))
    )


def no_such_key(key: str, value: str, values: Mapping[str, Any], accepted: Iterable[str] = ()) -> str:
    """Names a wrong key and the right ones.

    Args:
        key: dotted.
        value: what it was given, as shown.
        values: the configuration it is looked for in.
        accepted: further keys that could be there.
    """
    line = f"{key}={value}: there is no such key{instead(key, values, accepted)}"
    target = find(values, f"{key.rpartition('.')[0]}._target_")
    if target and "; did you mean" not in line and not accepted:
        line += f". For another argument of {target} write +{key}={value}"
    return line


def instead(key: str, values: Mapping[str, Any], accepted: Iterable[str] = ()) -> str:
    """What could stand in place of ``key``, for the end of a sentence."""
    known = [*paths(values), *accepted]
    if near := meant(key, known):
        return f"; did you mean {' or '.join(near)}?"
    parent = key.rpartition(".")[0]
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    siblings = [
        each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == parent and each != key
    ]
    names = ", ".join(name for name in dict.fromkeys(siblings) if not name.startswith("_"))
    return f"; {parent or 'the top level'} has {names or 'no keys of its own'}"


def choices(group: Path) -> list[str]:
    """The names a group of ``configs/`` offers; a folder inside it is part of the name."""
    return sorted(str(file.relative_to(group).with_suffix("")) for file in group.rglob("*.yaml"))


def no_such_choice(group: str, choice: str, offered: list[str]) -> str:
    """Lists what a group offers, nearest first."""
    near = difflib.get_close_matches(choice, offered, n=3, cutoff=0.5)
    rest = [each for each in offered if each not in near]
    return f"{group}={choice}: no such choice; try {', '.join([*near, *rest])}"


def offer(configs: Path, group: str) -> str:
    """The choices of a group, for the end of a sentence; nothing for what is no group."""
    return f"; choose {group}={'|'.join(names)}" if (names := choices(configs / group)) else ""
