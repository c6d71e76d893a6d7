"""The site of README and docs/."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hydrl.__main__ import SCRIPTS
from scripts.docs import pages
from tests.conftest import ROOT, composed


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
    assert "url=notes/performance.html" in (tmp_path / "performance.html").read_text()  # an old address
    notebook = (tmp_path / "tutorial.html").read_text()
    shown = ("<video", "data:video/mp4;base64,", "data:image/png;base64,")
    assert [notebook.count(text) for text in shown] == [1, 1, 4]
    assert 'href="acting.html"' in notebook


def test_generated_pages_are_what_the_script_writes():
    for page, text in pages.make_pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run python scripts/docs/pages.py"
        images = re.findall(r' (?:src|href)="(.*?)"', text)
        assert [image for image in images if not (page.parent / image).is_file()] == []


def test_every_extra_and_command_is_on_the_page_of_installing():
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    brought = re.search(r"hydrl\[(.*)\]", extras["dev"][0])[1].split(",")
    listed = dict(re.findall(r"^\| `([\w-]+)` \|.*\| (yes|no) \|$", page, re.M))
    assert listed == {name: "yes" if name in [*brought, "dev"] else "no" for name in extras}
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


def test_every_test_that_reliability_names_exists():
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"(test_\w+\.py)(?:::([\w…]+))?", page)
    assert len(named) > 80
    for file, test in named:
        pattern = "def " + (test.replace("…", r"\w*") + r"\(" if test else "test_")
        assert re.search(pattern, files.get(file, "")), f"{file}::{test}"


def test_messages_name_pages_that_exist():
    sources = [
        path
        for folder in ("src", "scripts", "configs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    sources = [path for path in sources if path.suffix in (".py", ".yaml")]
    names = {
        name
        for path in sources
        for name in re.findall(r"docs/[\w/]+\.(?:md|png|svg|ipynb)\b", path.read_text(encoding="utf-8"))
    }
    assert len(names) > 5
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


# Words that choose what has the keys in the tables of docs/from_….md.
CHOICES = [
    "algo=ppo env=pendulum",
    "algo=ppo env=cartpole collector=multi_sync rnn=lstm logger=wandb schedule=linear",
    "algo=dqn env=cartpole target=soft",
    "algo=dqn env=cartpole",
    "algo=sac env=pendulum",
    "algo=td3 env=pendulum exploration=gaussian",
    "algo=td3_bc env=pendulum data=npz data.path=none",
    "algo=ippo env=simple_spread",
]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("from_*.md")), ids=lambda path: path.stem)
def test_keys_in_the_tables_of_other_libraries_exist(page: Path):
    trees = [composed(*words.split()) for words in CHOICES]
    cells = re.findall(r"\| ([^|\n]+) \|$", page.read_text(encoding="utf-8"), re.M)
    groups = {name for tree in trees for name in tree}
    keys = {
        key
        for cell in cells
        if not cell.startswith("`error:")  # the message of a mistyped key
        for key in re.findall(r"(?<![\w./+])([a-z_]+(?:\.[a-z_]+)+)", cell)
    }
    keys = {key for key in keys if key.split(".")[0] in groups}
    assert len(keys) > 3
    known = {key for tree in trees for key in keys if OmegaConf.select(tree, key, default=...) is not ...}
    assert keys - known == set()
