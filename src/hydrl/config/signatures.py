"""Every key of a part is an argument of what it builds, and every argument without a default is given.

Read from the signatures themselves, so that TorchRL's own documentation is the list of what may be set.
"""

import difflib
import inspect
import json
import logging
import operator
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hydrl.config.mistakes import explain, find, no_such_key, show
from hydrl.config.overrides import key_of
from hydrl.config.own import setter
from hydrl.errors import UserError

Part = dict[str, Any]
Values = Mapping[str, Any]

logging.getLogger("hydra.utils").addHandler(logging.NullHandler())  # what it logs, it raises as well

# What train.py hands each part when it calls it: positional arguments by their names, and keywords.
HANDED: dict[str, tuple[str, set[str]]] = {
    "env": ("", {"device"}),
    "actor": ("env", set()),
    "actor.norm": ("features", set()),
    "critic": ("env actor", set()),
    "critic.norm": ("features", set()),
    "value": ("env actor", set()),
    "exploration": ("action_spec", set()),
    "collector": ("env make_env policy", {"seed", "device", "stop"}),
    "minibatches": ("buffer loss", set()),
    "target": ("loss", set()),
    "optim": ("parameters", set()),
    "schedule": ("optimizer batches", set()),
    "logger": ("", {"directory", "config", "name", "run_id"}),
}

# What each gives: a class is one of these, a function makes one.
KINDS = {
    "env": "torchrl.envs.EnvBase",
    **dict.fromkeys(("actor", "critic", "value", "exploration"), "tensordict.nn.TensorDictModuleBase"),
    "buffer": "torchrl.data.ReplayBuffer",
    "loss.module": "torchrl.objectives.LossModule",
    "target": "torchrl.objectives.TargetNetUpdater",
    "optim": "torch.optim.Optimizer",
    "transforms": "torchrl.envs.Transform",
}


def check_signatures(values: Values) -> None:
    """Every part can be called as it will be.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for path, node in targets(values):
        check_target(path, node, values)
    # ``make_value_estimator`` hands its keywords to the loss's own estimator.
    loss = get_object(values["loss"]["module"]["_target_"])
    kind, given = getattr(loss, "default_value_estimator", None), values["loss"]["value_estimator"]
    if kind is not None and given is not None:
        if "value_type" in given:
            names = tuple(each.name.lower() for each in loss.SUPPORTED_VALUE_ESTIMATORS)
            hold_one("loss.value_estimator.value_type", Literal.__getitem__(names), values)
            kind = given["value_type"]
        estimator = get_object("torchrl.objectives.utils.get_value_estimator_entry")(kind).cls
        parameters, open_ended = accepted_parameters(estimator)
        parameters["value_type"] = Any
        for network in ("value_network", "actor_network"):
            parameters.pop(network, None)
        hold("loss.value_estimator", parameters, values, open_ended=open_ended)
    if (accepted := getattr(loss, "default_keys", None)) is not None:
        hold("loss.keys", dict.fromkeys(vars(accepted()), Any), values)
    options, _ = accepted_parameters(get_object(values["optim"]["_target_"]))
    for name in values["loss"]["param_groups"]:
        hold(f"loss.param_groups.{name}", options, values)


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
    name = node["_target_"]
    target = imported(path, name)
    own_sampler = "hydrl.parts.buffers.PrioritizedSampler"
    if "Prioritized" in name and path.startswith("buffer") and name != own_sampler:
        raise UserError(f"{path}._target_={name}: its priorities cannot be saved; use buffer=prioritized")
    part = "logger" if path.startswith("logger.") else path
    positions, handed = HANDED.get(part, ("", set()))
    if path == "loss.module":
        handed = set(values["loss"]["networks"])
    named = ", ".join([*positions.split(), *(f"{each}=…" for each in sorted(handed)), "…"])
    way = f"{path.partition('.')[0]}({named})"
    check_kind(path, name, target, way)
    if path == "loss.module":
        handed |= check_networks(name, target, values["loss"]["networks"])
    is_class = inspect.isclass(target)
    try:
        call = inspect.signature(target.__init__ if is_class else target)
    except (TypeError, ValueError):  # written in C
        return
    positional = [None] * (len(positions.split()) + is_class)
    own = {key for key in node if not key.startswith("_")}
    kinds, open_ended = accepted_parameters(target)
    if path == "env" and "num_envs" in kinds:
        handed = handed | {"num_envs"}
    try:
        filled = {*handed, *call.bind_partial(*positional, **dict.fromkeys(handed)).arguments}
        for key in sorted(own & filled):
            raise UserError(f"{path}.{key}={show(node[key])}: the run fills this in; leave it out")
        free = {key: kind for key, kind in kinds.items() if key not in filled}
        hold(path, free, values, open_ended=open_ended)
        call.bind(*positional, **dict.fromkeys(own | handed))
    except TypeError as error:
        raise UserError(f"{path} cannot be built by {name} as the run does it, {way}: {error}") from None


def check_kind(path: str, name: str, target: Any, way: str) -> None:
    """A class in the place of a part is one of what that part is, as a network alone is no actor.

    Raises:
        UserError: saying in which ``way`` a function that makes one is called.
    """
    kind = KINDS.get("transforms" if re.fullmatch(r"transforms\.\w+", path) else path)
    if kind is None or not inspect.isclass(target) or issubclass(target, get_object(kind)):
        return
    advice = f"name one, or a function that makes one when called as {way}"
    if issubclass(target, get_object("gymnasium.Env")):
        module, places = name.rpartition(".")[0], (f"{target.__module__}:{target.__name__}", target)
        known = [id for id, spec in get_object("gymnasium.registry").items() if spec.entry_point in places]
        advice = f"register it in {module} with Gymnasium, and " * (not known)
        place = "" if name.startswith("gymnasium.") else f"{module}:"
        advice += f"use env=gym env.id={place}{(known or [f'{target.__name__}-v0'])[-1]}"
    raise UserError(f"{path}._target_={name} is a class, but no {kind.rpartition('.')[2]}; {advice}")


def check_networks(name: str, loss: Any, networks: Values) -> set[str]:
    """What a loss is handed: its networks, and what is read off the environment where it asks for that.

    Raises:
        UserError: for a network it has no argument for.
    """
    asked, open_ended = accepted_parameters(loss)
    for argument in networks:
        if argument not in asked and not open_ended:
            able = [each for each in asked if "network" in each]
            raise UserError(f"loss.networks.{argument}: {name} has no such argument; use {' or '.join(able)}")
    return {*networks, *(each for each in ("action_spec", "action_space", "num_actions") if each in asked)}


def imported(path: str, name: str) -> Any:
    """What a ``_target_`` names."""
    try:
        target = get_object(name)
    except Exception as error:
        cause = error.__cause__ or error
        reason = str(cause).splitlines()[0]
        if isinstance(cause, ModuleNotFoundError) and name.startswith(f"{cause.name}."):
            reason += "; put it beside the folder of --config-dir=DIR, or its folder into PYTHONPATH"
        raise UserError(f"{path}._target_={name} cannot be imported: {reason}") from None
    if not callable(target):
        raise UserError(f"{path}._target_={name} is no class or function")
    return target


def bases(target: Any) -> list[type]:
    """A class and all it is made of; nothing for a function."""
    return list(target.__mro__[:-1]) if inspect.isclass(target) else []


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    TorchRL's classes hand keywords up to their bases, so those count too and nothing else does.
    """
    library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch")
    parameters: dict[str, Any] = {}
    open_ended = False
    for function in [vars(each).get("__init__") for each in bases(target)] or [target]:
        if function is None:
            continue
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception:  # annotations that exist only for type checkers
            hints = {}
        found = inspect.signature(function).parameters.values()
        for each in found:
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and each.name != "self":
                kind = hints.get(each.name, Any)
                parameters.setdefault(each.name, of_any_length(kind) if library else kind)
        open_ended = any(each.kind is each.VAR_KEYWORD for each in found)
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


def hold(path: str, kinds: Values, values: Values, *, open_ended: bool = False) -> None:
    """Holds the keys at ``path`` to their ``kinds``; a nested part is checked by its own signature.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for key, value in find(values, path).items():
        if key in kinds and not isinstance(value, Mapping):
            hold_one(f"{path}.{key}", kinds[key], values)
        elif key not in kinds and not open_ended and not key.startswith("_"):
            raise UserError(not_taken(path, key, kinds, values))


def not_taken(path: str, key: str, kinds: Values, values: Values) -> str:
    """What a key at ``path`` is told with that is none of ``kinds``; what was chosen may set it."""
    node = find(values, path)
    name, line = str(node.get("_target_", "")), f"{path}.{key}={show(node[key])}: "
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    typed = [key_of(each) for each in words]
    by = "" if f"{path}.{key}" in typed else setter(f"{path}.{key}")
    if by or (f"{path}._target_" in typed and f"{path}.{key}" not in typed):
        left = [
            each for each in node if each not in kinds and each[0] != "_" and f"{path}.{each}" not in typed
        ]
        drop = " ".join(f"~{path}.{each}" for each in left)
        if by and None in map(node.get, left):  # which Hydra does not delete
            again = [f"~{path}.{each}" for each in left if setter(f"{path}.{each}", ["algo"])]
            drop = " ".join([f"{by.partition('=')[0]}=none", *again])
        return f"{line}{name} takes no {key}{f', which {by} sets' * bool(by)}; add {drop}"
    if name.partition(".")[0] in ("", "hydrl", "torch", "torchrl"):
        return no_such_key(f"{path}.{key}", show(node[key]), values, [f"{path}.{each}" for each in kinds])
    near = difflib.get_close_matches(key, kinds, 1, 0.7)
    advice = f"did you mean {path}.{near[0]}?" if near else f"it takes {', '.join(kinds) or 'none'}"
    return f"{line}{name} takes no {key}; {advice}"


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
        raise UserError(explain(error, values, path)) from None
