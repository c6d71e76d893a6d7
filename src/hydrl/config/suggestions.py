"""Answers to mistakes: ``<key>=<value>: <what is wrong>. <What to write instead>.``

``aliases.yaml`` has the words of Stable-Baselines3, CleanRL and TorchRL, and what to write here.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from hydrl.config import CONFIGS
from hydrl.config.overrides import chosen_options, key_of, typed_words
from hydrl.config.schema import NETWORKS, RULES
from hydrl.config.signatures import accepted_parameters
from hydrl.config.tree import find, option_names, options_with_key, paths, read_yaml, show
from hydrl.env_ids import find_option
from hydrl.errors import ConfigError

REQUIRED_GROUPS = ("algo", "env", "loss", "collector", "optim")
NULLS = ("None", "NONE", "Null", "false", "False")


@cache
def aliases() -> dict[str, dict[str, Any]]:
    """The tables of ``aliases.yaml``."""
    return read_yaml(Path(__file__).with_name("aliases.yaml"))


# ----- wrong values


def explain(
    error: ValidationError, values: Any, node: str = "", nullable: Callable[[str], bool] = lambda key: False
) -> ConfigError:
    """The error with a line for each wrong key.

    Args:
        error: pydantic's.
        values: the whole configuration.
        node: the dotted path of the part of it that pydantic validated.
        nullable: whether a dotted key may be null.
    """
    complaints: dict[str, dict[str, str]] = {}
    for detail in error.errors():
        key = key_of_error([*[node] * bool(node), *map(str, detail["loc"])], values)
        complaints.setdefault(key, {})[detail["type"]] = detail["msg"]
    lines = {
        key: wrong_value(key, by_type, values, nullable=nullable(key))
        for key, by_type in complaints.items()
        if not any(other.startswith(f"{key}.") for other in complaints)
    }
    return ConfigError(without_copies(lines, values))


def key_of_error(location: list[str], values: Any) -> str:
    """The dotted key, without the union member or list index that pydantic adds."""
    while location[1:] and not isinstance(find(values, ".".join(location[:-1])), Mapping):
        location.pop()
    key = ".".join(location)
    if (
        key == "task" and isinstance(values.get("env"), Mapping) and key in values
    ):  # env=gym and env=custom take it from these
        names = (name for name in ("id", "_target_") if values["env"].get(name, key) == values[key])
        key = next((f"env.{name}" for name in names), key)
    return key


def without_copies(lines: Mapping[str, str], values: Any) -> dict[str, str]:
    """Leaves out keys that copy a wrong value, as ``anneal_frames`` copies ``total_frames``."""
    typed = set(map(key_of, typed_words()))
    ordered = sorted(lines, key=lambda key: key not in typed)  # stable: typed ones first
    copies = {
        key
        for place, key in enumerate(ordered)
        if key not in typed and find(values, key) in [find(values, earlier) for earlier in ordered[:place]]
    }
    return {key: line for key, line in lines.items() if key not in copies}


def wrong_value(key: str, complaints: Mapping[str, str], values: Any, *, nullable: bool) -> str:
    """The message for a key of which pydantic has ``complaints``, by their types."""
    value = find(values, key)
    if "extra_forbidden" in complaints:
        return no_such_key(key, show(value), values)
    if "missing" in complaints:
        return explain_missing(key)
    line = f"{key}={show_typed(key, value)}"
    options = [option or "null" for option in compatible_options(values, key) or option_names(CONFIGS / key)]
    if "part" in complaints and options:
        if "_target_" not in value and key in (find(values, "loss.networks") or {}).values():
            line = f"{key}=null: algo={values['algo']} needs {'an' if key == 'actor' else 'a'} {key}"
        else:
            line += f": should {next(iter(complaints.values())).partition('should ')[2]}"
        return f"{line}. Use {join_or(f'{key}={option}' for option in options)}."
    expected = [
        expected_of(key) or aliases()["expected"].get(kind) or message.partition("should ")[2]
        for kind, message in complaints.items()
    ]
    line += ": should " + " or ".join(dict.fromkeys(expected)).replace(" or be ", " or ")
    whole = bool(complaints.keys() & {"int_type", "int_from_float"})
    if value is None and key.startswith("transforms.") and key.count(".") == 1:
        return f"{line}. Write ~{key}."
    if number := parse_number(value, whole=whole):
        return f"{line}. Write {key}={number}."
    if str(value).lower() == "none" and nullable:
        return f"{line}. Write {key}=null."
    if "list_type" in complaints and not isinstance(value, Mapping) and value is not None:
        return f"{line}{advise_list(key, value)}"
    if isinstance(value, str) and complaints.keys() <= {"float_type", "float_parsing"}:
        return f"{line}. Write a number such as 0.5 or 1e-3."
    return f"{line}."


def show_typed(key: str, value: Any) -> str:
    """A value as it was typed, and as YAML reads it where it was not."""
    typed = [word.partition("=")[2] for word in typed_words() if key_of(word) == key]
    return typed[-1] if typed and len(typed[-1]) <= 60 and not isinstance(value, Mapping) else show(value)


def advise_list(key: str, value: Any) -> str:
    """The end of a line about a value that should be a list."""
    numbers = re.findall(r"\d+", value) if str(value)[:1].isdigit() and isinstance(value, str) else []
    if isinstance(value, str) and not numbers and key.endswith("_cells"):
        return f" of integers. Write {key}=[64,64]."
    return f". Write {key}=[{','.join(numbers) or show(value)}]."


def parse_number(value: Any, *, whole: bool) -> str:
    """A number in YAML for ``1M`` and, if it should be ``whole``, for ``1e6``."""
    if short := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", str(value)):
        return f"{round(float(short[1]) * {'k': 1_000, 'm': 1_000_000}[short[2].lower()]):_}"
    return f"{int(value):_}" if whole and isinstance(value, float) and value.is_integer() else ""


def expected_of(key: str) -> str:
    """What a value of a key should be, such as ``be a name``; empty if pydantic's text is clear."""
    if key == "env.id":
        expected = aliases()["expected"]
        return expected.get(f"env={chosen_options().get('env')}", expected["env=gym"])
    return aliases()["expected"].get(key, "")


def explain_missing(key: str) -> str:
    """The message for a key that is required and was left out."""
    how = "Add `task: NAME` to the file of env=…, at the top level" if key == "task" else f"Write {key}=VALUE"
    return f"{key}: this key is required. {how}."


def explain_unresolved(error: OmegaConfBaseException) -> str:
    """The message for an interpolation without its key, or a key without its value."""
    text = str(error.msg or error).splitlines()[0]
    _, marker, key = text.partition("Missing mandatory value: ")
    if marker:
        key = key if "." in key else error.full_key or key
        expected = expected_of(key).removeprefix("be ")
        _, has_example, example = expected.partition(", such as ")
        noun = "NAME" if has_example else "PATH" if key.endswith("path") else "VALUE"
        advice = f", such as {example}" if has_example else f", {expected}" if expected else ""
        return f"{key}: no value. Write {key}={noun}{advice}."
    group = re.search(r"Interpolation key '(\w+)' not found", text)
    if group and group[1] == "task":
        return explain_missing("task")
    if group and (options := option_names(CONFIGS / group[1])):
        return explain_missing(group[1]).replace("VALUE", options[0])
    if group and error.full_key:
        return f"{error.full_key}=${{{group[1]}}}: no such key. Write ${{KEY}} with a dotted key, or a value."
    return f"{error.full_key}: {text}." if error.full_key else text


# ----- unknown keys


def no_such_key(key: str, value: str, values: Mapping[str, Any]) -> str:
    """The message for an unknown key.

    Args:
        key: dotted.
        value: its value, as shown.
        values: the configuration that has no such key.
    """
    return f"{key}={value}: no such key. {key_advice(key, value, values)}."


def key_advice(key: str, value: str, values: Mapping[str, Any]) -> str:
    """What to write instead of an unknown key, without the full stop."""
    if key not in values and (text := read_advice(key, value)):
        return text
    group, _, name = key.rpartition(".")
    known = [path for path in paths(values) if path != key]
    target = find(values, f"{group}._target_")
    is_bare = target and find(values, group).keys() == {"_target_"}  # its keys are in no file
    if text := advice_on_options(key, value, known, values):
        is_env_key = key.startswith("env.") and has_parameter(find(values, "env._target_"), key.split(".")[1])
        return f"Write +{key}={value}" if is_env_key or (is_bare and has_parameter(target, name)) else text
    if near := near_words(key, value, known):
        return f"Write {join_or(near)}"
    if target and has_parameter(target, name):
        return f"Write +{key}={value}"
    if is_bare:
        run_fills = {"self", *(find(values, f"{group.rpartition('.')[0]}.networks") or ())}
        parameters = [parameter for parameter in parameters_of(target) if parameter not in run_fills]
        close = difflib.get_close_matches(name, parameters, 1)
        return f"Write +{group}.{close[0]}={value}" if close else f"{target} takes {', '.join(parameters)}"
    if group == "env" and target:
        kwargs = accepted_parameters(get_object(target))
        if "scenario_kwargs" in kwargs[0] or kwargs[1]:
            within = "env.scenario_kwargs" if "scenario_kwargs" in kwargs[0] else "env"
            advice_on_kwargs = f"For a keyword argument of the environment write +{within}.{name}={value}"
            return f"{list_keys(key, known)}. {advice_on_kwargs}"
    return list_keys(key, known)


def advise_key(key: str, value: str, known: Sequence[str]) -> str:
    """What to write instead of a wrong ``key``, of the dotted paths that are known, without the full stop."""
    near = near_words(key, value, known)
    return f"Write {join_or(near)}" if near else list_keys(key, known)


def read_advice(key: str, value: str) -> str:
    """Advice of ``aliases.yaml`` on a key without an equivalent."""
    return aliases()["advice"].get(f"{key}={value}") or aliases()["advice"].get(key, "")


def translate_alias(key: str, value: str) -> list[tuple[str, str]]:
    """Equivalents of another library's key: dotted keys, and each as it is typed."""
    table, name = aliases()["keys"], key.replace("/", ".").rpartition(".")[2]
    near = difflib.get_close_matches(name, [alias for alias in table if "=" not in alias], 1, 0.85)
    equivalents = table.get(f"{name}={value.lower()}") or (table[near[0]] if near else [])
    translations = []
    for text in equivalents:
        typed, space, remark = text.partition(" (")
        typed = typed.replace("VALUE", value) if "=" in typed else f"{typed}={value}"
        own = [word for word in typed.split() if word[0] != "+"] or typed.split()
        translations.append((key_of(own[-1]), typed + space + remark))
    return translations


def advice_on_options(key: str, value: str, known: Sequence[str], values: Mapping[str, Any]) -> str:
    """Advice if another option has the key or its equivalent."""
    group = key.rpartition(".")[0]
    equivalents = translate_alias(key, value)
    if any(is_known(own, typed, known) and own != group for own, typed in equivalents):
        return ""
    for own in [key] if group else [own for own, _ in equivalents]:
        head, owners = own.partition(".")[0], options_with_key(own)
        options = compatible_options(values, head)
        empty = values.get(head, ...) is None
        if empty and (set(options) <= {None} if options is not None else head in NETWORKS[1:]):
            return f"Leave it out: algo={values['algo']} has no {head}"
        if not owners:
            continue
        fitting = [owner for owner in owners if options is None or owner.partition("=")[2] in options]
        if fitting:
            return f"Add {join_or(fitting)}, which has {own}"
        return f"Leave it out: only {join_or(owners)} has {own}, which algo={values['algo']} does not take"
    return ""


def is_known(key: str, typed: str, known: Sequence[str]) -> bool:
    """Whether the run has a key, or the part that ``+`` adds it to."""
    return key in known or (f"+{key}=" in typed and key.rpartition(".")[0] in known)


def near_words(key: str, value: str, known: Sequence[str]) -> list[str]:
    """What may be meant by a wrong key, as words to type."""
    if key.lower() in known:
        return [f"{key.lower()}={value}"]
    group, _, name = key.replace("/", ".").rpartition(".")
    equivalents = [
        typed for own, typed in translate_alias(key, value) if is_known(own, typed, known) and own != group
    ]
    if equivalents:
        return equivalents
    siblings = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == group}
    names = [sibling for sibling in siblings if sibling[0] != "_" or "target" in name]
    near = [siblings[close] for close in difflib.get_close_matches(name, names)]
    near = near or [path for path in known if path.rpartition(".")[2] == name][:4]
    if not near and not (group and siblings):
        near = difflib.get_close_matches(key, known, cutoff=0.7)
    if not near and group and not siblings:
        return near_words(group, value, known)
    return [f"{path}={value}" for path in near]


def list_keys(key: str, known: Sequence[str]) -> str:
    """The valid keys next to a wrong one."""
    group = key.replace("/", ".").rpartition(".")[0]
    siblings = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == group]
    if group and not siblings:
        return list_keys(group, known)
    if not group and len(known) > 30:
        return "python train.py --cfg job prints all keys"
    names = [name for name in siblings if name[0] != "_" and name not in RULES]
    return f"{group or 'The top level'} has {', '.join(names)}"


def has_parameter(target: str | None, name: str) -> bool:
    """Whether a ``_target_`` has a parameter."""
    return target is not None and name in parameters_of(target)


def parameters_of(target: str) -> list[str]:
    """The parameters of a ``_target_``; none where it cannot be imported."""
    try:
        return list(accepted_parameters(get_object(target))[0])
    except Exception:  # it has a message of its own when it is built
        return []


# ----- unknown options


def compatible_options(values: Mapping[str, Any], group: str) -> list[str | None] | None:
    """The options of a group that the algorithm and its loss can learn with; ``None`` where any may do."""
    rules = [
        rule
        for path in ("compatible_with", "loss.compatible_with")
        if (rule := (find(values, path) or {}).get(group))
    ]
    return [option for option in rules[0] if all(option in rule for rule in rules)] if rules else None


def no_such_choice(
    group: str, option: str, offered: Sequence[str], values: Mapping[str, Any] | None = None
) -> str:
    """The message for an unknown option of a group.

    Args:
        group: as it is typed.
        option: as it is typed.
        offered: the names of its options.
        values: of the run without it, by which those are named that the algorithm can learn with.
    """
    word = f"{group}={option}"
    return f"{word}: no such option. {option_advice(group, option, offered, values or {})}."


def option_advice(group: str, option: str, offered: Sequence[str], values: Mapping[str, Any]) -> str:
    """What to write instead of an unknown option, without the full stop."""
    word = f"{group}={option}"
    if text := aliases()["advice"].get(word):
        return text
    if equivalents := aliases()["keys"].get(word):
        return f"Write {join_or(equivalents)}"
    if folder := next((name for name in ("conf", ".") if Path(name, group, f"{option}.yaml").is_file()), ""):
        return f"Add --config-dir={folder}, which has it"
    if group == "env" and (id := gymnasium_id(option)):
        return f"Use {join_or(env_words(id))}"
    if group in ("actor", "critic") and (kind := re.search("cnn|conv|resnet|mlp", option.lower())):
        return f"{aliases()['advice'][kind[0]]}. The options are {', '.join(offered)}"
    fitting = compatible_options(values, group)
    if fitting is not None:
        own = [name for name in offered if not (CONFIGS / group / f"{name}.yaml").exists()]
        offered = [*(name or "null" for name in fitting), *own]
    elif option in NULLS and group not in REQUIRED_GROUPS and "/" not in group:
        return f"Write {group}=null, or try {', '.join(offered)}"
    near = difflib.get_close_matches(option.lower(), offered, n=3, cutoff=0.5)
    return f"Try {', '.join([*near, *(name for name in offered if name not in near)])}"


def env_words(id: str) -> list[str]:
    """What to type for an id of an environment: the options that have it, and the one that takes any."""
    return [*options_with_key("env.id", id), f"env={find_option(id) or 'gym'} env.id={id}"]


def gymnasium_id(name: str) -> str | None:
    """The nearest id that is installed, or ``name`` where it looks like one; imports Gymnasium."""
    near = difflib.get_close_matches(name, get_object("gymnasium.registry"), 1, 0.8)
    return near[0] if near else name if re.search(r"-v\d+$", name) else None


def join_or(names: Any) -> str:
    """Names with commas and "or" between."""
    *others, last = list(names)
    return f"{', '.join(others)} or {last}" if others else last
