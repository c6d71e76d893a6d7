"""Every key of a part is an argument of what it builds, and every argument without a default is given.

Read from the signatures themselves, so that TorchRL's own documentation is the list of what may be set.
"""

import inspect
import json
import logging
import operator
import re
from collections.abc import Iterator, Mapping, Set
from functools import reduce
from types import UnionType
from typing import Any, Literal, NotRequired, Union, Unpack, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hydrl.config.migrations import explain_import
from hydrl.config.overrides import key_of, words
from hydrl.config.schema import RULES, WRAPPERS, Part, Values, row_of
from hydrl.config.suggestions import explain, instead
from hydrl.config.tree import content, find, paths, show, target_of
from hydrl.config.user_dirs import setter
from hydrl.errors import UserError

logging.getLogger("hydra.utils").addHandler(logging.NullHandler())  # what it logs, it raises as well


def check_signatures(values: Values) -> None:
    """Every part can be called as it will be.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for path, node in targets(values):
        check_target(path, node, values)
    check_loss("", values)
    for name in values.get("extra_learners", {}):
        check_loss(f"extra_learners.{name}.", values)
    check_data(values)


def check_data(values: Values) -> None:
    """Data is there where a collector or minibatches read it, and is read where it is there."""
    able = [each for each in targets(values) if re.search(r"(^|\.)(minibatches|collector)$", each[0])]
    reading = [path for path, each in able if "data" in accepted_parameters(get_object(each["_target_"]))[0]]
    if values["data"] is not None and not reading:
        mixed = "mixed" in values["compatible_with"].get("minibatches", ["mixed"])
        advice = "minibatches=mixed" if mixed else "algo=bc, or another that learns from data"
        raise UserError(f"data: nothing reads it; use {advice}, or data=null")
    if values["data"] is None and reading:
        other = "single" if reading[0] == "collector" else "replay"
        raise UserError(
            f"{reading[0]} needs data; add data=replay_buffer data.path=DIR, or use {reading[0]}={other}"
        )


def check_loss(of: str, values: Values) -> None:
    """What is told of a loss is what it takes; ``of`` is empty, or leads to one that learns before."""
    # ``make_value_estimator`` hands its keywords to the loss's own estimator.
    loss = get_object(find(values, f"{of}loss.module._target_"))
    kind, given = getattr(loss, "default_value_estimator", None), find(values, f"{of}loss.value_estimator")
    if kind is not None and given is not None:
        if "value_type" in given:
            names = tuple(each.name.lower() for each in loss.SUPPORTED_VALUE_ESTIMATORS)
            hold_one(f"{of}loss.value_estimator.value_type", Literal.__getitem__(names), values)
            kind = given["value_type"]
        estimator = get_object("torchrl.objectives.utils.get_value_estimator_entry")(kind).cls
        parameters, open_ended = accepted_parameters(estimator)
        parameters["value_type"] = Any
        for network in ("value_network", "actor_network"):
            parameters.pop(network, None)
        hold(f"{of}loss.value_estimator", parameters, values, open_ended=open_ended)
    if (accepted := getattr(loss, "default_keys", None)) is not None:
        hold(f"{of}loss.keys", dict.fromkeys(vars(accepted()), Any), values)
    options, _ = accepted_parameters(get_object(find(values, f"{of}optim._target_")))
    for name in find(values, f"{of}loss.param_groups") or {}:
        hold(f"{of}loss.param_groups.{name}", options, values)


def targets(values: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Every node that names a ``_target_``, with its dotted path."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield path, dict(values)
        for key, value in values.items():
            yield from targets(value, f"{path}.{key}" if path else str(key))


def check_target(path: str, node: Part, values: Values) -> None:
    """The target can be imported, and the call it is configured for takes every key and lacks none."""
    name = of = node["_target_"]
    target = imported(path, name)
    own_sampler = find(content("/buffer/prioritized"), "sampler._target_")
    if "Prioritized" in name and path.startswith("buffer") and name != own_sampler:
        raise UserError(f"{path}._target_={name}: its priorities cannot be saved; use buffer=prioritized")
    is_class = inspect.isclass(target)
    try:
        call = inspect.signature(target.__init__ if is_class else target)
    except (TypeError, ValueError):  # written in C
        return
    kinds, open_ended = accepted_parameters(target)
    positions, handed = handed_to(path, kinds, values)
    named = ", ".join([*positions, *(f"{each}=…" for each in sorted(handed)), "…"])
    wraps = WRAPPERS.fullmatch(path) is not None
    way = f"{'wrapper' if wraps else path.partition('.')[0]}({named})"
    check_kind(path, name, target, way)
    if path.endswith("loss.module"):
        loss = path.removesuffix(".module")
        chosen = find(values, loss)["networks"]
        networks = {each: Any for each in kinds if "network" in each or each in chosen}
        hold(f"{loss}.networks", networks, values, open_ended=open_ended, of=name)
    positional = [None] * (len(positions) + is_class)
    own = {key for key in node if not key.startswith("_") and key not in RULES}
    if path == "env":
        check_task(node, own, kinds, open_ended=open_ended)
    if wraps and "training_only" in kinds:
        raise UserError(f"{path}._target_={name} takes training_only, which here says when it is there")
    try:
        filled = {*handed, *call.bind_partial(*positional, **dict.fromkeys(handed)).arguments}
        for key in sorted(own & filled):
            raise UserError(f"{path}.{key}={show(node[key])}: the run fills this in; leave it out")
        if path == "env" and open_ended and "id" in node and own - kinds.keys():
            of, family = node["id"], node.get("make")
            made_by = family and accepted_parameters(get_object(family["_target_"]))
            task, open_ended = made_by or of_the_task(of)
            kinds = kinds | task | accepted_parameters(get_object("gymnasium.make"))[0]
        free = {key: kind for key, kind in kinds.items() if key not in filled}
        if wraps:
            free["training_only"] = bool
            own -= free.keys() - kinds.keys()
        hold(path, free, values, open_ended=open_ended, of=of)
        within = path.startswith(("env.wrappers.", "env.make")) and not wraps and node.get("_partial_")
        # What is handed on to be called has its other arguments from there.
        (call.bind_partial if within else call.bind)(*positional, **dict.fromkeys(own | handed))
        if lacking := sorted(needed_by(target) - own):
            raise TypeError(f"missing a required argument: '{lacking[0]}'")
    except TypeError as error:
        raise UserError(f"{path} cannot be built by {name} as the run does it, {way}: {error}") from None


def handed_to(path: str, kinds: Values, values: Values) -> tuple[list[str], set[str]]:
    """What a part that takes ``kinds`` is handed when it is called: positional arguments, and keywords."""
    row = row_of(path)
    keywords, asked = set(row.keywords), set(row.asked)
    if path.endswith("loss.module"):
        keywords = {*find(values, path.removesuffix(".module"))["networks"]}
        asked = {"action_spec", "action_space", "num_actions"}
    return row.handed.split(), keywords | asked & kinds.keys()


def check_task(node: Part, own: Set[str], kinds: Values, *, open_ended: bool) -> None:
    """The keys that hydrl has for a Gymnasium task stand beside one, and beside none that has such a key too.

    Args:
        node: what ``env`` says.
        own: its keys.
        kinds: what its target takes.
        open_ended: whether that takes any other.

    Raises:
        UserError: naming the key.
    """
    if node["_target_"] != (gymnasium_env := target_of("env/gym")):
        ours = accepted_parameters(get_object(gymnasium_env))[0].keys() - {"num_envs", "device"}
        for key in sorted(ours & own - kinds.keys()) if not open_ended else ():
            advice = "; transforms do here what wrappers do there" if key == "wrappers" else ""
            raise UserError(
                f"env.{key}={show(node[key])} is for Gymnasium's tasks, which env._target_="
                f"{node['_target_']} does not make{advice}"
            )
    elif asked := sorted(kinds.keys() & own - {"id"}):
        task, _ = of_the_task(node["id"])
        for key in (key for key in asked if key in task):
            raise UserError(
                f"env.{key}={show(node[key])}: env.id={node['id']} takes {key} itself, and here it is a key "
                "of hydrl's, which the task is not given; register the task with that argument, "
                f"gymnasium.register(ID, CLASS, kwargs={{'{key}': ...}}), or call the argument otherwise"
            )


def of_the_task(id: str) -> tuple[dict[str, Any], bool]:
    """What a Gymnasium task takes beside its id, as :func:`accepted_parameters` has it."""
    module, _, name = id.rpartition(":")
    try:
        if module:
            get_object(module)
        made_by = get_object("gymnasium.spec")(name).entry_point
        if isinstance(made_by, str):
            made_by = get_object(made_by.replace(":", "."))
        return accepted_parameters(made_by)
    except Exception:  # it is told of when it is made
        return {}, True


def check_kind(path: str, name: str, target: Any, way: str) -> None:
    """A class in the place of a part is one of what that part is, as a network alone is no actor.

    Raises:
        UserError: saying in which ``way`` a function that makes one is called.
    """
    kind = row_of(path).gives
    if kind is None or not inspect.isclass(target) or issubclass(target, get_object(kind)):
        return
    advice = f"name one, or a function that makes one when called as {way}"
    if path == "env" and issubclass(target, get_object("gymnasium.Env")):
        module, places = name.rpartition(".")[0], (f"{target.__module__}:{target.__name__}", target)
        known = [id for id, spec in get_object("gymnasium.registry").items() if spec.entry_point in places]
        advice = f"register it in {module} with Gymnasium, and " * (not known)
        place = "" if name.startswith("gymnasium.") else f"{module}:"
        advice += f"use env=gym env.id={place}{(known or [f'{target.__name__}-v0'])[-1]}"
    raise UserError(f"{path}._target_={name} is a class, but no {kind.rpartition('.')[2]}; {advice}")


def imported(path: str, name: str) -> Any:
    """What a ``_target_`` names."""
    try:
        target = get_object(name)
    except Exception as error:
        cause = error.__cause__ or error
        reason = explain_import(cause) or str(cause).splitlines()[0]
        if isinstance(cause, ModuleNotFoundError) and name.startswith(f"{cause.name}."):
            reason += "; put it beside the folder of --config-dir=DIR, or its folder into PYTHONPATH"
        raise UserError(f"{path}._target_={name} cannot be imported: {reason}") from None
    if not callable(target):
        raise UserError(f"{path}._target_={name} is no class or function")
    return target


def keywords_of(kind: Any) -> dict[str, Any]:
    """The keywords of ``**name: Unpack[kind]`` with their annotations."""
    (named,) = get_args(kind)
    hints = get_type_hints(named, include_extras=True)
    return {
        key: get_args(each)[0] if get_origin(each) is NotRequired else each for key, each in hints.items()
    }


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function; none where they exist only for type checkers."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        return {}


def needed_by(target: Any) -> frozenset[str]:
    """The keywords without which ``**name: Unpack[...]`` cannot do."""
    unpacked = [get_args(each)[0] for each in hints_of(target).values() if get_origin(each) is Unpack]
    return frozenset().union(*(each.__required_keys__ for each in unpacked))


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    Classes of the libraries hand keywords up to their bases, so those count too and nothing else does.
    """
    library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch", "gymnasium")
    parameters: dict[str, Any] = {}
    open_ended = False
    made_of = target.__mro__[:-1] if inspect.isclass(target) else ()
    for function in [vars(each).get("__init__") for each in made_of] or [target]:
        if function is None:
            continue
        hints = hints_of(function)
        found = inspect.signature(function).parameters.values()
        for each in found:
            kind = hints.get(each.name, Any)
            if get_origin(kind) is Unpack:  # keywords that a TypedDict names
                parameters |= keywords_of(kind)
            elif each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and each.name != "self":
                parameters.setdefault(each.name, of_any_length(kind) if library else kind)
        named = [each for each in found if get_origin(hints.get(each.name)) is Unpack]
        open_ended = not named and any(each.kind is each.VAR_KEYWORD for each in found)
        if not open_ended:
            break
    return parameters, open_ended and not library


def of_any_length(kind: Any) -> Any:
    """``tuple[float]`` as the libraries mean it, a few numbers, and not as Python does, exactly one."""
    if get_origin(kind) is tuple and len(get_args(kind)) == 1:
        return tuple.__class_getitem__((*get_args(kind), ...))
    if get_origin(kind) in (Union, UnionType):
        return reduce(operator.or_, map(of_any_length, get_args(kind)))
    return kind


def hold(path: str, kinds: Values, values: Values, *, open_ended: bool = False, of: str = "") -> None:
    """Holds the keys at ``path`` to their ``kinds``; a nested part is checked by its own signature.

    Args:
        path: dotted.
        kinds: annotations by their keys.
        values: the whole configuration.
        open_ended: whether there may be other keys.
        of: what takes them, for messages.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for key, value in (find(values, path) or {}).items():
        if key in kinds and not isinstance(value, Mapping):
            hold_one(f"{path}.{key}", kinds[key], values)
        elif key not in kinds and not open_ended and not key.startswith("_") and key not in RULES:
            takes = f"{of} takes no {key}" if of else "there is no such key"
            known = [f"{path}.{each}" for each in kinds] or list(paths(values))
            ours = of.partition(".")[0] in ("", "hydrl", "torch", "torchrl")
            do = left_out(path, key, kinds, values) or instead(f"{path}.{key}", known, elsewhere=ours)
            raise UserError(f"{path}.{key}={show(value)}: {takes}{do}")


def left_out(path: str, key: str, kinds: Values, values: Values) -> str:
    """What leaves out a key that is none of ``kinds`` and was chosen with something else, not typed."""
    typed = {key_of(each) for each in words()}
    there = {f"{path}.{each}": value for each, value in find(values, path).items() if each[0] != "_"}
    left = [each for each in there if each not in typed and each.rpartition(".")[2] not in kinds]
    by = setter(f"{path}.{key}")
    if f"{path}.{key}" not in left or not (by or f"{path}._target_" in typed):
        return ""
    drop = [f"~{each}" for each in left]
    if by and None in map(there.get, left):  # which Hydra does not delete
        of_the_algorithm = [f"~{each}" for each in left if setter(each, ["algo"])]
        drop = [f"{by.partition('=')[0]}=none", *of_the_algorithm]
    return f", which {by} sets" * bool(by) + f"; add {' '.join(drop)}"


def takes_null(held: TypeAdapter[Any]) -> bool:
    """Whether null is of the kind."""
    try:
        held.validate_python(None)
    except ValidationError:
        return False
    return True


def hold_one(path: str, kind: Any, values: Values) -> None:
    """Holds a value to its kind as JSON is held to a schema: an integer may be a float.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    try:
        held = TypeAdapter(kind, config=ConfigDict(strict=True))
    except Exception:  # a tensor, a spec and the like, which YAML cannot say
        return
    try:
        held.validate_json(json.dumps(find(values, path)))
    except ValidationError as error:
        raise UserError(explain(error, values, path, lambda _: takes_null(held))) from None
