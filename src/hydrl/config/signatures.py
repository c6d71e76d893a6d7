"""Signatures of what a configuration names: each ``_target_`` with its parameters and their annotations."""

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce, wraps
from types import UnionType
from typing import Any, NotRequired, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from hydra.utils import get_object

T = TypeVar("T")


def cache_hashable(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """``functools.cache`` for one argument; one that cannot be hashed is not kept."""
    cached = cache(function)

    @wraps(function)
    def call(argument: Any) -> T:
        try:
            hash(argument)
        except TypeError:
            return function(argument)
        return cached(argument)

    return call


def targets(values: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node that names a ``_target_``, with its dotted path."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield path, dict(values)
        for key, value in values.items():
            yield from targets(value, f"{path}.{key}" if path else str(key))


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    Classes of the libraries hand keywords up to their bases, so those count too and nothing else does.
    """
    parameters, open_ended = read_signature(target)
    return dict(parameters), open_ended


@cache_hashable
def read_signature(target: Any) -> tuple[dict[str, Any], bool]:
    """See :func:`accepted_parameters`, which copies this: the same targets are asked for again and again."""
    is_library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch", "gymnasium")
    classes = target.__mro__[:-1] if inspect.isclass(target) else ()
    functions = [vars(cls)["__init__"] for cls in classes if "__init__" in vars(cls)]
    parameters: dict[str, Any] = {}
    open_ended = False
    for function in functions if classes else [target]:
        hints, open_ended = type_hints(function), False
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name, Any)
            if get_origin(kind) is Unpack:  # keywords that a TypedDict names
                parameters |= typed_dict_keywords(kind)
            elif parameter.kind is parameter.VAR_KEYWORD:
                open_ended = True
            elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
                parameters.setdefault(parameter.name, variadic_tuple(kind) if is_library else kind)
        if not open_ended:
            break
    return parameters, open_ended and not is_library


def required_keywords(target: Any) -> frozenset[str]:
    """The keywords of ``**name: Unpack[...]`` that have no default."""
    typed_dicts = [get_args(hint)[0] for hint in type_hints(target).values() if get_origin(hint) is Unpack]
    return frozenset().union(*(typed_dict.__required_keys__ for typed_dict in typed_dicts))


def typed_dict_keywords(kind: Any) -> dict[str, Any]:
    """The keywords of ``**name: Unpack[kind]`` with their annotations."""
    (typed_dict,) = get_args(kind)
    hints = get_type_hints(typed_dict, include_extras=True)
    return {
        key: get_args(hint)[0] if get_origin(hint) is NotRequired else hint for key, hint in hints.items()
    }


def type_hints(function: Any) -> dict[str, Any]:
    """The annotations of a function; none where they exist only for type checkers."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        return {}


def variadic_tuple(kind: Any) -> Any:
    """``tuple[float]`` as the libraries mean it, several numbers, and not as Python does, exactly one."""
    if get_origin(kind) is tuple and len(get_args(kind)) == 1:
        return tuple.__class_getitem__((*get_args(kind), ...))
    if get_origin(kind) in (Union, UnionType):
        return reduce(operator.or_, map(variadic_tuple, get_args(kind)))
    return kind


def gymnasium_parameters(id: str) -> tuple[dict[str, Any], bool]:
    """The parameters of a Gymnasium environment by its id, as :func:`accepted_parameters` has them."""
    module, _, name = id.rpartition(":")
    try:
        if module:
            get_object(module)
        entry_point = get_object("gymnasium.spec")(name).entry_point
        if isinstance(entry_point, str):
            entry_point = get_object(entry_point.replace(":", "."))
        return accepted_parameters(entry_point)
    except Exception:  # it has a message of its own when it is made
        return {}, True
