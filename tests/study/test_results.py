"""The table of results: what it declares, that it goes on, and that its numbers are the runs' own."""

import json
import re
import signal
import statistics

import pytest
from conftest import settings
from omegaconf import OmegaConf

from hydrl.errors import Interrupted, RunError, UserError
from hydrl.study import results
from hydrl.study.pool import Trainings
from hydrl.study.report import number
from scripts import results as script

DECLARED = OmegaConf.to_container(OmegaConf.load(script.TABLE))
QUICK = ["debug=fast", "total_frames=512", "eval.every_frames=256"]
SMALL = {
    "seeds": [100, 101],
    "fast_seeds": [100],
    "runs": [
        {
            "overrides": ["algo=dqn", "env=cartpole", *QUICK],
            "fast": True,
            "published": {"us": "9.5 ± 0.5 @ 10k"},
        },
        {"overrides": ["algo=dqn", "env=pendulum"], "published": {}},
    ],
    "sources": {"us": "Ourselves"},
    "notes": "All by hand.",
}


@pytest.mark.parametrize("row", DECLARED["runs"], ids=lambda row: " ".join(row["overrides"]))
def test_every_declared_run_is_one_that_train_py_takes_and_has_published_figures(row):
    chosen = settings(*row["overrides"])
    assert [f"algo={chosen.algo}", f"env={chosen.task}"] == row["overrides"][:2]
    assert set(row) <= {"overrides", "fast", "published"}
    assert row["published"].keys() <= DECLARED["sources"].keys()
    assert all(re.fullmatch(r"-?[\d.]+( ± [\d.]+)? @ \d+[kM]", each) for each in row["published"].values())


@pytest.mark.parametrize(("fast", "count"), [(True, 9), (False, 45)])
def test_the_declared_table_has_five_seeds_that_nothing_was_tuned_on_and_a_smaller_part(
    fast, count, tmp_path, monkeypatch
):
    seeds = DECLARED["seeds"]
    assert len(seeds) == 5
    assert min(seeds + DECLARED["fast_seeds"]) >= 100
    run = []
    monkeypatch.setattr(results, "train_all", lambda lists, *_: run.extend(lists) or 0)
    results.make(script.TABLE, fast, 1, tmp_path, tmp_path / "page.md")
    assert len(run) == count


def test_the_page_has_the_runs_own_numbers_and_goes_on_after_a_stop(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "TABLE", tmp_path / "table.yaml")
    OmegaConf.save(OmegaConf.create(SMALL), tmp_path / "table.yaml")
    page, out = tmp_path / "page.md", tmp_path / "runs"
    arguments = script.Arguments(jobs=1, out=str(out), page=str(page))
    start = Trainings.start

    def stop_after_a_row(pool, arguments, folder, shown):
        if "pendulum" in folder.name and all(each.code is not None for each in pool.started):
            raise Interrupted(signal.SIGINT)
        return start(pool, arguments, folder, shown)

    with monkeypatch.context() as patch:
        patch.setattr(Trainings, "start", stop_after_a_row)
        with pytest.raises(Interrupted):
            script.main(arguments)
    assert "stopped; the same command goes on" in capsys.readouterr().out
    first = {path: path.stat().st_mtime_ns for path in out.glob("dqn-cartpole*/summary.json")}
    assert len(first) == 2
    scores = [json.loads(path.read_text())["eval/return_mean"] for path in first]

    with pytest.raises(RunError, match="not all runs have finished"):
        script.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert "2 of 4 finished" in capsys.readouterr().out
    ours = f"**{number(statistics.mean(scores))} ± {number(statistics.stdev(scores))}**"
    text = page.read_text()
    assert f"| `algo=dqn env=cartpole {' '.join(QUICK)}` | {ours} | 9.5 ± 0.5 @ 10k |" in text
    assert "| `algo=dqn env=pendulum` | - |  |" in text
    assert "All by hand." in text
    assert "make results\n" in text
    assert (tmp_path / "curves-cartpole.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"jobs": 0}, "jobs=0"), ({"page": "docs"}, "page=docs"), ({"page": "nowhere/page.md"}, "page=nowhere")],
)
def test_what_the_script_cannot_do_is_said_before_anything_runs(arguments, message):
    with pytest.raises(UserError, match=message):
        script.main(script.Arguments(**arguments))
