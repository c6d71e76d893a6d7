"""Every key of a part is an argument of what it builds, and every argument without a default is given.

Read from the signatures themselves, so that TorchRL's own documentation is the list of what may be set.
"""

import difflib
import inspect
import json
import logging
import typing
from collections.abc import Container, Iterator, Mapping
from typing import Any

from hydra.utils import get_object
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from hydrl.config.mistakes import explain, find, paths, show
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
    # ``make_value_estimator`` hands its keywords to the loss's own estimator.
    loss = get_object(values["loss"]["module"]["_target_"])
    if (kind := getattr(loss, "default_value_estimator", None)) is not None:
        estimator = get_object("torchrl.objectives.utils.get_value_estimator_entry")(kind).cls
        parameters, open_ended = accepted_parameters(estimator)
        parameters.pop("value_network", None)
        hold("loss.value_estimator", parameters, values, open_ended=open_ended)
    check_activations(values)


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
    own = [each for each in signature.parameters.values() if each.name != "self"]
    own = [each for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    filled = handed | {each.name for each in own[:count] if each.kind is not each.KEYWORD_ONLY}
    keys = {key for key in node if not key.startswith("_")}
    for key in sorted(keys & filled):
        there = [each for each in paths(values) if each.rpartition(".")[2] == key and each != f"{path}.{key}"]
        elsewhere = [each for each in there if not isinstance(find(values, each), Mapping)]
        use = f"set {elsewhere[0]}" if elsewhere else "leave it out"
        raise UserError(f"{path}.{key}={show(node[key])}: the run fills this in; {use}")
    parameters, open_ended = accepted_parameters(target)
    free = {key: annotation for key, annotation in parameters.items() if key not in filled}
    required = {each.name for each in own if each.default is each.empty} - filled
    hold(path, free, values, required, open_ended=open_ended)
    try:
        signature.bind(*[None] * (count + is_class), **dict.fromkeys(keys | handed))
    except TypeError as error:
        raise UserError(f"{path}._target_={name} does not take what the run gives it: {error}") from None


def imported(path: str, name: str) -> Any:
    """What a ``_target_`` names."""
    try:
        target = get_object(name)
    except Exception as error:
        wrong = f"cannot be imported: {str(error.__cause__ or error).splitlines()[0]}"
    else:
        if callable(target):
            return target
        wrong = f"is a {type(target).__name__}"
    raise UserError(f"{path}._target_={name} {wrong}; write the path of a class or function")


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    TorchRL's classes hand keywords up to their bases, so those count too and nothing else does.
    """
    library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch")
    parameters: dict[str, Any] = {}
    open_ended = False
    classes: list[Any] = list(target.__mro__[:-1]) if inspect.isclass(target) else []
    for function in [each.__init__ for each in classes] or [target]:
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


def hold(
    path: str, kinds: Values, values: Values, required: Container[str] = (), *, open_ended: bool = False
) -> None:
    """Holds the keys at ``path`` to their ``kinds`` as JSON is held to a schema: an integer may be a float.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    given = {key: value for key, value in find(values, path).items() if not key.startswith("_")}
    fields: dict[str, Any] = {}  # a nested part is checked by its own signature
    for key, kind in kinds.items():
        checked = key in given and not isinstance(given[key], Mapping) and is_for_yaml(kind)
        default = Field(... if key in required else None, alias=key)
        fields[f"argument_{key}"] = (kind if checked else Any, default)
    config = ConfigDict(strict=True, extra="allow" if open_ended else "forbid")
    try:
        create_model("Arguments", __config__=config, **fields).model_validate_json(json.dumps(given))
    except ValidationError as error:
        raise UserError(explain(error, values, path, kinds)) from None


def is_for_yaml(annotation: Any) -> bool:
    """Whether a value in YAML can have this type, which tensors, specs and the like cannot."""
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True))
    except Exception:
        return False
    return True


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
