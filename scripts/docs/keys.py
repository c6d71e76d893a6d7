"""What a key of the configuration means and may hold, for tables in docs/."""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from hydra.utils import get_object

from hydrl.config import CONFIGS
from hydrl.config.ranges import take_limits, type_of
from hydrl.config.schema import NETWORKS, RunConfig
from hydrl.config.source_annotations import own_ranges
from hydrl.config.tree import find, read_option, show

SENTENCES = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"))
# A parameter in a docstring: its name, its type in brackets, its first line.
PARAMETER = re.compile(r"^ +\*{0,2}(\w+)(?: \((?:[^()]|\([^()]*\))*\))?: +(.*)$")
OTHERS = re.compile(r"as for :(?:func|class|meth):`~?([\w.]+)`")


def file_comment(file: Path) -> str:
    """The comment at the top of a configuration file, below its ``@package``."""
    lines = file.read_text(encoding="utf-8").splitlines()
    lines = lines[1:] if lines[0].startswith("# @package") else lines
    top = lines[: next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    return " ".join(line.removeprefix("#").strip() for line in top)


@cache
def line_comments(file: Path) -> Mapping[str, str]:
    """The comment behind each key's value, by dotted key; empty where there is none."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()

    def walk(node: yaml.Node, prefix: str) -> Iterator[tuple[str, str]]:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            in_block = isinstance(value, yaml.MappingNode) and not value.flow_style
            mark = key.end_mark if in_block else value.end_mark
            comment = re.search(r"\s# +(.*)$", lines[mark.line][mark.column :])
            yield f"{prefix}{key.value}", comment[1] if comment else ""
            yield from walk(value, f"{prefix}{key.value}.")

    root = yaml.compose(text)
    return dict(walk(root, "")) if root else {}


@cache
def option_files(option: str) -> tuple[Path, ...]:
    """The file of an option, ``GROUP/NAME``, and those it starts from; the first that sets a key wins."""
    file = CONFIGS / f"{option}.yaml"
    if not file.is_file():
        return ()
    bases: list[str] = []
    for base in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("defaults", []):
        if isinstance(base, str) and base != "_self_":
            bases.append(
                base.lstrip("/") if base.startswith("/") else str(PurePosixPath(option).parent / base)
            )
        elif isinstance(base, dict):  # such as /layers@_here_: mlp
            bases += [
                f"{group.removeprefix('/').removesuffix('@_here_')}/{name}"
                for group, name in base.items()
                if group.endswith("@_here_")
            ]
    return (file, *(start for base in reversed(bases) for start in option_files(base)))


def option_comment(option: str, key: str) -> str:
    """What the files of an option, ``GROUP/NAME``, say of a dotted key in it."""
    return next(filter(None, (line_comments(file).get(key) for file in option_files(option))), "")


def value_comment(option: str, key: str) -> str:
    """What the file says of a dotted key that gives it its value."""
    return next((line_comments(file)[key] for file in option_files(option) if key in line_comments(file)), "")


@cache
def parameter_sentences(target: str) -> Mapping[str, str]:
    """The first sentence on each parameter in the docstrings of a class or function, by its dotted path."""
    component = get_object(target)
    classes = inspect.getmro(component)[:-1] if inspect.isclass(component) else [component]
    documents = [
        document for cls in classes for document in (cls, getattr(cls, "__init__", None)) if document
    ]
    sentences: dict[str, str] = {}
    for document in documents:
        text = inspect.getdoc(document) or ""
        for name, sentence in docstring_parameters(text):
            sentences.setdefault(name, sentence)
        for name in OTHERS.findall(text):
            path = name if "." in name else f"{component.__module__}.{name}"
            if path != target:
                sentences = {**parameter_sentences(path), **sentences}
    return sentences


def docstring_parameters(text: str) -> Iterator[tuple[str, str]]:
    """Names and first sentences of the parameters in a docstring of Google's style."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if parameter := PARAMETER.match(line):
            indent = len(line) - len(line.lstrip())
            words = [parameter[2]]
            for following in lines[number + 1 :]:
                if not following.strip() or len(following) - len(following.lstrip()) <= indent:
                    break
                words.append(following.strip())
            yield parameter[1], first_sentence(" ".join(words))


def first_sentence(text: str) -> str:
    """The first sentence of a docstring's text, its roles and double backticks as Markdown."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"^\([^()]*(?:\[[^]]*\])?[^()]*\):? *", "", text)  # its type
    text = re.split(
        r"(?<=[.\w])\s+(?:\* |- )|(?<=\.)\s+(?=[A-Z`])|\s+Defaults? (?:is|to|:)|\s*\(default: ", text
    )[0]
    return text.strip().rstrip(".;:")


def meaning(key: str, settings: Any, options: Mapping[str, str | None]) -> str:
    """What a dotted key means, and why its algorithm has this value, as a cell of a table.

    It is read from keys.yaml beside this file, the comment in the option's YAML or the docstring of the
    component that takes it, in this order.

    Args:
        key: such as ``loss.module.clip_epsilon``.
        settings: composed settings, resolved.
        options: the chosen option of each group, ``algo`` among them.
    """
    group, _, within = key.partition(".")
    comment = option_comment(f"{group}/{options.get(group)}", within) or option_comment("train", key)
    reason = value_comment(f"algo/{options.get('algo')}", key)
    known = SENTENCES.get(key) or (
        SENTENCES.get(f"NETWORK.{within}") if group in (*NETWORKS, "layers") else ""
    )
    if not known and len(comment.split()) > 2:
        known = comment
    sentence = known or parameter_sentence(key, settings) or comment
    sentences = dict.fromkeys(capitalised(text) for text in (sentence, reason) if text)
    return in_cell(". ".join(sentences))


def capitalised(text: str) -> str:
    """A comment as a sentence without its full stop."""
    is_word = re.match(r"[a-zA-Z-]+[ ,;:]", text) and not text.startswith(("null", "auto"))
    return ((text[:1].upper() if is_word else text[:1]) + text[1:]).rstrip(".").replace("`None`", "`null`")


def parameter_sentence(key: str, settings: Any) -> str:
    """What the docstring of the component that takes a key says of it."""
    *path, name = key.split(".")
    node, targets = settings, list[str]()
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and "_target_" in node:
            targets.insert(0, str(node["_target_"]))
    return next(filter(None, (parameter_sentences(target).get(name) for target in targets)), "")


def default(value: Any) -> str:
    """A default as it is typed, for a cell of a table."""
    text = f"{value:_}" if type(value) is int and value >= 10_000 else show(value)
    return in_cell(f"`{text}`")


def in_cell(text: str) -> str:
    """Markdown in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def range_of(key: str, settings: Any) -> str:
    """What a dotted key of composed settings may hold, in words."""
    of_losses = take_limits({"loss": copy.deepcopy(read_option("/train")["loss"])})
    if limit := (of_losses | take_limits(copy.deepcopy(settings))).get(key):
        return kind_text(type_of(key, limit))
    above, _, name = key.rpartition(".")
    if target := (find(settings, above) or {}).get("_target_"):
        return kind_text(own_ranges(target).get(name, Any))
    return schema_range(key)


def schema_range(key: str) -> str:
    """What the schema says that a dotted key may hold."""
    kind: Any = RunConfig
    for name in key.split("."):
        fields = getattr(kind, "model_fields", {})
        if name not in fields:
            return ""
        info = fields[name]
        kind = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        kind = info.annotation if hasattr(info.annotation, "model_fields") else kind
    return kind_text(kind)


def kind_text(kind: Any) -> str:
    """An annotation in words: its range where it has one."""
    if get_origin(kind) is Annotated:
        base, *constraints = get_args(kind)
        limits = [
            limit for constraint in constraints for limit in getattr(constraint, "metadata", [constraint])
        ]
        bounds = {name: getattr(limit, name) for limit in limits for name in BOUNDS if hasattr(limit, name)}
        text = ", ".join(f"{BOUNDS[name]} {bound}" for name, bound in bounds.items())
        return f"{kind_text(base)} {text}".strip()
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(kind_text, get_args(kind)))
    if get_origin(kind) is list:
        return f"list of {kind_text(get_args(kind)[0])}"
    return KINDS.get(kind, getattr(kind, "__name__", ""))


BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
KINDS = {int: "integer", float: "number", bool: "`true`, `false`", str: "text", type(None): "`null`", Any: ""}
