"""The notebook of docs/ runs and is kept as it ran; so do the examples of the page "From Python"."""

import re
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

import hydrl
from hydrl.api import runs
from tests.conftest import ROOT, SMALL

nbformat = pytest.importorskip("nbformat")
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
VIDEO = '<source src="data:video/mp4;base64,'
needs_egl = pytest.mark.skipif(not find_library("EGL"), reason="MuJoCo needs libEGL")


def read() -> tuple[Any, list[Any]]:
    """The notebook, and its cells of code."""
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    return notebook, [each for each in notebook.cells if each.cell_type == "code"]


def shown(cells: list[Any]) -> str:
    return "\n".join(str(each.get("data", each)) for cell in cells for each in cell.outputs)


def test_the_notebook_is_kept_as_it_ran_with_its_video():
    _, cells = read()
    assert [each.execution_count for each in cells] == [*range(1, len(cells) + 1)]
    assert not [each for cell in cells for each in cell.outputs if each.output_type == "error"]
    outputs = shown(cells)
    assert VIDEO in outputs
    assert outputs.count("'image/png'") == 2
    assert "first at threshold" in outputs
    assert not re.search(r"warning|/(home|root|tmp|work|Users)/", outputs)
    assert NOTEBOOK.stat().st_size < 1_500_000


@pytest.mark.slow
@needs_egl
def test_each_cell_of_the_notebook_runs(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in read()[1]:
        source = cell.source
        if "parameters" in cell.metadata.get("tags", []):
            source = "FRAMES, SOLVING, EPISODES = 1_000, 1_024, 2"
        exec(source, names)
    plt.close("all")
    assert (names["run"].summary["frames"], names["own"].summary["env"]) == (2_000, "Corridor")
    assert names["run"].metrics["frames"].tolist() == [1_000, 2_000]
    assert -2 < names["own"].evaluate(2)["eval/return_mean"] < 0
    assert names["total"] > 0
    assert names["images"][0].shape == (480, 480, 3)
    assert VIDEO in names["Video"](names["video_file"], embed=True)._repr_html_()


@pytest.mark.slow
@needs_egl
def test_the_notebook_solves_its_task_and_records_a_video(tmp_path):
    client = pytest.importorskip("nbclient")
    notebook, cells = read()
    ask = nbformat.v4.new_code_cell("print(solved.summary['solved_at_frames'], scores['eval/return_min'])")
    notebook.cells.append(ask)
    at = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, kernel_name="python3", resources=at).execute()
    frames, worst = ask.outputs[0].text.split()
    assert int(frames) <= 100_000
    assert float(worst) > 9_300
    assert len(re.findall(re.escape(VIDEO), shown(cells))) == 1


PAGE = (ROOT / "docs" / "python.md").read_text()


class Process:
    """A sweep that is only told of, whose members have finished."""

    commands: list[list[str]] = []  # noqa: RUF012

    def __init__(self, command, **options: Any) -> None:
        self.commands.append(command)
        Path(command[-1].partition("=")[2]).mkdir(parents=True)

    def wait(self) -> int:
        return 0


def test_the_page_s_examples_run(tmp_path, monkeypatch, capsys):
    train, small = hydrl.train, [each for each in SMALL if each[:4] != "~tun" and "total" not in each]

    def briefly(*words, total_frames=200, **keys):
        return train(*small, *words, total_frames=total_frames, **keys)

    monkeypatch.setattr(hydrl, "train", briefly)
    monkeypatch.setattr(runs.subprocess, "Popen", Process)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 11
    for block in blocks:
        exec(re.sub(r"(total_frames=\d+)_000", r"\g<1>0", block), names)  # a hundredth
        if "thread.start()" in block:
            names["thread"].join()  # it ends by itself, and stop() finds none
    said = capsys.readouterr().out
    assert "env=cartpol: no such option. Try cartpole, " in said
    assert "env=Corridor: known to this process only; resume the run here" in said
    assert [each.name for each in (tmp_path / "outputs").iterdir() if (each / "summary.json").is_file()]
    assert runs.Run("outputs/mine").summary["eval/episodes"] == 50
    assert names["own"].summary["frames"] == 320
    sweep = next(each for each in Process.commands if "-m" in each)  # libraries start processes, too
    assert sweep[3:7] == ["algo=ppo,dqn", "env=cartpole", "seed=0,1", "total_frames=200"]


def test_the_page_has_what_a_run_has():
    """Each of them is there, and none is left out."""
    told = set(re.findall(r"^\| `run\.(\w+)", PAGE, re.MULTILINE))
    assert told == {each for each in [*vars(runs.Run), "folder"] if each[0] != "_"}
