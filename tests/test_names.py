"""Names in the source, the scripts and the documents' code say what they hold."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

VAGUE = {"each", "found", "made", "told", "given", "kept", "asked", "said", "seen", "there", "those"}
FENCED = re.compile(r"^( *)```python\n(.*?)^ *```", re.M | re.S)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def code_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Python code of a file and the number of lines before it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield 0, text
    elif path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                yield 0, "".join(line for line in cell["source"] if not line.startswith(("!", "%")))
    else:
        for block in FENCED.finditer(text):
            indent = block[1]
            lines = [line.removeprefix(indent) for line in block[2].splitlines()]
            yield text[: block.start(2)].count("\n"), "\n".join(lines)


FILES = [ROOT / "train.py", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILES += [path for folder in ("src", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
FILES += [path for ending in ("md", "py", "ipynb") for path in sorted((ROOT / "docs").rglob(f"*.{ending}"))]


def vague_names(path: Path) -> list[str]:
    names = []
    for before, code in code_blocks(path):
        names += [
            f"{path.relative_to(ROOT)}:{before + line} {name}" for line, name in bound_names(ast.parse(code))
        ]
    return [name for name in names if name.rpartition(" ")[2] in VAGUE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_is_a_pronoun_or_a_participle(path: Path):
    assert vague_names(path) == []


def test_the_reader_of_names_finds_each_kind_and_code_in_documents(tmp_path: Path):
    code = """
for each in found: made = [told for told in each]
def given(kept, *asked, **said):
    self.seen = there = 1
match 1:
    case [those]: pass
"""
    assert {name for _, name in bound_names(ast.parse(code))} >= VAGUE - {"found"}
    assert len(FILES) > 100
    assert sum(len([*code_blocks(path)]) for path in FILES if path.suffix == ".md") > 20
