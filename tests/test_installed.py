"""hydrl as people install it: a wheel, and the command ``hydrl`` in any folder."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from hydrl.__main__ import SCRIPTS
from hydrl.config.overrides import localize_commands
from tests.conftest import ROOT, typed

Call = Callable[..., subprocess.CompletedProcess[str]]
TINY = ["env=cartpole", "~tuned", "debug=fast", "total_frames=256", "eval.every_frames=256"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip put the wheel that it made of the source archive; nothing there leads to the repository."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", symlinks=True)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    # What the tests run with, without what .pth files there add, as an editable hydrl.
    running = {sysconfig.get_path(each) for each in ("purelib", "platlib")}
    (site / "running.pth").write_text("\n".join(running))
    archive = next(SdistBuilder(str(ROOT)).build(directory=str(place)))
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv"), "install", "--no-build-isolation"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", archive], check=True, env=environment())
    return site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user is."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def call(installed: Path, folder: Path) -> Call:
    """Runs a program of the environment there."""

    def call(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(installed.parents[2] / "bin" / program), *words]
        return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)

    return call


def environment() -> dict[str, str]:
    """This one without what says where hydrl lies."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HYDRL_COMMAND")}
    return kept | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def test_the_wheel_holds_what_the_repository_does_and_puts_no_other_name_at_the_top(installed: Path):
    names = {each.name.partition("-")[0] for each in installed.iterdir()}
    assert names == {"hydra_plugins", "hydrl", "running.pth"}
    app = installed / "hydrl" / "app"
    there = {str(each.relative_to(app)) for each in app.rglob("*.*") if each.suffix != ".pyc"}
    configs = {str(each.relative_to(ROOT)) for each in (ROOT / "configs").rglob("*.*")}
    assert len(configs) > 100
    figures = {str(each.relative_to(ROOT)) for each in (ROOT / "docs" / "published").iterdir()}
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    pages |= {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.svg")}
    pages |= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    scripts = {"train.py", *SCRIPTS.values()} - {"scripts/results.py"}
    assert len(pages) > 40
    assert there == configs | figures | pages | scripts
    assert all((app / each).read_bytes() == (ROOT / each).read_bytes() for each in there)


def test_an_editable_install_names_the_checkout_and_copies_nothing(tmp_path: Path):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["editable"]))
    with zipfile.ZipFile(wheel) as opened:
        (added,) = (each for each in opened.namelist() if ".dist-info/" not in each)
        assert opened.read(added).decode().split() == [str(ROOT / "src")]
        assert "hydrl-0.1.0.dist-info/entry_points.txt" in opened.namelist()


def test_it_trains_and_scores_in_any_folder(call: Call, folder: Path):
    begun = call("hydrl", "algo=ppo", *TINY)
    assert begun.returncode == 0, begun.stderr
    (run,) = folder.glob("outputs/ppo-cartpole/*-seed0")
    scored = call("hydrl", "evaluate", f"run={run}", "episodes=3")
    assert "256 frames" in scored.stdout, scored.stderr
    assert json.loads((run / "evaluation.json").read_text())["eval/episodes"] == 3


@pytest.mark.slow
def test_it_goes_on_in_any_folder(call: Call, folder: Path):
    begun = call("hydrl", "algo=ppo", *TINY, "hydra.run.dir=begun")
    assert begun.returncode == 0, begun.stderr
    longer = call("hydrl", "resume=begun", "total_frames=512")
    assert "resumed after 256 frames" in longer.stdout, longer.stderr
    assert json.loads((folder / "begun" / "summary.json").read_text())["frames"] == 512


@pytest.mark.slow
def test_members_and_workers_start_from_the_wheel(call: Call, folder: Path):
    place = ["hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep"]
    done = call("python", "-m", "hydrl", "-m", "algo=dqn", *TINY, "collector=single,pipelined", *place)
    assert "sweep: 2 of 2 finished" in done.stdout, done.stdout + done.stderr
    frames = [json.loads(each.read_text())["frames"] for each in folder.glob("sweep/*/summary.json")]
    assert (done.returncode, frames) == (0, [256] * 2)


def test_it_says_where_its_documentation_lies(call: Call):
    pages = Path(call("hydrl", "docs").stdout.strip())
    assert (pages / "concepts.md").read_bytes() == (ROOT / "docs" / "concepts.md").read_bytes()


def test_results_need_a_checkout(call: Call):
    done = call("hydrl", "results")
    message = "error: results: only a checkout of hydrl's repository has scripts/results.py\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_the_installed_command_tells_a_mistake_in_a_line(call: Call):
    done = call("hydrl", "optim.lrr=1")
    told = "error: optim.lrr=1: no such key. Write optim.lr=1.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What ``hydrl words`` prints, in this process and from the checkout."""
    monkeypatch.setenv("HYDRL_COMMAND", "0")  # put back what main sets

    def call(words: str, code: int = 0) -> str:
        done = typed(*words.split(), script="src/hydrl/__main__.py")
        said, other = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
        assert (done.returncode, other) == (code, "")
        return said

    return call


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("evaluation", "evaluation: neither key=value nor a command; those are evaluate, record, data, "),
        (
            "searchh",
            "searchh: neither key=value nor a command; those are evaluate, record, data, report, search, ",
        ),
        ("foo=1", "foo=1: no such key. hydrl --cfg job prints all"),
        ("search=ppo", "search=ppo: no key of a run. Start hydrl search search=ppo."),
    ],
)
def test_a_mistake_is_told_in_a_line(word: str, message: str, told):
    assert re.fullmatch(f"error: {re.escape(message)}.*\n", told(word, code=2))


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_command_is_the_script_and_says_how_it_was_started(name: str, told):
    assert f"hydrl {name} " in told(f"{name} --help")


def test_help_names_hydrl_and_its_commands_and_the_shell_completes_it(told, monkeypatch: pytest.MonkeyPatch):
    said = told("--help")
    assert said.startswith("hydrl algo=ppo env=inverted_double_pendulum\n")
    assert f"hydrl {', '.join(list(SCRIPTS)[:-1])} and {list(SCRIPTS)[-1]} work with runs" in said
    assert told("-sc install=bash").endswith("-F hydra_bash_completion hydrl\n")
    monkeypatch.setenv("COMP_LINE", "hydrl algo=pp")
    assert told("-sc query=bash") == "algo=ppo\n"
    monkeypatch.setenv("COMP_LINE", "hydrl report outp")
    assert told("-sc query=bash") == ""


def test_in_the_repository_commands_are_named_as_they_are_there(tmp_path: Path, monkeypatch):
    commands = "python scripts/search.py; python train.py"
    assert localize_commands(commands) == commands
    monkeypatch.chdir(ROOT / "docs" / "my_project")
    assert localize_commands(commands) == "python ../../scripts/search.py; python ../../train.py"
