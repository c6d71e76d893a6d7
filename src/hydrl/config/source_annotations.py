"""Annotations of hydrl's own components, read from their source: importing most of them imports PyTorch."""

import ast
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, NotRequired, get_args, get_origin

from hydra.utils import get_object

from hydrl import limits
from hydrl.config import PACKAGE

IMPORTED = ("typing", "pydantic", limits.__name__)  # modules whose names are imported, for they are small
BUILTINS = {kind.__name__: kind for kind in (bool, dict, float, int, list, str, tuple)}


def own_parameters(target: str) -> dict[str, Any]:
    """The parameters of hydrl's class or function with their annotations; nothing of it is imported.

    A parameter whose annotation needs other libraries is left out; ``{}`` for a target of others.
    """
    module, _, name = target.rpartition(".")
    return dict(evaluated_parameters(module, name)) if module.startswith(f"{PACKAGE.name}.") else {}


@cache
def evaluated_parameters(module: str, name: str) -> tuple[tuple[str, Any], ...]:
    """The parameters of hydrl's class or function, evaluated once."""
    return tuple(Source.of(module).parameters(name))


def own_ranges(target: str) -> dict[str, Any]:
    """Those of :func:`own_parameters` that have a range, as the types of :mod:`hydrl.limits`."""
    return {name: kind for name, kind in own_parameters(target).items() if has_range(kind)}


def has_range(kind: Any) -> bool:
    """Whether an annotation, or one within it, is an ``Annotated``."""
    return get_origin(kind) is Annotated or any(map(has_range, get_args(kind)))


class Source:
    """The source of a module of hydrl's: evaluates the annotations in it.

    Args:
        module: dotted name.
    """

    def __init__(self, module: str) -> None:
        path = PACKAGE.parent.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.definitions: dict[str, ast.stmt] = {}
        for statement in ast.parse(file.read_bytes()).body if file.is_file() else ():
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.definitions[statement.name] = statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.definitions[statement.targets[0].id] = statement
            elif isinstance(statement, ast.ImportFrom):
                self.definitions |= {imported.name: statement for imported in statement.names}

    @classmethod
    @cache
    def of(cls, module: str) -> "Source":
        """The source of a module, parsed once."""
        return cls(module)

    def parameters(self, name: str) -> Iterator[tuple[str, Any]]:
        """Parameters of a function, a class or its bases, with their annotations."""
        definition = self.definitions.get(name)
        if isinstance(definition, ast.ImportFrom):
            yield from Source.of(str(definition.module)).parameters(name)
        elif isinstance(definition, ast.ClassDef):
            init = next((part for part in definition.body if getattr(part, "name", "") == "__init__"), None)
            bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
            if not isinstance(init, ast.FunctionDef) or init.args.kwarg:
                for base in bases:
                    yield from self.parameters(base)
            if isinstance(init, ast.FunctionDef):
                yield from self.annotations(init)
        elif isinstance(definition, ast.FunctionDef):
            yield from self.annotations(definition)

    def annotations(self, function: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
        """Annotations of a function's parameters, with the keys of ``**name: Unpack[TYPED_DICT]``."""
        arguments = function.args
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.arg != "self":
                yield from self.evaluated(argument.arg, argument.annotation)
        unpacked = arguments.kwarg and arguments.kwarg.annotation
        if isinstance(unpacked, ast.Subscript) and isinstance(unpacked.slice, ast.Name):
            yield from self.fields(unpacked.slice.id)

    def fields(self, name: str) -> Iterator[tuple[str, Any]]:
        """Annotations of the keys of a ``TypedDict``."""
        definition = self.definitions.get(name)
        if isinstance(definition, ast.ImportFrom):
            yield from Source.of(str(definition.module)).fields(name)
        for statement in definition.body if isinstance(definition, ast.ClassDef) else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield from self.evaluated(statement.target.id, statement.annotation)

    def evaluated(self, name: str, annotation: ast.expr | None) -> Iterator[tuple[str, Any]]:
        """A name with its annotation; nothing where that needs other libraries."""
        try:
            kind = self.evaluate(annotation) if annotation else Any
        except (KeyError, TypeError):
            return
        yield name, get_args(kind)[0] if get_origin(kind) is NotRequired else kind

    def evaluate(self, expression: ast.expr) -> Any:
        """The value of an annotation.

        Raises:
            KeyError: for a name of another library.
            TypeError: for what is no annotation.
        """
        used = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return eval(
            compile(ast.Expression(expression), "<annotation>", "eval"),
            {name: BUILTINS[name] if name in BUILTINS else self.named(name) for name in used},
        )

    def named(self, name: str) -> Any:
        """What a name in an annotation stands for; raises as :meth:`evaluate`."""
        definition = self.definitions[name]
        if isinstance(definition, ast.Assign):
            return self.evaluate(definition.value)
        if isinstance(definition, ast.ImportFrom) and definition.module in IMPORTED:
            return get_object(f"{definition.module}.{name}")
        if isinstance(definition, ast.ImportFrom):
            return Source.of(str(definition.module)).named(name)
        raise KeyError(name)
