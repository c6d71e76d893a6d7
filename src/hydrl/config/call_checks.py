"""Checks of signatures: every component takes all of its keys and lacks none.

The signatures of TorchRL, PyTorch, Gymnasium and hydrl are the list of keys.
"""

import difflib
import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.utils import get_object
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hydrl.config.migrations import explain_import
from hydrl.config.overrides import key_of, typed_words
from hydrl.config.ranges import type_of
from hydrl.config.schema import RULES, WRAPPERS, Node, Values, call_spec
from hydrl.config.signatures import (
    accepted_parameters,
    cache_hashable,
    gymnasium_parameters,
    required_keywords,
    targets,
)
from hydrl.config.source_annotations import own_parameters, own_ranges
from hydrl.config.suggestions import advise_key, explain, without_copies
from hydrl.config.tree import find, option_target, paths, read_option, show
from hydrl.config.user_dirs import find_setter
from hydrl.errors import ConfigError, UserError

logging.getLogger("hydra.utils").addHandler(logging.NullHandler())  # what it logs, it raises as well

Mistakes = Iterator[tuple[str, str]]  # keys with their messages


def check_signatures(values: Values) -> None:
    """Checks that the run can call every component.

    Raises:
        ConfigError: for keys that no signature has, and wrong values.
        UserError: for a dataset that nothing reads, or that is missing.
    """
    mistakes = check_annotations(values, own_parameters)
    for path, node in targets(values) if not mistakes else ():  # from here on PyTorch is imported
        mistakes |= dict(check_target(path, node, values))
    if not mistakes:  # every target can be imported
        for prefix in ("", *(f"extra_learners.{name}." for name in values.get("extra_learners", {}))):
            mistakes |= dict(check_loss(prefix, values))
    if mistakes:
        raise ConfigError(without_copies(mistakes, values))
    check_data(values)


def check_limits(values: Values, limits: Mapping[str, str]) -> dict[str, str]:
    """Mistakes in values by the limits of options' YAML and the ranges in hydrl's signatures."""
    mistakes: dict[str, str] = {}
    for key, limit in limits.items():
        above, _, name = key.rpartition(".")
        if name in (find(values, above) or {}):
            mistakes |= dict(check_value(key, type_of(key, limit), values))
    # Transforms copy values of the loss, and buffers those of the collector: originals come first.
    of_loss = {key: line for key, line in mistakes.items() if key.startswith("loss.")}
    return of_loss | check_annotations(values, own_ranges) | mistakes


def check_annotations(values: Values, parameters: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """Mistakes in values by the annotations that ``parameters`` returns of each target."""
    mistakes: dict[str, str] = {}
    for path, node in targets(values):
        for key, kind in parameters(node["_target_"]).items():
            if key in node and not isinstance(node[key], Mapping):
                mistakes |= dict(check_value(f"{path}.{key}", kind, values))
    return mistakes


def check_data(values: Values) -> None:
    """Checks that a dataset is set exactly if a collector or minibatches read one."""
    readers = [
        path
        for path, node in targets(values)
        if re.search(r"(^|\.)(minibatches|collector)$", path)
        and "data" in accepted_parameters(get_object(node["_target_"]))[0]
    ]
    if values["data"] is not None and not readers:
        mixed = "mixed" in values["compatible_with"].get("minibatches", ["mixed"])
        use = "minibatches=mixed" if mixed else "algo=bc, or another algorithm that learns from a dataset"
        raise UserError(f"data: nothing reads the dataset. Use {use}, or data=null.")
    if values["data"] is None and readers:
        other = "single" if readers[0] == "collector" else "replay"
        raise UserError(
            f"data=null: {readers[0]} needs a dataset. Add data=replay_buffer data.path=DIR, or use "
            f"{readers[0]}={other}."
        )


def check_loss(prefix: str, values: Values) -> Mistakes:
    """Mistakes in the keys of a loss besides its arguments; ``prefix`` is that of an extra learner."""
    # ``make_value_estimator`` hands its keywords to the loss's own estimator.
    loss = get_object(find(values, f"{prefix}loss.module._target_"))
    kind = getattr(loss, "default_value_estimator", None)
    options = find(values, f"{prefix}loss.value_estimator")
    if kind is not None and options is not None:
        if "value_type" in options:
            names = tuple(estimator.name.lower() for estimator in loss.SUPPORTED_VALUE_ESTIMATORS)
            path = f"{prefix}loss.value_estimator.value_type"
            if mistakes := dict(check_value(path, Literal.__getitem__(names), values)):
                yield from mistakes.items()
                return
            kind = options["value_type"]
        estimator = get_object("torchrl.objectives.utils.get_value_estimator_entry")(kind).cls
        parameters, open_ended = accepted_parameters(estimator)
        parameters = parameters | {"value_type": Any}
        for network in ("value_network", "actor_network"):
            parameters.pop(network, None)
        yield from check_keys(f"{prefix}loss.value_estimator", parameters, values, open_ended=open_ended)
    if (accepted_keys := getattr(loss, "default_keys", None)) is not None:
        yield from check_keys(f"{prefix}loss.keys", dict.fromkeys(vars(accepted_keys()), Any), values)
    options, _ = accepted_parameters(get_object(find(values, f"{prefix}optim._target_")))
    for network in find(values, f"{prefix}loss.param_groups") or {}:
        yield from check_keys(f"{prefix}loss.param_groups.{network}", options, values)


def check_target(path: str, node: Node, values: Values) -> Mistakes:
    """Mistakes in a component: its import, its class, its keys and their values."""
    name = node["_target_"]
    line = f"{path}._target_={name}"
    target, reason = import_target(path, name)
    if reason:
        yield f"{path}._target_", f"{line}: {reason}."
        return
    if not saves_priorities(path, name):
        yield f"{path}._target_", f"{line}: its priorities cannot be saved. Use buffer=prioritized."
        return
    try:
        signature = inspect.signature(target.__init__ if inspect.isclass(target) else target)
    except (TypeError, ValueError):  # written in C
        return
    call = Call(path, node, target, signature, *run_arguments(path, accepted_parameters(target)[0], values))
    mistakes = dict(check_class(path, name, target, call.text))
    if not mistakes:
        mistakes = dict(check_own_keys(call, values))
        try:
            mistakes |= dict(check_filled_keys(call)) or ({} if mistakes else dict(check_call(call, values)))
        except TypeError as error:
            mistakes[path] = f"{line}: the call {call.text} fails: {error}."
    yield from mistakes.items()


@dataclass
class Call:
    """How the run calls a component.

    Attributes:
        path: dotted, of the component.
        node: its configuration.
        target: the class or function.
        signature: of it.
        positions: names of the positional arguments that the run itself gives.
        keywords: keywords that the run itself gives.
    """

    path: str
    node: Node
    target: Any
    signature: inspect.Signature
    positions: list[str]
    keywords: set[str]

    def __post_init__(self) -> None:
        """Reads the component's own keys, and the call as a message shows it."""
        self.is_wrapper = WRAPPERS.fullmatch(self.path) is not None
        self.own_keys = {key for key in self.node if not key.startswith("_") and key not in RULES}
        shown = ", ".join([*self.positions, *(f"{keyword}=…" for keyword in sorted(self.keywords)), "…"])
        self.text = f"{'wrapper' if self.is_wrapper else self.path.partition('.')[0]}({shown})"
        self.positional = [None] * (len(self.positions) + inspect.isclass(self.target))

    @property
    def filled(self) -> set[str]:
        """Names of the parameters that the run gives; raises ``TypeError`` if it cannot."""
        bound = self.signature.bind_partial(*self.positional, **dict.fromkeys(self.keywords))
        return {*self.keywords, *bound.arguments}


def check_own_keys(call: Call, values: Values) -> Mistakes:
    """Mistakes in the keys that hydrl adds: networks of a loss, keys of environments and wrappers."""
    path, name = call.path, call.node["_target_"]
    parameters, open_ended = accepted_parameters(call.target)
    if path.endswith("loss.module"):
        loss = path.removesuffix(".module")
        networks = {key: Any for key in parameters if "network" in key or key in call.keywords}
        yield from check_keys(f"{loss}.networks", networks, values, open_ended=open_ended, taker=name)
    if path == "env":
        yield from check_env_keys(call.node, call.own_keys, parameters, open_ended=open_ended)
    if call.is_wrapper and "training_only" in parameters:
        yield path, f"{path}._target_={name}: it takes training_only, a key of hydrl's. Rename that argument."


def check_filled_keys(call: Call) -> Mistakes:
    """Keys that the run itself gives."""
    for name in sorted(call.own_keys & call.filled):
        key = f"{call.path}.{name}"
        yield key, f"{key}={show(call.node[name])}: the run fills this in. Leave it out."


def check_call(call: Call, values: Values) -> Mistakes:
    """Mistakes in the other keys and their values.

    Raises:
        TypeError: for a call that lacks an argument.
    """
    path, node, own, taker = call.path, call.node, call.own_keys, call.node["_target_"]
    parameters, open_ended = accepted_parameters(call.target)
    if path == "env" and open_ended and "id" in node and own - parameters.keys():
        taker = node["id"]
        env_parameters, open_ended = parameters_of_id(node)
        parameters |= env_parameters
    free = {key: kind for key, kind in parameters.items() if key not in call.filled}
    if call.is_wrapper:
        free["training_only"] = bool
        own = own - {"training_only"}
    if mistakes := dict(check_keys(path, free, values, open_ended=open_ended, taker=taker)):
        yield from mistakes.items()
        return
    # What is called later has its other arguments from there.
    is_within_env = path.startswith(("env.wrappers.", "env.make")) and not call.is_wrapper
    is_later = is_within_env and node.get("_partial_")
    bind = call.signature.bind_partial if is_later else call.signature.bind
    bind(*call.positional, **dict.fromkeys(own | call.keywords))
    if lacking := sorted(required_keywords(call.target) - own):
        raise TypeError(f"missing a required argument: '{lacking[0]}'")


def saves_priorities(path: str, name: str) -> bool:
    """Whether a component is no prioritized sampler, or hydrl's own, whose priorities can be saved."""
    own_sampler = find(read_option("/buffer/prioritized"), "sampler._target_")
    return "Prioritized" not in name or not path.startswith("buffer") or name == own_sampler


def parameters_of_id(node: Node) -> tuple[dict[str, Any], bool]:
    """Parameters of the class or function that an environment's ``id`` names, and whether it takes others."""
    make = node.get("make")
    parameters, open_ended = (
        accepted_parameters(get_object(make["_target_"])) if make else gymnasium_parameters(node["id"])
    )
    return parameters | accepted_parameters(get_object("gymnasium.make"))[0], open_ended


def run_arguments(path: str, parameters: Values, values: Values) -> tuple[list[str], set[str]]:
    """Positional arguments and keywords that the run itself gives a component."""
    spec = call_spec(path)
    keywords, optional = set(spec.keywords), set(spec.optional)
    if path.endswith("loss.module"):
        keywords = {*find(values, path.removesuffix(".module"))["networks"]}
        optional = {"action_spec", "action_space", "num_actions"}
    return spec.positional.split(), keywords | optional & parameters.keys()


def check_env_keys(node: Node, own: Set[str], parameters: Values, *, open_ended: bool) -> Mistakes:
    """Mistakes in the keys that hydrl adds to Gymnasium environments: ``own`` of the ``node`` of ``env``."""
    if node["_target_"] != (gymnasium_env := option_target("env/gym")):
        ours = accepted_parameters(get_object(gymnasium_env))[0].keys() - {"num_envs", "device"}
        for key in sorted(ours & own - parameters.keys()) if not open_ended else ():
            advice = "Write a transform instead" if key == "wrappers" else "Leave it out"
            yield (
                f"env.{key}",
                f"env.{key}={show(node[key])}: this key is for Gymnasium environments, and env._target_="
                f"{node['_target_']} makes another. {advice}.",
            )
    elif shared := sorted(parameters.keys() & own - {"id"}):
        env_parameters, _ = gymnasium_parameters(node["id"])
        for key in (key for key in shared if key in env_parameters):
            yield (
                f"env.{key}",
                f"env.{key}={show(node[key])}: env.id={node['id']} takes {key} too, and here it is a key of "
                f"hydrl's. Register it with gymnasium.register(ID, CLASS, kwargs={{'{key}': ...}}), or "
                "rename the parameter.",
            )


def check_class(path: str, name: str, target: Any, way: str) -> Mistakes:
    """Mistakes in the kind of a class, such as a plain network in place of an actor; ``way``: of a call."""
    kind = call_spec(path).gives
    if kind is None or not inspect.isclass(target) or issubclass(target, get_object(kind)):
        return
    advice = f"Name one, or a function that makes one when called as {way}"
    if path == "env" and issubclass(target, get_object("gymnasium.Env")):
        module, places = name.rpartition(".")[0], (f"{target.__module__}:{target.__name__}", target)
        ids = [id for id, spec in get_object("gymnasium.registry").items() if spec.entry_point in places]
        use = f"env=gym env.id={'' if name.startswith('gymnasium.') else f'{module}:'}"
        use += (ids or [f"{target.__name__}-v0"])[-1]
        advice = f"Use {use}" if ids else f"Register it in {module} with Gymnasium, and use {use}"
    yield (
        f"{path}._target_",
        f"{path}._target_={name}: this class is no {kind.rpartition('.')[2]}. {advice}.",
    )


def import_target(path: str, name: str) -> tuple[Any, str]:
    """The target of a dotted name, or why it cannot be imported, without the full stop."""
    try:
        target = get_object(name)
    except Exception as error:
        cause = error.__cause__ or error
        reason = explain_import(cause) or str(cause).splitlines()[0] + near_names(path, name, cause)
        return None, f"cannot be imported: {reason}"
    return target, "" if callable(target) else "no class or function. Write the dotted path of one"


def near_names(path: str, name: str, cause: BaseException) -> str:
    """A suggestion for a dotted name that cannot be imported, as a following sentence."""
    if not isinstance(cause, ImportError | AttributeError):  # an error within the module
        return ""
    module, _, attribute = name.rpartition(".")
    try:
        names = [name for name in vars(get_object(module)) if name[0] != "_"]
    except Exception:
        names = []
    if near := difflib.get_close_matches(attribute, names, 1):
        return f". Write {path}._target_={module}.{near[0]}"
    first, _, rest = name.partition(".")
    modules = [file.stem for file in Path().glob("*.py")]
    modules += [file.parent.name for file in Path().glob("*/__init__.py")]
    is_unknown = isinstance(cause, ModuleNotFoundError) and cause.name == first
    if is_unknown and (near := difflib.get_close_matches(first, modules, 1, 0.8)):
        start = "Write" if {"", os.getcwd()} & set(sys.path) else "Start with PYTHONPATH=. and write"
        return f". {start} {path}._target_={near[0]}.{rest}"
    if isinstance(cause, ModuleNotFoundError) and name.startswith(f"{cause.name}."):
        return ". Put it beside the folder of --config-dir=DIR, or its folder into PYTHONPATH"
    return ""


def check_keys(
    path: str, kinds: Values, values: Values, *, open_ended: bool = False, taker: str = ""
) -> Mistakes:
    """Mistakes in the keys and values at ``path``; a nested component is checked by its own signature.

    Args:
        path: dotted.
        kinds: annotations by their keys.
        values: the whole configuration.
        open_ended: whether there may be other keys.
        taker: what takes them, for messages.
    """
    unknown = []
    for key, value in (find(values, path) or {}).items():
        if key in kinds and not isinstance(value, Mapping):
            yield from check_value(f"{path}.{key}", kinds[key], values)
        elif key not in kinds and not open_ended and not key.startswith("_") and key not in RULES:
            unknown.append(f"{path}.{key}")
    typed = set(map(key_of, typed_words()))
    leftover = [
        key for key in unknown if key not in typed and (find_setter(key) or f"{path}._target_" in typed)
    ]
    known = [f"{path}.{name}" for name in kinds] or list(paths(values))
    for key in (key for key in unknown if key not in leftover[1:]):  # which one line names all
        value = show(find(values, key))
        takes = f"{taker} takes no {key.rpartition('.')[2]}" if taker else "no such key"
        advice = advise_removal(leftover, values) if key in leftover else f". {advise_key(key, value, known)}"
        yield key, f"{key}={value}: {takes}{advice}."


def advise_removal(keys: Sequence[str], values: Values) -> str:
    """How to remove keys that another option set: the end of a sentence and a following one."""
    source = find_setter(keys[0])
    drop = [f"~{key}" for key in keys]
    if source and None in (find(values, key) for key in keys):  # which Hydra does not delete
        drop = [
            f"{source.partition('=')[0]}=none",
            *(f"~{key}" for key in keys if find_setter(key, ["algo"])),
        ]
    return f", which {source} sets" * bool(source) + f". Add {' '.join(drop)}"


def check_value(path: str, kind: Any, values: Values) -> Mistakes:
    """Mistakes of a value against its annotation, as JSON: a float may be written as an integer."""
    try:
        adapter = make_adapter(kind)
    except Exception:  # a tensor, a spec and the like, which YAML cannot say
        return
    try:
        adapter.validate_json(json.dumps(find(values, path)))
    except ValidationError as error:
        yield from explain(error, values, path, lambda _: takes_null(adapter)).lines.items()


@cache_hashable
def make_adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's check of an annotation; making it takes most of a check's time."""
    return TypeAdapter(kind, config=ConfigDict(strict=True))


def takes_null(adapter: TypeAdapter[Any]) -> bool:
    """Whether null is a valid value."""
    try:
        adapter.validate_python(None)
    except ValidationError:
        return False
    return True
