"""The table of results: what it declares, that it goes on, and that its numbers are the runs' own."""

import json
import statistics
from pathlib import Path

import pytest
from conftest import settings
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.errors import RunError, UserError
from hydrl.study import results
from scripts import results as script

DECLARED = CONFIGS / "results.yaml"
QUICK = ["debug=fast", "total_frames=512", "eval.every_frames=256"]
SMALL = {
    "seeds": [100, 101],
    "fast_seeds": [100],
    "runs": [
        {"overrides": ["algo=dqn", "env=cartpole", *QUICK], "published": {"us": "9.5 ± 0.5 @ 10k"}},
        {"overrides": ["algo=ppo", "env=cartpole", *QUICK], "fast": True},
    ],
    "sources": {"us": {"name": "Ourselves", "url": "https://example.org", "protocol": "By hand."}},
}


def declare(folder: Path, **changes) -> Path:
    path = folder / "table.yaml"
    OmegaConf.save(OmegaConf.create(SMALL | changes), path)
    return path


@pytest.mark.parametrize(
    "row", results.load(DECLARED, fast=False).runs, ids=lambda row: " ".join(row.overrides)
)
def test_every_declared_run_is_one_that_train_py_takes(row):
    chosen = settings(*row.overrides)
    assert [f"algo={chosen.algo}", f"env={chosen.task}"] == row.overrides[:2]
    assert all(results.value(each) != 0 for each in row.published.values())


def test_the_declared_table_has_five_seeds_that_nothing_was_tuned_on_and_a_smaller_part():
    whole, fast = (results.load(DECLARED, fast=each) for each in (False, True))
    assert len(whole.seeds) == 5
    assert min(whole.seeds + fast.seeds) >= 100
    assert 0 < len(fast.runs) * len(fast.seeds) < len(whole.runs) * len(whole.seeds) / 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": "many"}, "seeds"),
        ({"sources": {}}, "published has us, which no entry of sources tells"),
        ({"runs": [{"overrides": [], "published": {"us": "490"}}]}, "490: write RETURN @ FRAMES"),
        ({"runs": [{"overridez": []}]}, "overridez"),
    ],
)
def test_what_is_no_table_is_refused_in_a_line(changes, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        results.load(declare(tmp_path, **changes), fast=False)
    assert "\n" not in str(error.value)


def test_the_page_has_the_runs_own_numbers_and_what_has_finished_is_not_run_again(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(script, "CONFIGS", tmp_path)
    declare(tmp_path).rename(tmp_path / "results.yaml")
    arguments = script.Arguments(jobs=2, out=str(tmp_path / "runs"), page=str(tmp_path / "page.md"))
    script.main(arguments)
    summaries = sorted((tmp_path / "runs").glob("*/summary.json"))
    made = {path.parent.name: json.loads(path.read_text()) for path in summaries}
    assert len(made) == 4
    dqn = [each["eval/return_mean"] for name, each in made.items() if name.startswith("dqn")]
    page = (tmp_path / "page.md").read_text()
    mean = f"**{results.number(statistics.mean(dqn))} ± {results.number(statistics.stdev(dqn))}**"
    assert f"| cartpole | `dqn` | {mean} | 512 | 9.5 ± 0.5 @ 10k |" in page
    assert f"| cartpole | `dqn` | {results.number(dqn[0])} | {results.number(dqn[1])} |" in page
    assert "Ourselves](https://example.org)**: By hand." in page
    assert "python train.py algo=ppo env=cartpole debug=fast" in page
    assert (tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"
    assert capsys.readouterr().out.count("finished") == 4

    written = [path.stat().st_mtime_ns for path in summaries]
    script.main(script.Arguments(fast=True, jobs=2, out=arguments.out, page=arguments.page))
    assert [path.stat().st_mtime_ns for path in summaries] == written
    page = (tmp_path / "page.md").read_text()
    assert "`make results fast=true`" in page
    assert "`dqn`" not in page


def test_a_run_that_fails_is_named_after_all_others_have_ended(tmp_path):
    runs = [{"overrides": ["algo=dqn", "env=pendulum"]}, *SMALL["runs"][1:]]
    table = results.load(declare(tmp_path, runs=runs, seeds=[100]), fast=False)
    with pytest.raises(
        RunError, match="1 of 2 runs failed, as dqn-pendulum-seed100: failed: algo=dqn acts in"
    ):
        results.run_all(table, tmp_path / "runs", jobs=1)
    assert len(list((tmp_path / "runs").glob("ppo*/summary.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"jobs": 0}, "jobs=0"), ({"page": "docs"}, "page=docs"), ({"page": "nowhere/page.md"}, "page=nowhere")],
)
def test_what_the_script_cannot_do_is_said_before_anything_runs(arguments, message):
    with pytest.raises(UserError, match=message):
        script.main(script.Arguments(**arguments))
