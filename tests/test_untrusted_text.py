"""Names that others gave, in run folders and data files: text on the screen and in pages, never markup."""

import re
import shutil
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from rich.console import Console

from hydrl.api import runs as python_runs
from hydrl.config.command_line import print_error
from hydrl.datasets import summary as overview
from hydrl.errors import printable, warn_once
from hydrl.experiments import report as pages
from hydrl.experiments import runs, sweep
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.logging import console
from hydrl.run.logging.run_page import write_run_page
from scripts import evaluate, report
from tests.experiments.test_report import make_run

NAMES = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\r\x1b[2Kgone",
    "[bold]strong[/bold]",
    "[/]",
    "[link=http://a.b]here[/link]",
    "![x](http://a.b/c.png)",
    "<img src=http://a.b/c.png>",
    "`a`|b",
    "\u202eright to left",
    "\ud800",
]
SUMMARY = {"seed": 0, "status": "finished", "frames": 64, "eval/return_mean": 1.0, "eval/episodes": 1}
MOVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")  # a terminal, or a reader


def closing_table(name: str, place: Path) -> None:
    console.print_summary(SUMMARY | {"algo": name, "env": name, f"eval/{name}": 1.0}, place / "run", name)


def progress_bar(name: str, place: Path) -> None:
    bar = console.Display(name, 100)
    bar.update(50, {"train/return": 1.0, "eval/return_mean": 1.0, "eval/return_std": 0.0})
    bar.close()
    Console(file=sys.stdout, width=200).print(bar.progress.get_renderable())


def scores(name: str, place: Path) -> None:
    told = dict.fromkeys(["return_mean", "return_std", "return_min", "return_max", "length_mean"], 1.0)
    told |= dict.fromkeys(["length_min", "length_max", "episodes", "cut_episodes"], 1)
    made = {f"eval/{key}": value for key, value in told.items()}
    made |= {"info": {name: [1.0]}, "untrained": [name], "frames": 1, f"eval/{name}": 1.0}
    evaluate.show(made | {"run": name, "video": {"return": 1.0, "length": 1, "cut": 0, "file": name}}, name)


def data_set(name: str, place: Path) -> None:
    made = {"rewards": np.ones(4), "terminals": np.zeros(4, bool), "timeouts": np.ones(4, bool)}
    made |= {f"observations/{name}": np.ones((4, 2)), "actions": np.ones((4, 1))}
    overview.print_summary(Path(name), "npz", made, np.ones(4), np.ones(4), name)


def sweep_table(name: str, place: Path) -> None:
    failed = SimpleNamespace(folder=place, status="failed", error=name, code=1)
    sweep.print_table(f"{name}\n{name}", [(0, name, failed)])


def passed_over(name: str, place: Path) -> None:
    folder = place / printable(name).replace("/", "_")
    (folder / "checkpoints").mkdir(parents=True)
    archive = folder / "checkpoints" / "checkpoint-000000000001.torchrl"
    archive.write_text(name.encode("utf-8", "replace").decode())
    assert not [*checkpoint.readable([archive])]
    print_error(name)
    warn_once(f"{name} {place}")
    console.say(name)


def of_a_notebook(name: str, place: Path) -> None:
    (place / "config_resolved.yaml").write_text("{}")
    made = python_runs.Run(place)
    summary = SUMMARY | {"algo": name, "env": name, "eval/return_std": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_runs, "summary", lambda folder: summary)
        print(repr(made))
        shown = made._repr_html_()
    assert "<img" not in shown
    assert shown.count("<h4>") == 1


WRITERS = {
    each.__name__: each
    for each in (
        closing_table, progress_bar, scores, data_set, sweep_table, passed_over, of_a_notebook
    )
}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_a_name_moves_nothing_on_the_screen(writer, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for number, name in enumerate(NAMES):
        place = tmp_path / str(number)
        place.mkdir()
        WRITERS[writer](name, place)
        shown = "".join(capsys.readouterr())
        assert not MOVES.search(shown), (name, shown)
        word = re.split(r"\s+", printable(name))[0].replace("\ud800", "?")
        assert word in " ".join(shown.split()), (name, shown)  # whole, as no part of it was markup


def test_a_name_is_no_markup_in_a_report(tmp_path, capsys):
    names = [name for name in NAMES if name.isascii()]
    for seed, name in enumerate([" ".join(names[:4]), " ".join(names[4:])]):
        made = make_run(tmp_path / "runs" / str(seed), 1, seed, env=name, algo=name, overrides=[f"+x={name}"])
        file = made / "summary.json"
        file.write_text(file.read_text().replace('"hydrl"', '"a![x](b.png)"'))
        make_run(tmp_path / "runs" / f"left out {seed}", 1, 9, status=name)
    evil = make_run(tmp_path / "runs" / "x\nrm -rf outputs\n", 2, 99)
    own = {"path": "a\x1b[31m", "schema": "file", "provider": "command-line"}
    begun = {"hydra": {"runtime": {"cwd": "/home/me", "config_sources": [own]}}}
    (evil / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(begun))
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    out, shown = tmp_path / "out", capsys.readouterr().out
    markdown, browsed = ((out / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert not MOVES.search(markdown + browsed + shown)
    assert len(re.findall("^skipped /", shown, re.MULTILINE)) == 2
    assert browsed.count("<img") == browsed.count('src="data:image/png') == 3  # the curves
    assert "<a " not in re.sub(r'<a href="(curves-[^"]*\.(svg|pdf)|https://arxiv\.org/[^"]*)">', "", browsed)
    titles = " ".join(unescape(each) for each in re.findall("<h2>(.*)</h2>", browsed))
    assert all(" ".join(printable(" ".join(name.split())).split()) in titles for name in names)
    assert "\nrm -rf" not in markdown
    pictures = sorted(out.glob("*.svg"))
    assert len(pictures) == 3
    for each in pictures:
        ElementTree.parse(each)  # which a character that moves a terminal would be no part of


def test_two_tasks_have_two_pictures(tmp_path, monkeypatch):
    def draw(members, places, *files, **_):
        for file in files:
            assert not file.exists()
            file.write_text(members[0].env)

    monkeypatch.setattr(pages.figures, "draw_curves", draw)
    names = ["a/b", "a_b", "A b", "x" * 300, "x" * 299]
    for seed, name in enumerate(names):
        make_run(tmp_path / "runs" / str(seed), seed, 0, env=name)
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    shown = re.findall(r"!\[.*?\]\((\S+)\)", (tmp_path / "out" / "report.md").read_text())
    assert len({each.lower() for each in shown}) == len(names)
    assert all((tmp_path / "out" / each).is_file() for each in shown)
    assert pages.figure_names(["CartPole-v1"]) == ["CartPole-v1"]


PUBLISHED = "task,version,method,frames,return,std,seeds,source,protocol,note\n"


def test_what_others_published_is_no_markup(tmp_path):
    make_run(tmp_path / "runs" / "a", env="t")
    link = "https://a.b/c)![x](http://a.b/d.png)|<img>"
    words = "![x](http://a.b/c.png) `|` <b>"
    rows = [f't,,"{words}",1000,1.0,,,"{link}","{words}","{words}"', f't,,m,1000,1.0,,,"{words}",p,']
    (tmp_path / "mine.csv").write_text(PUBLISHED + "\n".join(rows) + "\n")
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}", f"published={tmp_path / 'mine.csv'}"])
    browsed = (tmp_path / "out" / "report.html").read_text()
    assert browsed.count("<img") == 1
    assert "<b>" not in browsed
    links = re.findall('<a href="([^"]*)"', browsed)
    (source,) = [link for link in links if not link.endswith((".svg", ".pdf", "2108.13264"))]
    assert source == "https://a.b/c%29!%5Bx%5D%28http://a.b/d.png%29%7C%3Cimg%3E"
    table = browsed.rpartition("<table>")[2].partition("</table>")[0]
    assert len({row.count("<td>") for row in table.split("<tr>")[2:]}) == 1  # no cell is split


def test_a_run_s_page_holds_its_names_as_text(tmp_path):
    for name in ("![x](http://a.b/c.png)", "<img src=x>", "`|` \x1b[31m"):
        write_run_page(tmp_path, name, {}, {name: name}, {name: name})
        page = (tmp_path / "run.html").read_text()
        assert "<img" not in page
        assert "<a " not in page
        assert page.count("<pre>") == 1
        assert page.count("<td>") == 4
        assert not MOVES.search(page)


def test_one_bad_folder_is_left_out_of_a_report_with_a_line(tmp_path, capsys):
    good = make_run(tmp_path / "runs" / "good")
    for number, damage in enumerate(["summary.json", "config_resolved.yaml", ".hydra/overrides.yaml"]):
        bad = shutil.copytree(good, tmp_path / "runs" / f"bad{number}")
        (bad / damage).write_bytes(b"\xff\xfe\x00:")
    huge = make_run(tmp_path / "runs" / "huge", 1, 1)
    (huge / ".hydra" / "hydra.yaml").write_bytes(b"\xff\xfe")
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    shown = capsys.readouterr().out
    assert shown.count("skipped ") == 3
    assert "2 runs in 1 group, 3 skipped" in shown
    assert len(runs.load_runs([tmp_path / "runs"])[0]) == 2
