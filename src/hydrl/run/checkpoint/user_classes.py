"""Classes and functions of the user's own that a run depends on: recorded by content and compared later."""

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

from hydrl.config.settings import Settings
from hydrl.config.signatures import targets
from hydrl.config.tree import find
from hydrl.envs.gymnasium import entry_point_of
from hydrl.errors import printable
from hydrl.library_setup import warn_once
from hydrl.run.checkpoint.resume import Origin
from hydrl.run.checkpoint.warm_start import Source

GIVEN = "hydrl.api.python_classes."  # handed over in Python
LIBRARIES = {"hydrl", "torchrl", "torch", "tensordict", "gymnasium", "pettingzoo"} | sys.stdlib_module_names
PLAIN = (bool, int, float, str, bytes, type(None))


def record_classes(settings: Settings, *earlier: Origin | Source | None) -> dict[str, str]:
    """Digests of the classes and functions that a run names and no library has; says which have changed.

    With a class go those that it inherits from; what their code imports is not looked at.

    Args:
        settings: of the run, all of whose names are trusted.
        earlier: what it begins with.
    """
    now = {
        name: blake2b(text.encode(), digest_size=16).hexdigest()
        for name, made in named(settings.shown)
        if (text := "\n".join(content(each) for each in own_parts(made)))
    }
    for begun in earlier:
        if begun:
            state = " with the class attributes that were saved" if isinstance(begun, Origin) else ""
            warn_of_changed(now, begun.classes, begun.checkpoint, state)
    return now


def warn_of_changed(now: Mapping[str, str], then: Any, checkpoint: Path, state: str = "") -> None:
    """Says which classes are defined otherwise than where a checkpoint was saved.

    Args:
        now: as :func:`record_classes` has them.
        then: the same of the checkpoint, which may be of a version that recorded none, or somebody else's.
        checkpoint: for the message, as is what goes on of the environments' ``state``.
    """
    known = then if isinstance(then, Mapping) else {}
    for name in [each for each in now if known.get(each, now[each]) != now[each]]:
        warn_once(
            f"{name} has changed since {checkpoint} was saved: its digest was "
            f"{printable(str(known[name]))[:32]} and is {now[name]}; its present code is used{state}"
        )


def named(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a run's settings name: the environment by its ``id``, other parts by their ``_target_``."""
    id = str(find(settings, "env.id"))
    yield id.removeprefix("hydrl/"), entry_point_of(id.rpartition(":")[2])
    names = [str(part["_target_"]) for _, part in targets(settings)] + [id.replace(":", ".")] * (":" in id)
    for name in dict.fromkeys(names):
        if name.startswith(GIVEN) or name.partition(".")[0] not in LIBRARIES:
            with suppress(Exception):  # of which building it tells, if it is built at all
                yield name.removeprefix(GIVEN), locate(name)


def own_parts(made: Any) -> list[Any]:
    """A class with those that it inherits from, or a function, as far as no library has them."""
    parts = inspect.getmro(made) if inspect.isclass(made) else [made] if inspect.isfunction(made) else []
    return [each for each in parts if str(each.__module__).partition(".")[0] not in LIBRARIES]


def content(part: Any) -> str:
    """Its source without comments and layout; of what was typed into a shell, what that compiles to."""
    if not isinstance(part, CodeType):
        with suppress(OSError, TypeError, SyntaxError):
            lines, first = inspect.getsourcelines(part)
            if not isinstance(part, type) or is_between(part, first, first + len(lines)):
                return ast.unparse(ast.parse(dedent("".join(lines))))
    if isinstance(part, type):  # of a notebook, whose cells have the source of its methods
        own = {name: each for name, each in vars(part).items() if callable(each) or name[:2] != "__"}
        return "\n".join(f"{name} = {content(each)}" for name, each in sorted(own.items()))
    function = getattr(part, "fget", None) or getattr(part, "__func__", part)  # of a property or a method
    code = getattr(function, "__code__", function)
    if isinstance(code, CodeType):
        return repr((code.co_code, code.co_names, [content(each) for each in code.co_consts]))
    if isinstance(code, tuple | frozenset):
        return repr(sorted(map(content, code)) if isinstance(code, frozenset) else [*map(content, code)])
    return repr(code) if isinstance(code, PLAIN) else type(code).__name__


def is_between(part: type, first: int, end: int) -> bool:
    """Whether a class is the one of these lines, and not another of its name in the same file."""
    codes = [function.__code__ for function in vars(part).values() if inspect.isfunction(function)]
    own = [code for code in codes if code.co_qualname == f"{part.__qualname__}.{code.co_name}"]
    return all(first <= code.co_firstlineno < end for code in own)
