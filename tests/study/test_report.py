import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib import image

from hydrl.errors import UserError
from hydrl.study import runs
from hydrl.study.report import Report
from hydrl.study.scores import (
    AGGREGATES,
    curve,
    estimate,
    gap,
    improvement,
    interval,
    iqm,
    mean,
    median,
    of_task,
    scale,
)

ROOT = Path(__file__).resolve().parents[2]


def make_run(
    folder,
    score,
    seed=0,
    *,
    algo="ppo",
    env="cartpole",
    returns=(10.0, 50.0),
    overrides=(),
    config=None,
    status="finished",
    solved_at=100.0,
    seconds=2.0,
):
    """A run folder with an evaluation every 1,000 frames, the last followed by the closing one."""
    (folder / ".hydra").mkdir(parents=True)
    frames = 1000 * (len(returns) + 1)
    solved = next((1000 * (n + 1) for n, each in enumerate(returns) if each >= solved_at), None)
    summary = {
        "algo": algo,
        "env": env,
        "seed": seed,
        "status": status,
        "frames": frames,
        "wall_seconds": frames / 1000 * seconds,
        "eval/return_mean": score,
        "solved_at_frames": solved,
        "solved_at_seconds": solved and solved / 1000 * seconds,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = ["frames,time/elapsed,train/return,eval/return_mean", f"500,{seconds / 2},0.0,"]
    rows += [f"{1000 * (n + 1)},{seconds * (n + 1)},,{each}" for n, each in enumerate(returns)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    values = {"seed": seed, "task": env, "algo": algo, "run_dir": str(folder), "optim": {"lr": 1e-3}}
    values |= {"eval": {"solved_at": solved_at}} | (config or {})
    (folder / "config_resolved.yaml").write_text(yaml.safe_dump(values))
    typed = [f"algo={algo}", f"env={env}", f"seed={seed}", *overrides]
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(typed))
    return folder


def grouped(place):
    found, left_out = runs.load([place])
    groups, repeated = runs.group(found)
    return groups, left_out | repeated


def report(*words):
    return subprocess.run(
        [sys.executable, "scripts/report.py", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_aggregates_of_known_scores():
    scores = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 9.0])
    assert iqm(scores) == pytest.approx(0.7)  # of 0.4, 0.6, 0.8 and 1.0
    assert median(scores) == pytest.approx(0.7)
    assert mean(scores) == pytest.approx(1.65)
    assert gap(scores) == pytest.approx(1 - (0.2 + 0.4 + 0.6 + 0.8 + 3) / 8)
    assert iqm(np.array([1.0, 2.0, 9.0])) == 4  # the mean, where a quarter is less than a run


def test_aggregates_over_tasks_weigh_tasks_and_not_runs():
    tasks = np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0]), np.array([0.5, 0.1])
    assert mean(*tasks) == pytest.approx((1 + 0 + 0.3) / 3)
    assert median(*tasks) == pytest.approx(0.3)


def test_the_figures_are_those_of_rliable():
    # What rliable 1.2.0 makes of these scores, of shape (runs, tasks), with pandas 2.
    tasks = list(np.random.RandomState(0).rand(6, 3).T)
    found = {name: float(statistic(*tasks)) for name, statistic in AGGREGATES.items()}
    assert found == pytest.approx(
        {"IQM": 0.580745007, "mean": 0.554607088, "median": 0.607478512, "optimality gap": 0.445392912}
    )
    assert improvement(*tasks[:2], *[each[:4] + 0.1 for each in tasks[:2]]) == pytest.approx(0.291666667)


def test_an_interval_holds_the_value_and_narrows_with_more_runs():
    draw = np.random.default_rng(0)
    few, many = draw.normal(10, 2, 20), draw.normal(10, 2, 2000)
    for sample in (few, many):
        low, high = interval(iqm, sample)
        assert low < iqm(sample) < high
    width = np.ptp(interval(mean, many))
    assert width < np.ptp(interval(mean, few)) / 5
    assert width == pytest.approx(2 * 1.96 * many.std() / 2000**0.5, rel=0.1)  # as for a normal mean


def test_the_interval_resamples_within_tasks():
    # Tasks differ a lot and their runs not at all: only drawing runs across tasks would spread.
    low, high = interval(mean, np.full(4, 1.0), np.full(3, 9.0))
    assert (low, high) == (5, 5)


def test_two_seeds_give_no_interval():
    assert interval(iqm, np.array([1.0, 2.0])) is None
    assert interval(iqm, np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0])) is None


def test_a_clearly_better_group_improves_with_certainty_and_a_tie_is_even():
    better, worse = np.array([10.0, 11.0, 12.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert estimate(improvement, better, worse) == (1, (1, 1))
    assert improvement(worse, better) == 0
    assert improvement(better, better) == 0.5
    assert improvement(better, better, worse, better) == 0.75  # one task won, one even


def test_a_curve_carries_a_shorter_run_on(tmp_path):
    make_run(tmp_path / "0", 90, 0, returns=(0, 20, 40))  # ends at 4,000 frames and 90
    make_run(tmp_path / "1", 100, 1, returns=(100,), seconds=4)  # at 2,000 and 100
    groups, _ = grouped(tmp_path)
    points, returns = curve(groups["ppo"], 0)
    assert (points[0], points[-1]) == (1000, 4000)
    assert returns[:, -1].tolist() == [90, 100]
    assert returns[1].tolist() == [100] * 100
    assert np.interp(1500, points, returns[0]) == pytest.approx(10)
    points, returns = curve(groups["ppo"], 1)
    assert (points[0], points[-1]) == (4, 8)  # from the first evaluation of the slower
    assert returns[0, 0] == 20


def test_bands_contain_the_mean_of_symmetric_seeds(tmp_path):
    for seed, value in enumerate((10.0, 20.0, 30.0, 40.0, 50.0)):
        make_run(tmp_path / str(seed), value, seed, returns=(value, value))
    groups, _ = grouped(tmp_path)
    _, returns = curve(groups["ppo"], 0)
    low, high = interval(iqm, returns)
    assert low.shape == (100,)
    assert (low < 30).all()
    assert (high > 30).all()


def test_normalised_scores_are_0_at_the_start_and_1_where_solved(tmp_path):
    make_run(tmp_path / "a", 150, solved_at=100.0)
    make_run(tmp_path / "b", 30, env="own", config={"eval": {"solved_at": None}})
    found, _ = runs.load([tmp_path])
    assert {run.env: scale([run]) for run in found} == {"cartpole": (0, 100), "own": (0, 30)}


def test_groups_are_told_apart_by_what_differs_but_the_seed(tmp_path):
    for seed in (0, 1):
        shared = {"overrides": ["total_frames=20000", "logger=wandb"][: seed + 1]}
        make_run(tmp_path / f"a{seed}", 1, seed, **shared)
        make_run(tmp_path / f"b{seed}", 1, seed, algo="dqn", **shared)
        typed = ["total_frames=20000", f"optim.lr={('3e-4', '0.0003')[seed]}"]
        make_run(tmp_path / f"c{seed}", 1, seed, overrides=typed, config={"optim": {"lr": 3e-4}})
        make_run(tmp_path / f"d{seed}", 1, seed, env="acrobot", **shared)
    groups, left_out = grouped(tmp_path)
    assert {name: sorted(run.folder.name for run in found) for name, found in groups.items()} == {
        "dqn": ["b0", "b1"],
        "ppo": ["a0", "a1", "d0", "d1"],
        "ppo optim.lr=0.0003": ["c0", "c1"],
    }
    assert not left_out


def test_configurations_decide_where_commands_do_not(tmp_path):
    make_run(tmp_path / "a", 1, 0)
    make_run(tmp_path / "b", 1, 1, overrides=["optim.lr=1e-3"])  # what it is anyway
    make_run(tmp_path / "c", 1, 2)
    groups, _ = grouped(tmp_path)
    assert list(groups) == ["ppo"]
    make_run(tmp_path / "d", 1, 3, config={"optim": {"lr": 5.0}})  # another version's default
    groups, _ = grouped(tmp_path)
    assert {name: len(found) for name, found in groups.items()} == {
        "ppo optim.lr=0.001": 3,
        "ppo optim.lr=5.0": 1,
    }


def test_a_seed_counts_once(tmp_path):
    make_run(tmp_path / "a", 1, 0)
    make_run(tmp_path / "b", 1, 0)
    groups, left_out = grouped(tmp_path)
    assert len(groups["ppo"]) == 1
    assert left_out == {tmp_path / "b": f"repeats {tmp_path / 'a'}, with the same configuration and seed"}


def test_a_run_named_twice_counts_once(tmp_path):
    make_run(tmp_path / "sweep" / "a", 1)
    assert runs.folders([tmp_path, tmp_path / "sweep" / "a"]) == [tmp_path / "sweep" / "a"]


def test_unfit_runs_are_left_out_and_say_why(tmp_path):
    make_run(tmp_path / "whole", 7)
    make_run(tmp_path / "diverged", 5, 1, status="diverged")
    make_run(tmp_path / "stopped", 5, status="interrupted")
    (make_run(tmp_path / "killed", 5) / "summary.json").unlink()
    make_run(tmp_path / "early", None, status="diverged")
    (make_run(tmp_path / "cut", 5) / "summary.json").write_text('{"algo":')
    make_run(tmp_path / "nan", float("nan"))
    (make_run(tmp_path / "gone", 5) / "metrics.csv").unlink()
    (make_run(tmp_path / "binary", 5) / "config_resolved.yaml").write_bytes(b"\xff\xfe\x00:")
    linked = make_run(tmp_path / "linked", 5)
    (linked / "metrics.csv").rename(tmp_path / "elsewhere.csv")
    (linked / "metrics.csv").symlink_to(tmp_path / "elsewhere.csv")
    old = json.loads((make_run(tmp_path / "old", 6, 2) / "summary.json").read_text())
    del old["status"]
    (tmp_path / "old" / "summary.json").write_text(json.dumps(old))
    groups, left_out = grouped(tmp_path)
    assert sorted((run.folder.name, run.score) for run in groups["ppo"]) == [
        ("diverged", 5),
        ("old", 6),
        ("whole", 7),
    ]
    reasons = {folder.name: reason for folder, reason in left_out.items()}
    assert reasons["stopped"] == "interrupted after 3,000 frames"
    assert reasons["killed"].startswith("has no summary.json")
    assert reasons["early"] == "diverged before its first evaluation"
    assert reasons["nan"] == "damaged: its closing evaluation is nan"
    assert reasons["linked"].endswith("nothing is read through it")
    assert {name for name in reasons if reasons[name].startswith("damaged")} == {
        "cut",
        "nan",
        "gone",
        "binary",
    }


def test_references_in_a_folder_are_not_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRL_TEST_TOKEN", "hush")
    make_run(tmp_path / "a", 1, 0, config={"name": "${oc.env:HYDRL_TEST_TOKEN}"})
    make_run(tmp_path / "b", 1, 1, config={"name": "other"})
    groups, _ = grouped(tmp_path)
    assert list(groups) == ['ppo name="${oc.env:HYDRL_TEST_TOKEN}"', 'ppo name="other"']


def test_the_page_holds_tables_pictures_and_commands(tmp_path):
    for seed in range(4):
        better = {"algo": "dqn", "returns": (50.0, 120.0), "overrides": ["+note='$(touch x) | `y`'"]}
        make_run(tmp_path / "runs" / f"a{seed}", 20 + seed, seed)
        make_run(tmp_path / "runs" / f"b{seed}", 110 + 10 * seed, seed, **better)
    make_run(tmp_path / "runs" / "c", 40, 0, algo="sac", env="../own")
    make_run(tmp_path / "runs" / "d", 50, 0, env="../own")
    make_run(tmp_path / "runs" / "e", 5, status="interrupted")
    out = tmp_path / "out"
    done = report(tmp_path / "runs", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert "10 runs in 3 groups, 1 left out" in done.stdout
    page = (out / "report.md").read_text()
    lines = page.splitlines()
    dqn = next(each for each in lines if each.startswith("| `dqn") and "4 of 4" in each)
    # A resample's middle two are both the worst run in 13 of 256 cases, more than 2.5%.
    assert "| 4 | 125.0 [110.0, 140.0] | 125.0 ± 12.9 | 4 of 4 | 2,000 | 4.0 |" in dqn
    assert any(re.match(r"\| `ppo` \| 4 \| 21\.5 .* \| 0 of 4 \| - \| - \|", each) for each in lines)
    assert "**Too few seeds for an interval**, 3 are needed: `ppo` on ../own (1), `sac` on ../own (1)" in page
    assert "interrupted after 3,000 frames" in page
    assert "no task was run by every group" in page
    assert any(each.endswith("| `ppo` | cartpole | 1 [1, 1] |") for each in lines)
    commands = [shlex.split(each) for each in lines if each.startswith("python train.py")]
    assert ["python", "train.py", "algo=ppo", "env=cartpole", "seed=3"] in commands
    typed = ["algo=dqn", "env=cartpole", "seed=0", "+note='$(touch x) | `y`'"]
    assert ["python", "train.py", *typed] in commands
    assert f"python scripts/report.py {tmp_path / 'runs'} out={out}" in lines
    shown = re.findall(r"\]\((\S+)\)", page)
    assert sorted(shown) == sorted(each.name for each in out.iterdir() if each.suffix in (".png", ".svg"))
    assert {"curves-cartpole.png", "improvement.svg"} <= set(shown)


def test_pictures_show_every_group_and_scores_are_over_common_tasks(tmp_path):
    for seed in range(3):
        for env in ("cartpole", "acrobot"):
            make_run(tmp_path / "runs" / f"a{env}{seed}", 20 + seed, seed, env=env)
            make_run(tmp_path / "runs" / f"b{env}{seed}", 60 + seed, seed, env=env, algo="dqn")
        make_run(tmp_path / "runs" / f"c{seed}", 60, seed, env="hopper")
    groups, left_out = grouped(tmp_path / "runs")
    (tmp_path / "out").mkdir()
    page = Report(groups, left_out, tmp_path / "out").write("command").read_text()
    assert "Over acrobot, cartpole. Other tasks were not run by every group." in page
    assert "| `ppo` | 0.21 [0.2" in page
    assert "| `dqn` | 0.61 [0.6" in page
    for name, least in (("curves-cartpole", 300), ("scores", 100), ("profile", 300)):
        pixels = (image.imread(tmp_path / "out" / f"{name}.png")[..., :3] * 255).round().astype(int)
        for colour in ((0, 114, 178), (213, 94, 0)):
            assert (abs(pixels - colour).max(axis=-1) <= 2).sum() > least, (name, colour)


def test_names_too_long_for_a_picture_are_letters_that_a_table_tells(tmp_path):
    for name, score in (("one", 50.0), ("other", 70.0)):
        make_run(tmp_path / name, score)
    groups = {
        "ppo short=1": [runs.read(tmp_path / "one")],
        "ppo " + 60 * "y": [runs.read(tmp_path / "other")],
    }
    (tmp_path / "out").mkdir()
    page = Report(groups, {}, tmp_path / "out").write("command").read_text()
    assert "| `A` | `ppo short=1` |\n| `B` | `ppo yyy" in page
    assert "| `A` | 1 | 50 |" in page
    assert "yyy" not in (tmp_path / "out" / "curves-cartpole.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no folder was given"),
        (["{tmp}/none"], "there is no such folder"),
        (["{tmp}/empty"], "no run lies there or below"),
        (["{tmp}/run", "episodes=3"], "the only key is out"),
        (["{tmp}/run", "out={tmp}/run"], "something other than a report"),
        (["{tmp}/stopped"], "none of the 1 runs there can be counted"),
    ],
)
def test_wrong_words_are_told_in_a_line(tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run", 1)
    make_run(tmp_path / "stopped", 1, status="interrupted")
    done = report(*(each.format(tmp=tmp_path) for each in words))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == sorted(
        [".hydra", "config_resolved.yaml", "metrics.csv", "summary.json"]
    )


def test_no_run_is_read_from_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="no such folder"):
        runs.folders([tmp_path / "file"])


def test_scores_are_taken_task_by_task(tmp_path):
    make_run(tmp_path / "a", 1, 0)
    make_run(tmp_path / "b", 2, 0, env="acrobot")
    groups, _ = grouped(tmp_path)
    assert of_task(groups["ppo"], "acrobot").tolist() == [2]
