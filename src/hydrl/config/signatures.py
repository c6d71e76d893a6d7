"""Every key of a part is an argument of what it builds, and every argument without a default is given.

Read from the signatures themselves, so that TorchRL's own documentation is the list of what may be set.
"""

import difflib
import inspect
import json
import logging
import typing
from collections.abc import Iterator, Mapping, Set
from typing import Any

from hydra.utils import get_object
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hydrl.config.mistakes import find, no_such_key, paths, show, wrong_value
from hydrl.errors import UserError

Part = dict[str, Any]
Values = Mapping[str, Any]

logging.getLogger("hydra.utils").addHandler(logging.NullHandler())  # what it logs, it raises as well

# What train.py hands each part when it calls it: positional arguments, and keywords.
HANDED: dict[str, tuple[int, set[str]]] = {
    "env": (0, {"device"}),
    "actor": (1, set()),
    "critic": (1, set()),
    "exploration": (1, set()),
    "collector": (3, {"seed", "device", "stop"}),
    "minibatches": (2, set()),
    "loss.module": (2, {"gamma"}),  # the discount, by way of the value estimator
    "target": (1, set()),
    "optim": (1, set()),
    "schedule": (2, set()),
    "logger": (0, {"directory", "config", "name", "run_id"}),
}


def check_signatures(values: Values) -> None:
    """Every part can be called as it will be.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for path, node in targets(values):
        check_target(path, node, values)
    check_value_estimator(values["loss"])
    check_activations(values)


def targets(values: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Every node that names a ``_target_``, with its dotted path."""
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield path, dict(values)
        for key, value in values.items():
            yield from targets(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list):
        for position, value in enumerate(values):
            yield from targets(value, f"{path}.{position}")


def check_target(path: str, node: Part, values: Values) -> None:
    """The target can be imported, and the call it is configured for takes every key and lacks none."""
    name = node["_target_"]
    try:
        target = get_object(name)
    except Exception as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"{path}._target_={name} cannot be imported: {reason}; write the path of a class or function"
        ) from None
    if not callable(target):
        raise UserError(
            f"{path}._target_={name} is a {type(target).__name__}; write the path of a class or function"
        )
    count, handed = HANDED.get(path, (0, set()))
    if path == "loss.module" and values["critic"] is None:
        count = 1
    if name == "hydrl.parts.environments.gymnasium_env":
        handed = handed | {"num_envs"}
    is_class = inspect.isclass(target)
    try:
        signature = inspect.signature(target.__init__ if is_class else target)
    except (TypeError, ValueError):  # written in C
        return
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    keys = {key for key in node if not key.startswith("_")}
    check_keywords(path, node, target, values, handed | set(positional[:count]))
    for each in parameters:
        required = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if required and each.name not in keys | handed | set(positional[:count]):
            raise UserError(
                f"{path}.{each.name} is missing and {name} needs it; give +{path}.{each.name}=VALUE"
            )
    try:
        signature.bind(*[None] * (count + is_class), **dict.fromkeys(keys | handed))
    except TypeError as error:
        raise UserError(f"{path}._target_={name} does not take what the run gives it: {error}") from None


def check_keywords(
    path: str, node: Part, target: Any, values: Values, handed: Set[str] = frozenset()
) -> None:
    """The target takes every key of ``node``, and the values fit its annotations."""
    parameters, open_ended = accepted_parameters(target)
    for key, value in node.items():
        if key.startswith("_"):
            continue
        full = f"{path}.{key}"
        if key in handed:
            namesakes = [each for each in paths(values) if each != full and each.rpartition(".")[2] == key]
            elsewhere = [each for each in namesakes if not isinstance(find(values, each), Mapping)]
            instead = f"set {elsewhere[0]}" if elsewhere else "leave it out"
            raise UserError(f"{full}={show(value)}: the run fills this in; {instead}")
        if key in parameters:
            check_type(full, parameters[key], value)
        elif not open_ended:
            raise UserError(no_such_key(full, show(value), values, [f"{path}.{each}" for each in parameters]))


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    TorchRL's classes hand keywords up to their bases, so those count too and nothing else does.
    """
    library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch")
    classes: list[Any] = list(target.__mro__[:-1]) if inspect.isclass(target) else []
    chain = [each.__init__ for each in classes] or [target]
    parameters: dict[str, Any] = {}
    open_ended = False
    for function in chain:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception:  # annotations that exist only for type checkers
            hints = {}
        for key, parameter in signature.parameters.items():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and key != "self":
                parameters.setdefault(key, hints.get(key, Any))
        open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        if not open_ended:
            break
    return parameters, open_ended and not library


def check_type(path: str, annotation: Any, value: Any) -> None:
    """Holds a value to an annotation, as JSON is held to a schema: an integer may stand for a float."""
    if isinstance(value, Mapping):  # a nested part, checked by its own signature
        return
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True))
    except Exception:  # tensors, specs and the like: not for YAML to give
        return
    try:
        adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        raise UserError(wrong_value(path, value, error.errors())) from None


def check_value_estimator(loss: Values) -> None:
    """``make_value_estimator`` hands its keywords to the loss's own estimator, which must take them."""
    kind = getattr(get_object(loss["module"]["_target_"]), "default_value_estimator", None)
    if kind is not None:
        estimator = get_object("torchrl.objectives.utils.get_value_estimator_entry")(kind).cls
        check_keywords(
            "loss.value_estimator", loss["value_estimator"], estimator, {"loss": loss}, {"value_network"}
        )


def check_activations(values: Values) -> None:
    """Activations are ones that ``torch.nn`` has and that need no arguments."""
    nn = get_object("torch.nn")
    names = [name for name, each in vars(nn).items() if getattr(each, "__module__", "") == nn.Tanh.__module__]
    for part in ("actor", "critic"):
        name = find(values, f"{part}.activation")
        if name is not None and name not in names:
            near = difflib.get_close_matches(name, names, n=2) or ["Tanh", "ReLU", "ELU", "SiLU", "GELU"]
            raise UserError(
                f"{part}.activation={name}: torch.nn has no such activation; try {', '.join(near)}"
            )
