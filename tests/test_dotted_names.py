"""Dotted names in pages and docstrings exist, and hydrl's in strings of source, YAML and tests."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = [
    "hydrl",
    "torchrl",
    "tensordict",
    "torch",
    "gymnasium",
    "numpy",
    "omegaconf",
    "pydantic",
    "minari",
]
NAME = re.compile(rf"(?<![\w./@:-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w/-]|\.\w)")
# Hosts, files and extras that look like names.
NO_NAMES = re.compile(r"\.(?:org|com|io|py|md|yaml|toml|log|csv|json|png|svg|zip|torchrl)$")


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def modules() -> list[Path]:
    return [
        ROOT / "train.py",
        *sorted((ROOT / "src").rglob("*.py")),
        *sorted((ROOT / "scripts").rglob("*.py")),
    ]


def docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def names(text: str) -> set[str]:
    return {name for name in NAME.findall(text) if not NO_NAMES.search(name)}


def exists(name: str) -> bool:
    """Whether ``name`` is a module or something in one; attributes of instances count where annotated."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            if importlib.util.find_spec(".".join(parts[:length])) is None:
                continue
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            annotations = getattr(value, "__annotations__", {})
            if not hasattr(value, part) and part not in annotations:
                return False
            value = getattr(value, part, None)
        return True
    return False


def test_names_that_are_wrong_are_seen():
    assert exists("hydrl.training.update.Update")
    assert not exists("hydrl.training.update.Updade")
    assert not exists("hydrl.loop.update")
    assert names("see :class:`~torchrl.data.ReplayBuffer`, hydrl.train(...) and docs.pytorch.org") == {
        "torchrl.data.ReplayBuffer", "hydrl.train"
    }  # fmt: skip


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_dotted_names_on_a_page_exist(path: Path):
    assert [name for name in sorted(names(path.read_text(encoding="utf-8"))) if not exists(name)] == []


def test_dotted_names_in_docstrings_exist():
    missing = {
        str(path.relative_to(ROOT)): wrong
        for path in modules()
        if (wrong := [name for text in docstrings(path) for name in sorted(names(text)) if not exists(name)])
    }
    assert missing == {}


# Names of earlier versions stand here.
OF_EARLIER = {"migrations.py", "migrations.yaml", "test_migrations.py", "test_compare_checkouts.py"}
OF_EARLIER |= {"test_dotted_names.py", "test_capture.py", "make.py"}
A_FILE = re.compile(r"\.db$")
STRING = re.compile(r"""["'](hydrl(?:\.\w+)+)(?::\w[\w-]*)?["']""")
TARGET = re.compile(r"(?:_target_|id): *(hydrl(?:\.\w+)+)")


def test_dotted_names_in_strings_exist():
    folders = (ROOT / folder for folder in ("src", "configs", "tests", "scripts", "docs/my_project"))
    files = [ROOT / "train.py", *(file for folder in folders for file in folder.rglob("*.*"))]
    files = [file for file in files if file.suffix in (".py", ".yaml") and file.name not in OF_EARLIER]
    assert len(files) > 400
    missing = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        found = {name for pattern in (STRING, TARGET) for name in pattern.findall(text)}
        if wrong := [name for name in sorted(found) if not A_FILE.search(name) and not exists(name)]:
            missing[str(file.relative_to(ROOT))] = wrong
    assert missing == {}
