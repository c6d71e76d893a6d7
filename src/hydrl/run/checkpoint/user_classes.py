"""Digests of the user's own classes and functions, recorded in checkpoints and compared when resumed."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from pydoc import locate
from textwrap import dedent
from types import CodeType
from typing import Any

from hydrl.config.signatures import targets
from hydrl.config.tree import find
from hydrl.envs.gymnasium import entry_point_of
from hydrl.errors import printable, warn_once
from hydrl.run.checkpoint.resume import ResumePoint
from hydrl.run.checkpoint.warm_start import WarmStart

PYTHON_CLASSES = "hydrl.api.python_classes."  # passed to hydrl.train
LIBRARIES = {"hydrl", "torchrl", "torch", "tensordict", "gymnasium", "pettingzoo"} | sys.stdlib_module_names
PLAIN = (bool, int, float, str, bytes, type(None))


def record_classes(
    settings: Mapping[str, Any], start: ResumePoint | WarmStart | None = None
) -> dict[str, str]:
    """Digests of the classes and functions that a run names and no library has; warns of changed ones.

    A class's digest covers its base classes, but not what their code imports.

    Args:
        settings: of the run, as they are saved; all of its names are trusted.
        start: the checkpoint it begins with, if any.
    """
    now = {
        name: blake2b(text.encode(), digest_size=16).hexdigest()
        for name, target in named_objects(settings)
        if (text := "\n".join(content(part) for part in own_parts(target)))
    }
    if start:
        state = " with the class attributes that were saved" if isinstance(start, ResumePoint) else ""
        warn_of_changed(now, start.classes, start.checkpoint, state)
    return now


def warn_of_changed(now: Mapping[str, str], then: Any, checkpoint: Path, state: str = "") -> None:
    """Warns of classes whose code has changed since a checkpoint was saved.

    Args:
        now: digests by :func:`record_classes`.
        then: those of the checkpoint, which may be of a version that recorded none, or somebody else's.
        checkpoint, state: for the message.
    """
    known = then if isinstance(then, Mapping) else {}
    for name in [name for name in now if known.get(name, now[name]) != now[name]]:
        warn_once(
            f"{name} has changed since {checkpoint} was saved: its digest was "
            f"{printable(str(known[name]))[:32]} and is {now[name]}; its present code is used{state}"
        )


def named_objects(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a run's settings name: the environment by its ``id``, other components by their ``_target_``."""
    id = str(find(settings, "env.id"))
    yield id.removeprefix("hydrl/"), entry_point_of(id.rpartition(":")[2])
    names = [str(part["_target_"]) for _, part in targets(settings)] + [id.replace(":", ".")] * (":" in id)
    for name in dict.fromkeys(names):
        if name.startswith(PYTHON_CLASSES) or name.partition(".")[0] not in LIBRARIES:
            with suppress(Exception):  # which building it reports, if it is built at all
                yield name.removeprefix(PYTHON_CLASSES), locate(name)


def own_parts(target: Any) -> list[Any]:
    """A class with its base classes, or a function, without those of libraries."""
    is_function = inspect.isfunction(target)
    parts = inspect.getmro(target) if inspect.isclass(target) else [target] if is_function else []
    return [part for part in parts if str(part.__module__).partition(".")[0] not in LIBRARIES]


def content(part: Any) -> str:
    """The source without comments and layout; of code typed into a shell, its bytecode."""
    if not isinstance(part, CodeType):
        with suppress(OSError, TypeError, SyntaxError):
            lines, first = inspect.getsourcelines(part)
            if not isinstance(part, type) or is_between(part, first, first + len(lines)):
                return ast.unparse(ast.parse(dedent("".join(lines))))
    if isinstance(part, type):  # of a notebook, whose cells have the source of its methods
        own = {name: value for name, value in vars(part).items() if callable(value) or name[:2] != "__"}
        return "\n".join(f"{name} = {content(value)}" for name, value in sorted(own.items()))
    function = getattr(part, "fget", None) or getattr(part, "__func__", part)  # of a property or a method
    code = getattr(function, "__code__", function)
    if isinstance(code, CodeType):
        return repr((code.co_code, code.co_names, [content(constant) for constant in code.co_consts]))
    if isinstance(code, tuple | frozenset):
        return repr(sorted(map(content, code)) if isinstance(code, frozenset) else [*map(content, code)])
    return repr(code) if isinstance(code, PLAIN) else type(code).__name__


def is_between(part: type, first: int, end: int) -> bool:
    """Whether a class is defined in these lines, and is not another of its name in the same file."""
    codes = [function.__code__ for function in vars(part).values() if inspect.isfunction(function)]
    own = [code for code in codes if code.co_qualname == f"{part.__qualname__}.{code.co_name}"]
    return all(first <= code.co_firstlineno < end for code in own)
