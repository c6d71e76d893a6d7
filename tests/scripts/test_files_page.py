"""docs/reference/files.md lists every file that runs, sweeps, reports and datasets write."""

import re
from pathlib import Path

import pytest

from hydrl.experiments.search import PLOTS
from hydrl.experiments.sweep import COMMON_FILE
from tests.conftest import ROOT, SMALL_PPO, typed

PAGE = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
WORDS = [*SMALL_PPO, "env=cartpole", "total_frames=128", "+env.max_episode_steps=20"]


def listed(section: str) -> dict[str, re.Pattern[str]]:
    """Patterns of a section's files by how the page writes them."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.M)
    return {name: pattern(name) for cell in cells for name in re.findall("`([^`]+)`", cell)}


def pattern(name: str) -> re.Pattern[str]:
    """The paths that a name on the page stands for."""
    text = re.escape(name).replace("…", ".*")
    text = re.sub(r"MEMBER|ENV|FRAMES|CHECKPOINT", "[^/]+", text)
    return re.compile(f"{text}.*" if name.endswith("/") else text)


def assert_listed(section: str, folder: Path, *others: str) -> None:
    """The folder has all files of a section but ``others``, and no other files."""
    patterns = listed(section)
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert [file for file in files if not any(known.fullmatch(file) for known in patterns.values())] == []
    missing = [name for name, known in patterns.items() if not any(map(known.fullmatch, files))]
    assert sorted(missing) == sorted(others)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one run with a TensorBoard log, evaluated afterwards."""
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    words = ["-m", *WORDS, "logger=tensorboard", f"hydra.sweep.dir={folder}"]
    assert typed(*words).returncode == 0
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    assert typed(f"run={run}", "episodes=2", script="scripts/evaluate.py").returncode == 0
    return folder


def test_files_of_a_run_and_a_sweep(swept: Path):
    assert_listed("A sweep", swept, ".submitit/…")
    (run,) = (path for path in swept.iterdir() if path.is_dir())
    elsewhere = ["replay/…", "checkpoints/frames-….pt", "videos/FRAMES.mp4", "wandb/…"]
    elsewhere += ["video-CHECKPOINT.mp4", "samples.jsonl"]
    assert_listed("A run", run, *elsewhere)


def test_files_of_a_report(swept: Path, tmp_path: Path):
    pytest.importorskip("scipy")
    assert typed(str(swept), f"out={tmp_path / 'report'}", script="scripts/report.py").returncode == 0
    assert_listed("A report", tmp_path / "report", "front-ENV.png")


def test_files_of_a_dataset(swept: Path, tmp_path: Path):
    (run,) = (path for path in swept.iterdir() if path.is_dir())
    out = tmp_path / "dataset"
    assert typed(f"run={run}", f"out={out}", "frames=20", script="scripts/record.py").returncode == 0
    assert_listed("A dataset", out, "data.h5", "returns.png")


def test_files_that_have_names_in_the_source():
    assert {f"{name}.png" for name in PLOTS} < listed("A search").keys()
    assert COMMON_FILE in listed("A sweep")
