"""The page ``docs/reference/python.md``: what users import, from signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from hydra.utils import get_object

from hydrl.run.logging.html import code, fenced, table
from scripts.docs.keys import capitalised, in_cell

TOP = """\
# Python

This page lists what you import, with arguments, results and errors. [From Python](../python.md) shows it in
use. The builders that `configs/` name are on [the page of components](../reference.md).
"""
PARTS = {
    "Train and find runs": ["train", "sweep", "runs", "stop", "load"],
    "A run": ["api.runs.Run"],
    "A policy": ["deploy.policy.Policy"],
    "Datasets": ["datasets.files.read_columns", "datasets.files.write_columns"],
    "For your own components": ["specs.observation_keys", "networks.materialise"],
    "Errors": ["errors.UserError", "errors.RunError", "errors.DivergedError", "errors.WorkerError"],
}
MEMBERS = {
    "Run": ["summary", "metrics", "frame", "policy", "evaluate", "record_video", "resume"],
    "Policy": ["predict", "act", "reset", "env", "export"],
}
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.M)
ENTRY = re.compile(r"^(\*{0,2}\w[\w, ]*): ", re.M)
MAX_LINE = 88  # characters of a signature that fit a phone or a page's code box


def python_page() -> str:
    """Every public name with its signature, arguments, result and errors."""
    parts = [TOP.strip()]
    for heading, names in PARTS.items():
        parts.append(f"## {heading}")
        for name in names:
            parts += describe(f"hydrl.{name}")
    return "\n\n".join(parts) + "\n"


def describe(name: str) -> Iterator[str]:
    """A function, or a class with its public methods, in Markdown."""
    thing = get_object(name)
    yield f"### {name}"
    if not inspect.isclass(thing):
        yield fenced(signature(name, thing), "text")
    yield from describe_docstring(inspect.getdoc(thing) or "", with_arguments=not inspect.isclass(thing))
    for member in MEMBERS.get(thing.__name__, []):
        attribute = inspect.getattr_static(thing, member)
        shown = f"{thing.__name__.lower()}.{member}"
        yield f"#### {shown}"
        function: Any = attribute.fget if isinstance(attribute, property) else attribute
        yield fenced(signature(shown, function, is_property=isinstance(attribute, property)), "text")
        yield from describe_docstring(inspect.getdoc(attribute) or "")


def signature(name: str, function: Callable[..., Any], *, is_property: bool = False) -> str:
    """A function's call with its types, as its source has them; one argument a line where it is long."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    returned = f" -> {ast.unparse(node.returns).strip(chr(39))}" if node.returns else ""
    if is_property:
        return f"{name}{returned.replace(' ->', ':')}"
    text = ast.unparse(node.args).removeprefix("self").removeprefix(", ").replace("'", '"')
    words = [word.replace("=", " = ", 1) for word in re.split(r", (?=\*|\w+:)", text)]
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) <= MAX_LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){returned}"])


def describe_docstring(text: str, *, with_arguments: bool = True) -> Iterator[str]:
    """A docstring of Google's style in Markdown: its text, then tables and a line for each section."""
    first, *sections = SECTION.split(as_markdown(text))
    yield first.strip()
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body.strip("\n"))
        body, _, after = body.partition("\n\n")
        if heading == "Returns":
            yield f"**Returns** {in_python(body)}."
        elif heading == "Raises":
            errors = [f"- {code(name)}: {meaning}." for name, meaning in entries(body)]
            yield "\n".join(["**Raises**", "", *errors])
        elif heading == "Attributes" or with_arguments:
            rows = [[code(name), meaning] for name, meaning in entries(body)]
            yield table([{"Args": "argument", "Attributes": "attribute"}[heading], "meaning"], rows)
        if after.strip():
            yield textwrap.dedent(after).strip()


def entries(body: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a docstring's section."""
    _, *parts = ENTRY.split(body)
    for name, meaning in zip(parts[::2], parts[1::2], strict=True):
        yield name, in_cell(in_python(meaning))


def as_markdown(text: str) -> str:
    """A docstring with Sphinx's roles and double backticks as inline code."""
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`")


def in_python(text: str) -> str:
    """A docstring's text on one line; what a key calls ``null`` is ``None`` in Python."""
    return capitalised(" ".join(text.split())).replace("`null`", "`None`")
