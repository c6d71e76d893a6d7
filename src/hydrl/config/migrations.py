"""Old words of hydrl's and what each is called now, by the tables in ``migrations.yaml``.

On the command line and in saved runs an old word is rewritten before Hydra reads it. In a user's own file, or
in an import, it is an error that names the new one.
"""

import functools
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hydrl.config.tree import read_yaml
from hydrl.errors import UserError, print_lines

RULES = ("compatible_with", "requires")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The tables in ``migrations.yaml``."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))


@functools.cache
def new_key(key: str) -> str:
    """A dotted key as it is called now."""
    return replace_key(key, table()["keys"].items())


def old_key(key: str) -> str:
    """A dotted key as a file format has it, which keeps the first name."""
    return replace_key(key, [(new, old) for old, new in reversed(table()["keys"].items())])


def replace_key(key: str, renames: Iterable[tuple[str, str]]) -> str:
    """A dotted key after ``renames`` of its beginning, one after the other; ``*`` stands for any name."""
    names = key.split(".")
    for old, new in renames:
        before, after = old.split("."), new.split(".")
        if len(names) >= len(before) and all(
            part in ("*", name) for part, name in zip(before, names, strict=False)
        ):
            names[: len(after)] = [
                name if part == "*" else part for part, name in zip(after, names, strict=False)
            ]
    return ".".join(names)


def new_word(word: str) -> str:
    """An override as it is typed now, ``rnn=lstm`` for ``memory=lstm``."""
    for pattern, replacement in table()["words"].items():
        if re.fullmatch(pattern, word):
            word = re.sub(pattern, replacement, word)
            break
    key, equals, value = split_word(word)
    group, at, package = key.partition("@")
    key = new_key(group)
    options = table()["options"].get(key, {})
    if options:  # perhaps several, `a,b` or `choice(a,b)`
        value = re.sub(r"(?<![\w./-])[\w-]+(?![\w./-])", lambda name: options.get(name[0], name[0]), value)
    else:
        value = re.sub(r"(?<![\w./])hydrl\.[\w.]+", lambda name: new_name(name[0]), value)
    value = re.sub(r"(?<=\$\{)[\w.]+(?=\})", lambda name: new_key(name[0]), value)
    return f"{override_signs(word)}{key}{at}{new_key(package)}{equals}{value}"


def old_word(word: str, cell: str = "lstm") -> str:
    """An override as names of folders and Optuna have it, which keep the first words.

    Args:
        word: the override, or its key alone.
        cell: of the run's RNN, by which the size of its hidden state was called.
    """
    key, equals, value = split_word(word)
    options = {new: old for old, new in table()["options"].get(key, {}).items()}
    old = (
        re.sub(r"(?<=\bmemory\.)lstm$", cell, old_key(key))
        if key.endswith("rnn.hidden_size")
        else old_key(key)
    )
    return f"{override_signs(word)}{old}{equals}{options.get(value, value)}"


def override_signs(word: str) -> str:
    """The ``+`` and ``~`` before an override."""
    return word[: len(word) - len(word.lstrip("+~"))]


def split_word(word: str) -> tuple[str, str, str]:
    """The key without ``+`` and ``~``, the sign between and the value."""
    return word.lstrip("+~").partition("=")


def new_option(key: str, option: Any) -> Any:
    """The value of a key as it is called now; where it is the dotted name of hydrl's, as it is named now."""
    if not isinstance(option, str):
        return option
    return table()["options"].get(key, {}).get(option) or new_name(option)


def new_words(words: Sequence[str]) -> list[str]:
    """Overrides as they are typed now; prints each that was rewritten."""
    current = [word if word.startswith("-") else new_word(word) for word in words]
    for old, new in dict(zip(words, current, strict=True)).items():
        if old != new:
            print_lines(f"{old} is now {new}", sys.stderr)
    return current


def new_config(values: Any, *, scale: str = "bytes", path: str = "") -> Any:
    """The nested ``values`` of a configuration with keys, options and ``_target_`` as they are called now.

    Args:
        values: of a saved run, or of a new one.
        scale: of an encoder that does not say how it scales images: ``bytes``, as before there was a choice.
        path: the dotted key where they lie.
    """
    if isinstance(values, list):
        return [new_config(value, scale=scale) for value in values]
    if not isinstance(values, dict):
        return new_option(path, values) if path in table()["options"] else values
    targets = table()["targets"]
    if set(values) in ({"lstm"}, {"gru"}):  # before an RNN was a component
        values = {"_target_": targets["rnn"], "_partial_": True, **values}
    cells = [cell for cell in ("lstm", "gru") if cell in values]
    if cells and new_name(values.get("_target_")) == targets["rnn"]:
        others = {key: value for key, value in values.items() if key not in cells}
        values = {**others, "cell": cells[0], "hidden_size": values[cells[0]]}
    if "path" in (collector := dataset_collector(values)):  # before a dataset was a component
        data = {key: value for key, value in collector.items() if key in ("path", "task")}
        values = {
            **values,
            "collector": {key: value for key, value in collector.items() if key not in data},
            "data": {"_target_": targets["dataset"], **data},
        }
    current = {}
    for key, value in values.items():
        below = new_child(path, str(key), values)
        name = below.rpartition(".")[2] if below != join_key(path, str(key)) else key
        if name in RULES and isinstance(value, dict):
            current[name] = new_rules(value)
        else:
            current[name] = new_config(value, scale=scale, path=below)
    if "_target_" in current:  # as an environment's id may be MODULE:NAME
        current |= {key: new_name(current[key]) for key in ("_target_", "id") if key in current}
    return {"scale": scale, **current} if current.get("_target_") == targets["encoder"] else current


def new_rules(rules: Mapping[str, Any]) -> dict[str, Any]:
    """What a component is compatible with or requires, by keys and options as they are called now."""
    current = {new_key(key): options for key, options in rules.items()}
    return {
        key: [new_option(key, option) for option in options] if isinstance(options, list) else options
        for key, options in current.items()
    }


def new_child(path: str, key: str, node: Mapping[str, Any]) -> str:
    """The dotted key of what lies at ``key`` in the ``node`` at ``path``, as it is called now."""
    if "_target_" in node:
        key = table()["components"].get(key, key)
    return new_key(join_key(path, key))


def join_key(path: str, key: str) -> str:
    """A dotted key and one below it."""
    return f"{path}.{key}" if path else key


def dataset_collector(values: Mapping[str, Any]) -> dict[str, Any]:
    """The collector in settings, where it draws from a dataset."""
    collector: Any = values.get("collector")
    target = table()["targets"]["dataset_collector"]
    draws = isinstance(collector, dict) and new_name(collector.get("_target_")) == target
    return collector if draws else {}


def with_encoders(then: Mapping[str, Any], now: Mapping[str, Any], networks: Sequence[str]) -> dict[str, Any]:
    """Settings from when all observations were one vector, as they are said now, to be compared.

    Args:
        then: of an older run; one that names an encoder is given back.
        now: of the same run as it would be begun now.
        networks: the names of those that are learned.
    """
    if "encoder" in then:
        return {**then}
    current = {**then, **{name: now.get(name) for name in ("encoder", "rnn")}}
    for name in (network for network in networks if then.get(network)):
        of_the_actor = then[name].get("in_keys") == ["memory"]
        new = {key: None for key in ("in_keys", "rnn") if key in (now.get(name) or {})}
        others = {
            key: value for key, value in then[name].items() if value not in (["observation"], ["memory"])
        }
        read = "shared" if of_the_actor else (now.get(name) or {}).get("encoder")
        current[name] = {**new, **({"encoder": read} if read else {}), **others}
    if (normalize := (then.get("transforms") or {}).get("normalize")) and "in_keys" in normalize:
        in_keys = normalize["in_keys"]
        standing = {**normalize, "in_keys": None if in_keys == ["observation"] else in_keys}
        current["transforms"] = {**then["transforms"], "normalize": standing}
    return current


def with_pipelined(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run with ``collector=overlap`` as if it had ``pipelined``, which replaced it.

    Args:
        then: of an older run; one with another collector is given back.
        now: of the same run as it would be begun now.
    """
    old, target = then.get("collector") or {}, table()["targets"]["pipelined"]
    is_pipelined = (now.get("collector") or {}).get("_target_") == target
    if not is_pipelined or (old.get("sync"), old.get("num_workers")) != (False, 1):
        return {**then}
    collector = {key: value for key, value in old.items() if key not in ("sync", "num_workers")}
    return {**then, "collector": {**collector, "_target_": target}}


def old_config(values: Any, path: str = "") -> Any:
    """A configuration with its keys as W&B has them, which keeps the first names."""
    if not isinstance(values, Mapping):
        return values
    if {"cell", "hidden_size"} <= {*values}:
        others = {key: value for key, value in values.items() if key not in ("cell", "hidden_size")}
        values = {**others, values["cell"]: values["hidden_size"]}
    return {
        old_key(join_key(path, str(key))).rpartition(".")[2]: old_config(value, join_key(path, str(key)))
        for key, value in values.items()
    }


def new_name(name: Any) -> Any:
    """The dotted name of a module, class or function of hydrl's as it is now; anything else as it is."""
    if not isinstance(name, str) or name.partition(".")[0] != "hydrl":
        return name
    path, colon, rest = name.partition(":")
    parts = path.split(".")
    for length in range(len(parts), 1, -1):
        if module := table()["modules"].get(".".join(parts[:length])):
            parts = [module, *parts[length:]]
            break
    return new_path(".".join(parts)) + colon + rest


def new_class(module: str, path: str) -> tuple[str, str]:
    """The current module and qualified name of a class or function."""
    module = new_name(module)
    return module, new_path(f"{module}.{path}").removeprefix(f"{module}.")


@functools.cache
def new_path(name: str) -> str:
    """``name`` with its class or function renamed, where that stands in the table."""
    for old, new in sorted(table()["names"].items(), key=lambda names: -len(names[0])):  # methods first
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return name


def check_file(file: Path, group: str, package: str) -> None:
    """Refuses old words in a user's own YAML file.

    Args:
        file: that Hydra could read.
        group: the folder it lies in, as ``algo``.
        package: the dotted key where its keys lie, as Hydra has it.

    Raises:
        UserError: with each old word and the new one.
    """
    try:
        content = read_yaml(file)
    except (OSError, ValueError, yaml.YAMLError):  # which Hydra names
        return
    if not isinstance(content, dict):
        return
    root = {"_global_": "", "_group_": group}.get(package, package)
    renames = dict([*old_options(content.pop("defaults", None), group), *old_words(content, root)])
    if renames:
        lines = ", ".join(f"{old} is now {new}" for old, new in renames.items())
        raise UserError(f"{file}: {lines}. Change the file")


def old_options(defaults: Any, group: str) -> Iterator[tuple[str, str]]:
    """The old options in a defaults list, each with the new one, as they are typed."""
    for entry in defaults if isinstance(defaults, list) else []:
        options = entry if isinstance(entry, dict) else {f"/{group}": entry}
        for key, option in options.items():
            key = re.sub(r"^((override|optional)\s+)*", "", str(key))
            for name in option if isinstance(option, list) else [option]:
                word = f"{key.lstrip('/')}={name}"
                if key.startswith("/") and (current := new_word(word)) != word:
                    yield word, current


def old_words(values: Any, path: str) -> Iterator[tuple[str, str]]:
    """The old words in nested ``values`` that lie at a dotted key, each with the new one."""
    if isinstance(values, list):
        for value in values:
            yield from old_words(value, "")
    elif isinstance(values, dict):
        for key, value in values.items():
            below = new_child(path, str(key), values)
            if below != join_key(path, str(key)):
                yield join_key(path, str(key)), below
            if below.rpartition(".")[2] in RULES and isinstance(value, dict):
                yield from old_rules(value)
            else:
                yield from old_words(value, below)
    elif isinstance(values, str):
        if (current := new_option(path, values)) != values:
            prefix = "" if values.partition(".")[0] == "hydrl" else f"{path}="
            yield f"{prefix}{values}", f"{prefix}{current}"
        for name in re.findall(r"\$\{([\w.]+)\}", values):
            if (current := new_key(name)) != name:
                yield f"${{{name}}}", f"${{{current}}}"


def old_rules(rules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The old words in what a component is compatible with or requires."""
    for key, options in rules.items():
        if (current := new_key(key)) != key:
            yield key, current
        for option in options if isinstance(options, list) else []:
            if (name := new_option(current, option)) != option:
                yield f"{current}={option}", f"{current}={name}"


def explain_import(error: BaseException) -> str:
    """The line for a failed import of a name that hydrl had; empty where it never had that."""
    if not isinstance(error, ImportError):
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        statement = re.match(r"(?:from|import)\s+(hydrl[\w.]*)(?:\s+import\s+(.*))?", frame.line or "")
        if statement:
            module, names = statement[1], re.findall(r"\w+", statement[2] or "")
            for name in [*(f"{module}.{name}" for name in names), module]:
                if (current := new_name(name)) != name:
                    return f"{name} is now {current}"
    return ""
