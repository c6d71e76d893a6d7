"""The site of README and docs/."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hydrl.__main__ import SCRIPTS
from tests.conftest import ROOT


def test_the_site_is_built_without_a_warning_and_its_links_hold(tmp_path: Path):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    words = ["build", "--strict", "-f", "scripts/docs/mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    index, reference = ((tmp_path / name).read_text() for name in ("index.html", "reference.html"))
    assert 'href="running.html"' in index
    assert 'href="train.html"' in index  # README's link to train.py
    assert 'id="hydrl.losses.build.make_loss"' in reference
    assert ":func:" not in reference
    assert "fonts.googleapis.com" not in index
    notebook = (tmp_path / "tutorial.html").read_text()
    shown = ("<video", "data:video/mp4;base64,", "data:image/png;base64,")
    assert [notebook.count(each) for each in shown] == [1, 1, 4]
    assert 'href="acting.html"' in notebook


def test_every_extra_and_command_is_on_the_page_of_installing():
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    brought = re.search(r"hydrl\[(.*)\]", extras["dev"][0])[1].split(",")
    told = dict(re.findall(r"^\| `([\w-]+)` \|.*\| (yes|no) \|$", page, re.M))
    assert told == {name: "yes" if name in [*brought, "dev"] else "no" for name in extras}
    assert re.findall(r"^\| `hydrl (\w+) .*`python scripts/\1\.py", page, re.M) == list(SCRIPTS)


def test_the_picture_of_rooms_shows_the_imports_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    rooms = importlib.import_module("rooms")
    description = re.search(r"<dc:description>(.*?)</dc:description>", rooms.PICTURE.read_text(), re.S)
    assert description is not None
    assert description[1] == rooms.described(rooms.imports()), "run python scripts/docs/rooms.py"
    assert rooms.reduced({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}


def test_the_examples_in_contributing_stand_in_the_files_they_name():
    text, *blocks = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")
    for block, following in zip(blocks[::2], blocks[1::2], strict=True):
        path = re.findall(r"`(\S+\.(?:yaml|py))`", text)[-1]
        file = ROOT / path if path.startswith("configs") else ROOT / "src" / "hydrl" / path
        lines = {code(line) for line in file.read_text(encoding="utf-8").splitlines()}
        assert [line for line in block.splitlines()[1:] if code(line) not in lines | {""}] == [], path
        text = following
    assert len(blocks) == 10


def code(line: str) -> str:
    """A line without its comment and indentation."""
    return line.partition("#")[0].strip()
