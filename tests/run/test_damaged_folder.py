"""Run folders that are damaged or of another making: what reads them says so in one line, or reads on."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hydrl
from hydrl.api import runs as python_runs
from hydrl.config.overrides import key_of
from hydrl.datasets import collector
from hydrl.datasets import summary as overview
from hydrl.errors import RunError, UserError
from hydrl.experiments import report, runs, sweep
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.checkpoint import resume, resume_command, warm_start
from hydrl.run.logging.loggers import MetricsFile
from hydrl.run.run_folder import summary
from scripts.docs import results_page
from tests.conftest import SMALL, resume_point, settings, typed

DQN = [*SMALL, "algo=dqn", "env=cartpole", "minibatches.warmup_frames=64", "minibatches.updates=1"]
PLAYED = ["eval.episodes=1", "eval.final_episodes=1"]
FILES = ["summary.json", "config_resolved.yaml", "metrics.csv"]
FILES += [f".hydra/{name}.yaml" for name in ("config", "overrides", "hydra")]
LONGEST = 500  # characters of a message
# Of messages that name no file but the folder or the key.
NAMED = ("no checkpoint", "no valid checkpoint", "and it cannot change")
NAMED += ("a checkpoint's statistics do not fit the normalizers", "rows of its replay buffer are gone")
NAMED += ("no run with a checkpoint", "not a run", "not a run folder.")
NAMED += ("the dataset is of env=", "without a score", "the run has no such metric")

Damage = Callable[[Path], Any]


def member(name: str, state: Any) -> Damage:
    """Puts another state into the place of one, in an archive that is whole."""

    def damage(file: Path) -> None:
        with zipfile.ZipFile(file) as whole:
            members = {each: whole.read(each) for each in whole.namelist()}
        torch.save(state, made := io.BytesIO())
        with zipfile.ZipFile(file, "w") as changed:
            for each, content in (members | {name: made.getvalue()}).items():
                changed.writestr(each, content)

    return damage


def manifest(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Changes what a checkpoint says of itself, in an archive that is whole."""

    def damage(file: Path) -> None:
        with zipfile.ZipFile(file) as whole:
            members = {each: whole.read(each) for each in whole.namelist()}
        told = json.loads(members["manifest.json"])
        change(told["metadata"])
        members["manifest.json"] = json.dumps(told).encode()
        with zipfile.ZipFile(file, "w") as changed:
            for name, content in members.items():
                changed.writestr(name, content)

    return damage


def entries(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Changes the entries of a JSON file."""

    def damage(file: Path) -> None:
        told = json.loads(file.read_text())
        change(told)
        file.write_text(json.dumps(told))

    return damage


def as_folder(file: Path) -> None:
    """A folder in the place of a file."""
    file.unlink()
    file.mkdir()


def damages(run: Path) -> Iterator[tuple[str, str, Damage]]:
    """What is damaged, how, and what does it."""
    (archive,) = checkpoint.archives(run)
    for name in [*FILES, str(archive.relative_to(run))]:
        whole = (run / name).read_bytes()
        contents = {"empty": b"", "binary": b"\xff\xfe\x00:", "cut": whole[: len(whole) // 2]}
        contents |= {"a list": b"[1, 2]\n", "a number": b"3\n", "unclosed": b"{a: [", "nested": b"[" * 5000}
        for how, content in contents.items():
            yield name, how, lambda file, content=content: file.write_bytes(content)
        yield name, "a folder", as_folder
        yield name, "gone", Path.unlink
    for name in ("checkpoints/rows-000000000000-000000000128.pt",):
        for how, content in {"empty": b"", "binary": b"\xff\xfe\x00:"}.items():
            yield name, how, lambda file, content=content: file.write_bytes(content)
        yield name, "a folder", as_folder
    for name in (".hydra", "checkpoints"):

        def as_file(folder: Path) -> None:
            shutil.rmtree(folder)
            folder.write_text("a file")

        yield name, "a file", as_file
    others: list[Any] = ["many", None, [1], {"a": 1}]
    for key in json.loads((run / "summary.json").read_text()):
        yield "summary.json", f"without {key}", entries(lambda told, key=key: told.pop(key))
        for other in others:
            change = lambda told, key=key, other=other: told.update({key: other})  # noqa: E731
            yield "summary.json", f"{key} is {other}", entries(change)
    for key in checkpoint.verify(archive):
        name = str(archive.relative_to(run))
        yield name, f"without {key}", manifest(lambda told, key=key: told.pop(key))
        for other in others:
            change = lambda told, key=key, other=other: told.update({key: other})  # noqa: E731
            yield name, f"{key} is {other}", manifest(change)
    keys = ("run_dir", "transforms", "buffer", "algo", "total_frames", "loss", "env", "collector", "task")
    for key in keys:
        for other in others:
            change = lambda told, key=key, other=other: told["settings"].update({key: other})  # noqa: E731
            yield str(archive.relative_to(run)), f"settings.{key} is {other}", manifest(change)
    with zipfile.ZipFile(archive) as file:
        parts = [each for each in file.namelist() if each.endswith("state.pt")]
    for part in parts:
        for other in ([1], {}, {"a": 1}, {"0": {"a": 1}}, "many"):
            yield str(archive.relative_to(run)), f"{part} is {other}", member(part, other)
    rows = (run / "metrics.csv").read_text().splitlines()
    words = ",".join(["many"] * (rows[0].count(",") + 1))
    metrics = {"words": [rows[0], words], "longer rows": [*rows, rows[-1] + ",1,2"]}
    metrics |= {"without frames": [rows[0].replace("frames", "x", 1), *rows[1:]], "nothing": [rows[0]]}
    metrics |= {"one cell": [rows[0] + "\n" + "9" * 200_000]}
    for how, lines in metrics.items():
        yield "metrics.csv", how, lambda file, lines=lines: file.write_text("\n".join([*lines, ""]))


def resumed(run: Path) -> None:
    words = resume_command.expand([f"resume={run}", "total_frames=192"])
    chosen = settings(*(each for each in words if key_of(each) != "hydra.run.dir"), run_dir=run)
    start = resume_point(chosen)
    resume.is_finished(chosen.shown, start)
    MetricsFile(run / "metrics.csv").keep(1)


def resumed_auto(run: Path) -> None:
    chosen = settings(*DQN, "resume=auto", run_dir=run)
    resume.is_finished(chosen.shown, resume_point(chosen))


def begun_from(run: Path) -> None:
    warm_start.find_warm_start(settings(*DQN, f"init_from.run='{run}'", run_dir=run.with_name("new")).shown)


def swept(run: Path) -> None:
    sweep.result_cells(SimpleNamespace(folder=run, status="finished"))


def in_a_notebook(run: Path) -> None:
    made = python_runs.Run(run)
    assert "\n" not in repr(made)
    assert made._repr_html_()
    assert all(each.dtype == float for each in made.metrics.values())
    python_runs.runs(run.parent)


def reported(run: Path) -> None:
    counted, left_out = runs.load_runs([run])
    assert all("\n" not in each for each in left_out.values())
    report.header_parts(counted, left_out)


def kept(run: Path) -> None:
    results_page.add_run(run.with_name("row.jsonl"), runs.read_run(run))


def searched(run: Path) -> None:
    runs.read_evaluations(run, "eval/return_mean")
    search = pytest.importorskip("hydrl.experiments.search")
    plan = SimpleNamespace(maximise="eval/return_mean")
    assert isfinite(search.Search.score(SimpleNamespace(plan=plan), summary(run)))


READERS: dict[str, Callable[[Path], Any]] = {
    "report": reported,
    "results": kept,
    "search": searched,
    "sweep": swept,
    "load": hydrl.load,
    "evaluate": lambda run: python_runs.Run(run).evaluate(1, "last"),
    "notebook": in_a_notebook,
    "resume": resumed,
    "resume=auto": resumed_auto,
    "init_from": begun_from,
    "data": lambda run: collector.load_run_rows(str(run), "cartpole", "data.path"),
    "data.py": lambda run: overview.open_dataset(run, str(run)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = typed(*DQN, "total_frames=128", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder


SHARE = 12  # one damage of so many is read by each reader in the fast suite, each by another


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_damaged_run_folder_is_read_or_told_in_a_line(
    reader: str, share: int, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, wrong = [*READERS].index(reader) % share, []
    READERS[reader](shutil.copytree(whole, tmp_path / "whole"))
    for number, (name, how, damage) in enumerate([*damages(whole)][first::share]):
        folder = shutil.copytree(whole, tmp_path / str(number) / "run")
        damage(folder / name)
        capsys.readouterr()
        try:
            READERS[reader](folder)
        except (UserError, RunError) as error:
            text, told = str(error), capsys.readouterr().out + str(error)
            named = any(each in told for each in (Path(name).name, *NAMED))
            if "\n" in text or len(text) > LONGEST or not named:
                wrong.append(f"{name}, {how}: {text[:600]!r}")
        except Exception as error:
            wrong.append(f"{name}, {how}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


SCRIPTS = {
    "evaluate": ["run=RUN", "episodes=1"],
    "record": ["run=RUN", "frames=10", "out=OUT"],
    "report": ["RUN", "out=OUT"],
    "data": ["RUN"],
}


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("evaluate", "config_resolved.yaml"),
        ("report", "config_resolved.yaml"),
        ("data", "checkpoints/checkpoint-000000000128.torchrl"),
        pytest.param("record", "config_resolved.yaml", marks=pytest.mark.slow),
        pytest.param("record", "checkpoints/checkpoint-000000000128.torchrl", marks=pytest.mark.slow),
        pytest.param("evaluate", "checkpoints/checkpoint-000000000128.torchrl", marks=pytest.mark.slow),
        pytest.param("report", ".hydra/overrides.yaml", marks=pytest.mark.slow),
    ],
)
def test_a_script_ends_in_a_line_over_a_damaged_run_folder(
    script: str, name: str, whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / name).write_bytes(b"\xff\xfe\x00:")
    words = [each.replace("RUN", str(folder)).replace("OUT", f"{tmp_path}/out") for each in SCRIPTS[script]]
    done = typed(*words, script=f"scripts/{script}.py")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert Path(name).name in done.stdout + done.stderr


def spoilt_metrics(file: Path) -> None:
    """A ``metrics.csv`` that has lost a name."""
    file.write_text(file.read_text().replace("frames", "x", 1))


PARTS = ["actor", "loss", "exploration", "collector", "books", "rng", "writer", "normaliser"]


@pytest.mark.parametrize(
    "part",
    ["metrics.csv", "optimizer", *(pytest.param(each, marks=pytest.mark.slow) for each in PARTS)],
)
@pytest.mark.parametrize("state", [{"a": 1}, pytest.param([1], marks=pytest.mark.slow)], ids=["map", "list"])
def test_a_run_whose_state_is_damaged_is_not_gone_on_with(
    part: str, state: Any, whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    (archive,) = checkpoint.archives(folder)
    if part == "metrics.csv":
        spoilt_metrics(folder / part)
    else:
        with zipfile.ZipFile(archive) as file:
            (name,) = (each for each in file.namelist() if each.endswith(f"-{part}/state.pt"))
        member(name, state)(archive)
    done = typed(f"resume={folder}", "total_frames=192")
    assert "Traceback" not in done.stderr
    if part == "normaliser":  # the run has none
        return
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (part if part == "metrics.csv" else archive.name) in done.stderr
