"""Commands in README and docs/: train.py and the scripts take their words.

Commands in a folder of one's own are trained with by `tests/test_my_project.py`.
"""

import importlib
import re
import shlex
from dataclasses import fields

import pytest

from hydrl.config.overrides import expand_shorthands, quote_paths
from hydrl.errors import UserError
from scripts.docs import commands as run_commands
from tests.conftest import ROOT, settings

PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "results.md"),
]
# Words that say where a run lies or how it is started, and names that a reader replaces.
STARTING = re.compile(r"-m$|--cfg$|job$|--resolve$|--help$|hydra[./]|resume=|init_from")
REPLACED = re.compile(r"--config-dir|MY_TASKS|my_package|my_teams|my_games|^RUN\b")
SCRIPTS = ("data", "evaluate", "record", "report")


def commands(name: str) -> list[list[str]]:
    """The words after ``NAME.py`` of each command that stands in a code block of a page."""
    unique: dict[tuple[str, ...], None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S)
        shell = [block for language, block in blocks if language in ("", "bash")]
        lines = [line for block in shell for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
        for line in lines:
            _, command, words = line.partition(f"{name}.py ")
            if command and not line.startswith(("#", "eval ")):
                unique[tuple(shlex.split(words, comments=True))] = None
    return [[*words] for words in unique if not any(REPLACED.search(word) for word in words)]


def first(word: str) -> str:
    """The first value of a sweep's list or range."""
    return re.sub(r"=range\(.*|=\$.*", "=0", re.sub(r"=([^,[{]*|\[[^]]*\]),.*", r"=\1", word))


TRAINING = {
    " ".join(words): [first(word) if "-m" in words else word for word in words if not STARTING.match(word)]
    for words in commands("train")
}


@pytest.mark.parametrize("command", TRAINING)
def test_train_py_takes_the_words_of_a_command(command: str):
    overrides = [re.sub(r"\$\w+", "0", word) for word in TRAINING[command]]
    try:
        settings(*expand_shorthands(quote_paths(overrides)))
    except UserError as error:
        if "hydrl[dm-control]" in str(error) or "hydrl[submitit]" in str(error):
            pytest.skip("an extra that make does not install")
        raise


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_the_keys_of_its_commands(script: str):
    known = {field.name for field in fields(importlib.import_module(f"scripts.{script}").Arguments)}
    keys = {
        word.partition("=")[0] for words in commands(f"scripts/{script}") for word in words if "=" in word
    }
    assert keys - known == set()


def test_every_command_has_run_or_the_page_says_why_not():
    rows = run_commands.read_rows()
    assert list(rows) == run_commands.commands(), "run python scripts/docs/pages.py"
    for command, row in rows.items():
        how, ended, _, day = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:6])
        if how == "no":
            assert ended == run_commands.reason(command) != ""
        elif how == "checked":
            assert not day
        else:
            assert (how, ended) in (("fast", "0"), ("whole", "0"), ("results", "0")), command
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)


def test_commands_are_found():
    assert len(TRAINING) > 90
    assert sum(len(commands(f"scripts/{script}")) for script in SCRIPTS) > 15
    assert ["algo=dqn", "env=cartpole", "optim.lr=1e-3", "seed=0"] in TRAINING.values()  # a sweep
