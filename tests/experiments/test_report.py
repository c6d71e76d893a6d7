import json
import re
import shlex
import sys
from base64 import b64decode
from html import escape

import numpy as np
import pytest
import yaml
from matplotlib import image
from matplotlib.figure import Figure

from hydrl.errors import UserError
from hydrl.experiments import figures, runs
from hydrl.experiments.statistics import (
    estimate,
    format_number,
    iqm,
    is_on_front,
    probability_of_improvement,
)
from hydrl.run.logging.html import write_page
from hydrl.run.run_folder import summary
from scripts import report


def make_run(
    folder,
    score=1.0,
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
    """A run folder with an evaluation every 1,000 frames, the last followed by the closing one.

    They come every so many ``seconds`` after the 5 that it took to start.
    """
    (folder / ".hydra").mkdir(parents=True)
    frames = 1000 * (len(returns) + 1)
    solved = next((1000 * (n + 1) for n, mean in enumerate(returns) if mean >= solved_at), None)
    summary = {"algo": algo, "env": env, "seed": seed, "status": status, "frames": frames}
    summary |= {
        "wall_seconds": 5 + frames / 1000 * seconds,
        "start_seconds": 5,
        "eval/return_mean": score,
        "eval/return_std": 0.5,
        "versions": {"hydrl": "1"},
    }
    summary |= {"solved_at_frames": solved, "solved_at_seconds": solved and 5 + solved / 1000 * seconds}
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = ["frames,time/elapsed,train/return,eval/return_mean", f"500,{5 + seconds / 2},0.0,"]
    rows += [f"{1000 * (n + 1)},{5 + seconds * (n + 1)},,{mean}" for n, mean in enumerate(returns)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    values = {"seed": seed, "task": env, "algo": algo, "run_dir": str(folder), "optim": {"lr": 1e-3}}
    values |= {"eval": {"solved_at": solved_at}} | (config or {})
    (folder / "config_resolved.yaml").write_text(yaml.safe_dump(values))
    typed = [f"algo={algo}", f"env={env}", f"seed={seed}", *overrides]
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(typed))
    return folder


def members(place):
    """The folders of each group, and why others are left out, by the folders' names."""
    counted, left_out = runs.load_runs([place])
    groups = {}
    for run in counted:
        groups[run.group] = sorted([*groups.get(run.group, []), run.folder.name])
    return groups, {folder.name: reason for folder, reason in left_out.items()}


def test_scores_by_hand():
    scores = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 9.0])
    assert iqm(scores) == pytest.approx(0.7)  # of 0.4, 0.6, 0.8 and 1.0
    assert iqm(np.array([1.0, 2.0, 9.0])) == 4  # the mean, where a quarter is less than a run
    low, high = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.5, 11.0, 12.0])
    assert probability_of_improvement(low, high) == pytest.approx(2 / 12)  # 3 and 4 beat 2.5
    assert probability_of_improvement(high, high) == 0.5


def test_scores_are_those_of_rliable():
    # What rliable 1.2.0 makes of these scores, of shape (runs, tasks), with pandas 2.
    tasks = list(np.random.RandomState(0).rand(6, 3).T)
    assert iqm(np.concatenate(tasks)) == pytest.approx(0.580745007)
    probabilities = [probability_of_improvement(task, task[:4] + 0.1) for task in tasks[:2]]
    assert sum(probabilities) / 2 == pytest.approx(0.291666667)


def test_an_interval_narrows_with_more_runs_and_resamples_within_groups():
    draw = np.random.default_rng(0)
    few, many = draw.normal(10, 2, 20), draw.normal(10, 2, 2000)
    for sample in (few, many):
        value, low, high = estimate(iqm, sample)
        assert low < value < high
    width = np.ptp(estimate(np.mean, many)[1:])
    assert width < np.ptp(estimate(np.mean, few)[1:]) / 5
    assert width == pytest.approx(2 * 1.96 * many.std() / 2000**0.5, rel=0.1)  # as for a normal mean
    # Groups differ a lot and their runs not at all: only drawing runs across groups would spread.
    assert estimate(probability_of_improvement, np.full(6, 9.0), np.full(5, 1.0)).tolist() == [1, 1, 1]
    value, *limits = estimate(iqm, np.arange(4.0))
    assert value == 1.5
    assert np.isnan(limits).all()


def test_a_curve_carries_a_shorter_run_on(tmp_path):
    longer = runs.read_run(
        make_run(tmp_path / "0", 90, 0, returns=(0, 20, 40))
    )  # ends at 4,000 frames and 90
    shorter = runs.read_run(make_run(tmp_path / "1", 100, 1, returns=(100,), seconds=4))  # at 2,000 and 100
    frames, seconds = Figure().subplots(1, 2)
    for against, axes in enumerate((frames, seconds)):
        figures.draw_curve(axes, [longer, shorter], against, "ppo", "#0072B2", "-", "o")
    middle, *seeds = (line.get_xydata() for line in frames.lines)
    assert (middle[0, 0], middle[-1, 0]) == (1000, 4000)
    assert middle[-1, 1] == 95
    assert np.interp(1500, *seeds[0].T) == pytest.approx(10)
    assert (seeds[1][:, 1] == 100).all()
    middle, *seeds = (line.get_xydata() for line in seconds.lines)
    assert (middle[0, 0], middle[-1, 0]) == (4, 8)  # from the first evaluation of the slower
    assert seeds[0][0, 1] == 20


def test_seconds_of_a_resumed_run_leave_out_what_each_session_took_to_start(tmp_path):
    """Two starts of 5 s, the second after 1,000 frames, which took 2 s; the return of 50 came 2 s later."""
    folder = make_run(tmp_path / "0", 60, returns=(10, 50), solved_at=50)
    rows = ["frames,time/elapsed,time/frames_per_second,eval/return_mean", "1000,7,500,10", "2000,14,500,50"]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"wall_seconds": 16, "start_seconds": 10, "solved_at_seconds": 14}
    (folder / "summary.json").write_text(json.dumps(summary))
    run = runs.read_run(folder)
    assert run.curve[:, 1].tolist() == [2, 4, 6]
    assert run.solved_at_seconds == 4


@pytest.mark.parametrize(("longest", "scale"), [(20, "linear"), (60, "log")])
def test_runs_of_very_unlike_lengths_share_a_logarithmic_axis(longest, scale, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(figures, "save_with_legend", lambda figure, *_: made.append(figure))
    folders = [make_run(tmp_path / "0", 1, returns=(1,) * 1, algo="dqn")]
    folders += [make_run(tmp_path / "1", 1, returns=(1,) * (longest - 1))]
    counted = [runs.read_run(folder) for folder in folders]
    figures.draw_curves(counted, figures.assign_styles(counted), tmp_path / "x.png")
    assert [axes.get_xscale() for axes in made[0].axes] == [scale] * 2


def test_a_reward_threshold_far_from_the_curves_does_not_flatten_them(tmp_path):
    thresholds = [0.0, 72.0, 74.0, -18.0]  # the curves reach from 5 to 50, and 22.5 more are allowed
    folders = [make_run(tmp_path / str(n), 5, n, solved_at=mark) for n, mark in enumerate(thresholds)]
    loaded = runs.load_runs(folders)[0]
    for shown in (True, False):
        file = tmp_path / "curves.svg"
        figures.draw_curves(loaded, figures.assign_styles(loaded), file, reward_threshold=shown)
        named = re.findall("<!-- (reward threshold .*) -->", file.read_text())
        far = ["reward threshold -18, outside the figure", "reward threshold 74, outside the figure"]
        assert sorted(named) == shown * sorted([*far, "reward threshold 0", "reward threshold 72"])
    panels = Figure().subplots(1, 2)
    for axes in panels:
        axes.plot([0, 1], [5, 50])
    figures.draw_thresholds(panels, thresholds)
    assert [axes.get_lines()[1].get_ydata()[0] for axes in panels] == [0, 0]
    assert all(axes.dataLim.y0 > -3 and axes.dataLim.y1 == 72 for axes in panels)


def test_groups_of_a_task_look_unlike_and_a_group_the_same_on_all_of_its_tasks(tmp_path):
    played = {f"algo{n}": ["hopper"] for n in range(7)} | {"ppo": ["cartpole", "hopper"], "dqn": ["cartpole"]}
    pairs = [(algo, env) for algo, envs in played.items() for env in envs]
    folders = [make_run(tmp_path / f"{algo}-{env}", 1, algo=algo, env=env) for algo, env in pairs]
    places = figures.assign_styles(runs.load_runs(folders)[0])
    assert sorted(places[f"algo{n}"] for n in range(7)) == [*range(7)]
    assert places["ppo"] == 7
    assert places["dqn"] == 0


def test_groups_are_told_apart_by_what_was_typed_but_task_and_seed(tmp_path):
    for seed in (0, 1):
        shared = {"overrides": ["total_frames=20000", "logger=wandb", "resume=auto"][: seed + 1]}
        make_run(tmp_path / f"a{seed}", 1, seed, **shared)
        make_run(tmp_path / f"b{seed}", 1, seed, algo="dqn", **shared)
        make_run(tmp_path / f"d{seed}", 1, seed, env="acrobot", **shared)
        make_run(tmp_path / f"f{seed}", 1, seed, env="X-v1", overrides=["total_frames=20000", "env.id=X-v1"])
        typed = {"overrides": ["total_frames=20000", "+env.max_episode_steps=50", "optim.lr=3e-4"]}
        make_run(tmp_path / f"c{seed}", 1, seed, **typed)
        make_run(tmp_path / f"e{seed}", 1, seed, env="acrobot", **typed)
    make_run(tmp_path / "g", 1, 1, overrides=["total_frames=20000", "log_every_frames=7"])
    runs_found, left_out = members(tmp_path)
    assert runs_found == {
        "dqn": ["b0", "b1"],
        "ppo": ["a0", "a1", "d0", "d1", "f0", "f1"],
        "ppo +env.max_episode_steps=50 optim.lr=3e-4": ["c0", "c1", "e0", "e1"],
    }
    assert left_out == {"g": f"repeats {tmp_path / 'a1'}, with the same overrides and seed"}


def test_unfit_runs_are_left_out_and_say_why(tmp_path):
    make_run(tmp_path / "good", 7)
    make_run(tmp_path / "diverged", 5, 1, status="diverged")
    make_run(tmp_path / "stopped", 5, status="interrupted")
    (make_run(tmp_path / "killed", 5) / "summary.json").unlink()
    make_run(tmp_path / "early", None, status="diverged")
    (make_run(tmp_path / "cut", 5) / "summary.json").write_text('{"algo":')
    make_run(tmp_path / "nan", float("nan"))
    (make_run(tmp_path / "binary", 5) / "config_resolved.yaml").write_bytes(b"\xff\xfe\x00:")
    runs_found, reasons = members(tmp_path)
    assert runs_found == {"ppo": ["diverged", "good"]}
    assert reasons.pop("stopped") == "interrupted after 3000 frames, without a score"
    assert reasons.pop("early") == "diverged after 3000 frames, without a score"
    for name, start in {
        "killed": "no readable summary",
        "cut": "no readable summary",
        "nan": "summary.json is damaged: ",
        "binary": "config_resolved.yaml is damaged: ",
    }.items():
        assert reasons.pop(name).startswith(start)
    assert not reasons


def test_a_folder_is_read_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HYDRL_TEST_TOKEN", "hush")
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harm")}
    make_run(tmp_path / "runs" / "a", 1, 0, config={"name": "${oc.env:HYDRL_TEST_TOKEN}", "actor": harm})
    make_run(tmp_path / "runs" / "b", 1, 1, env="../x", overrides=["+note='$(touch x) | `y`'"])
    source = {"path": "mine/a conf", "schema": "file", "provider": "command-line"}
    begun = {"hydra": {"runtime": {"cwd": "/home/me", "config_sources": [source]}}}
    (tmp_path / "runs" / "a" / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(begun))
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    page = (tmp_path / "out" / "report.md").read_text()
    assert "hush" not in page + capsys.readouterr().out
    assert not (tmp_path / "harm").exists()
    assert {path.parent for path in tmp_path.rglob("*.png")} == {tmp_path / "out"}
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("python train.py")]
    assert commands[0][2:] == ["algo=ppo", "env=../x", "seed=1", "+note='$(touch x) | `y`'"]
    assert commands[1][2:] == ["--config-dir=/home/me/mine/a conf", "algo=ppo", "env=cartpole", "seed=0"]


def test_what_is_still_being_written_is_read_as_far_as_it_goes(tmp_path):
    assert runs.read_evaluations(tmp_path).shape == (0, 3)
    assert summary(tmp_path) == {}
    (tmp_path / "metrics.csv").write_text("frames,time/elapsed,eval/return_mean\n10,1,\n20,2,5.5\n30,3,123")
    assert runs.read_evaluations(tmp_path).tolist() == [[20, 2, 5.5]]  # 123 may become 123.4


def test_the_pareto_front_by_hand():
    points = np.array([[1, 5], [3, 3], [3, 3], [2, 3], [5, 1], [5, 0.5], [0, 5.0]])
    assert is_on_front(points).tolist() == [True, True, True, False, True, False, False]
    assert is_on_front(np.array([[1, 2, 3], [1, 2, 4], [9, 0, 0]])).tolist() == [False, True, True]


def test_a_sweep_over_weights_shows_the_pareto_front(tmp_path):
    reached = {"[1,1]": (8, -1), "[1,10]": (1, -0.5), "[1,0.1]": (20, -14), "[2,2]": (7, -2)}
    for weights, objectives in reached.items():
        for seed in range(2):
            folder = tmp_path / "runs" / f"{weights}{seed}"
            make_run(folder, 1, seed, overrides=[f"env.weights={weights}"])
            entries = {"eval/objective_0": objectives[0] + 2 * seed, "eval/objective_1": objectives[1]}
            result = summary(folder) | entries
            (folder / "summary.json").write_text(json.dumps(result))
    out = tmp_path / "out"
    report.main([str(tmp_path / "runs"), f"out={out}"])
    page = (out / "report.md").read_text()
    assert "| group | objective_0 | objective_1 | on the Pareto front |" in page
    assert "| `ppo env.weights=[1,1]` | 9 | -1 | yes |" in page
    assert "| `ppo env.weights=[2,2]` | 8 | -2 | no |" in page
    assert page.count("| yes |") == 3
    svg = (out / "front-cartpole.svg").read_text()
    labels = re.findall("<!-- (.*) -->", svg)
    assert {"objective_0", "objective_1", "front of these groups", "ppo env.weights=[1,10]"} <= {*labels}
    assert "front-cartpole.png" in page
    assert (out / "front-cartpole.pdf").read_bytes()[:4] == b"%PDF"


def test_a_report_without_objectives_has_no_front(tmp_path):
    for name, objectives in {"a": {}, "b": {"eval/objective_0": 1.0}}.items():
        folder = make_run(tmp_path / "runs" / name, seed=ord(name))
        (folder / "summary.json").write_text(json.dumps(summary(folder) | objectives))
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    assert "Pareto" not in (tmp_path / "out" / "report.md").read_text()


def test_groups_that_ran_for_different_frames_are_compared_with_both(tmp_path):
    for seed in range(5):
        make_run(tmp_path / f"a{seed}", 20, seed)
        make_run(tmp_path / f"b{seed}", 30, seed, algo="dqn", returns=(10.0,) * 8)
    report.main([str(tmp_path), f"out={tmp_path / 'out'}"])
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| group | scores higher than | probability | 95% interval | frames |" in page
    assert "| `dqn` | `ppo` | 1 | 1 to 1 | 9,000 and 3,000 |" in page


def test_the_report_of_runs_that_a_hand_can_check(tmp_path, capsys):
    for seed in range(5):
        for env in ("cartpole", "acrobot"):
            make_run(tmp_path / "runs" / f"a{env}{seed}", 20 + seed, seed, env=env)
            better = {"algo": "dqn", "returns": (50.0, 120.0), "env": env}
            make_run(tmp_path / "runs" / f"b{env}{seed}", 110 + 10 * seed, seed, **better)
    make_run(tmp_path / "runs" / "c", 5, 0, env="hopper", status="diverged")
    make_run(tmp_path / "runs" / "d", 5, status="interrupted")
    out = tmp_path / "out"
    report.main([str(tmp_path / "runs"), f"out={out}"])
    assert f"{out / 'report.md'}: 21 runs in 2 groups, 1 skipped" in capsys.readouterr().out
    page = (out / "report.md").read_text()
    # 2.5% and 97.5% of all 3,125 resamples: 113.3 and 146.7, in steps of 3.3.
    row = "| `dqn` | 5 | 130.0 ± 15.8 | 110.0 to 150.0 | 130.0 | 116.7 to 146.7 | 3,000 | 5 of 5 |"
    assert page.count(f"{row} 2,000 | 4 |") == 2
    assert re.search(r"\| `ppo` \| 5 \| 22 .* \| 0 of 5 \| - \| - \|", page)
    assert "| `ppo` | 1 | 5 | 5 to 5 | 3,000 | 0 of 1 | - | - |" in page  # no interval, and no column for one
    assert "**Too few seeds for an interval**, 5 are needed:\n\n- `ppo` on hopper (1)\n" in page
    assert f"last evaluation: `{tmp_path / 'runs' / 'c'}`." in page
    assert f"| `{tmp_path / 'runs' / 'd'}` | `interrupted after 3000 frames, without a score` |" in page
    assert page.count("| `dqn` | `ppo` | 1 | 1 to 1 | 3,000 |") == 2
    assert f"python scripts/report.py {tmp_path / 'runs'} out={out}\n" in page
    shown = re.findall(r"\]\((\S+)\)", page)
    left = {path.name for path in out.iterdir()} - set(shown)
    assert left == {"report.md", "report.html"}
    browsed = (out / "report.html").read_text()
    (inside, *others) = re.findall(r'src="data:image/png;base64,(\S+)"', browsed)
    assert b64decode(inside) == (out / "curves-acrobot.png").read_bytes()
    assert len(others) == 2
    assert "<td><code>dqn</code></td>\n<td>5</td>\n<td>130.0 ± 15.8</td>" in browsed
    assert len(shown) == 9 + 1  # three formats, and the paper
    assert (out / "curves-cartpole.pdf").read_bytes()[:4] == b"%PDF"
    pixels = (image.imread(out / "curves-cartpole.png")[..., :3] * 255).round().astype(int)
    for colour in ((0, 114, 178), (213, 94, 0)):
        assert (abs(pixels - colour).max(axis=-1) <= 2).sum() > 300


@pytest.mark.parametrize(
    "name",
    ["![x](nope.png)", "![x](../other.png)", "![t](http://a.b/c.png)", "<img src=x.png>", "a\n```\n# b"],
)
def test_names_of_others_are_text_in_a_report(tmp_path, name):
    (tmp_path / "other.png").write_bytes(b"secret")
    make_run(tmp_path / "runs" / "a", 5, env=name, overrides=[f"x={name}"])
    report.main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}", f"title={name}"])
    browsed = (tmp_path / "out" / "report.html").read_text()
    assert re.findall('<img src="([^;]*)', browsed) == ["data:image/png"]  # the curves alone
    shown = escape(" ".join(name.split()))
    assert f"<h1>{shown}</h1>" in browsed
    assert f"<h2>{shown}</h2>" in browsed
    assert f"<title>{shown}</title>" in browsed
    assert browsed.count("<h1>") == 1
    assert browsed.count("<pre>") == 1


def test_a_page_holds_no_picture_from_outside_its_folder(tmp_path):
    (tmp_path / "page").mkdir()
    for place in ("other.png", "page/own.png"):
        (tmp_path / place).write_bytes(place.encode())
    (tmp_path / "page" / "link.png").symlink_to(tmp_path / "other.png")
    pictures = [
        "own.png",
        "../other.png",
        "nope.png",
        "link.png",
        "http://a.b/c.png",
        str(tmp_path / "other.png"),
    ]
    text = "\n\n".join(["# T", *(f"![picture {n}]({picture})" for n, picture in enumerate(pictures))])
    write_page(text, tmp_path / "page" / "page.html")
    browsed = (tmp_path / "page" / "page.html").read_text()
    (inside,) = re.findall(r'<img src="data:image/png;base64,(\S+)" alt="picture 0" />', browsed)
    assert b64decode(inside) == b"page/own.png"
    assert browsed.count("<img") == 1
    assert all(f"<p>picture {n}</p>" in browsed for n in range(1, len(pictures)))


@pytest.mark.parametrize(
    ("value", "shown"), [(1234.56, "1,234.6"), (-100, "-100.0"), (99.96, "100"), (0.01234, "0.0123")]
)
def test_numbers_have_about_three_digits(value, shown):
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no folder. Name folders"),
        (["{tmp}/none"], "no such folder"),
        (["{tmp}/empty"], "/empty: no run folder, at any depth"),
        (
            ["{tmp}/run", "titles=x"],
            "titles=x: no such folder .* Keys: out, title, seconds, reward_threshold, published",
        ),
        (["{tmp}/run", "{tmp}/lr=1"], "lr=1: no such folder. Name folders of runs"),
        (["{tmp}/run", "seconds=maybe"], "seconds=maybe: .*not a valid bool"),
        (
            ["{tmp}/run", "published=sac"],
            "published=sac: no such published returns for CartPole. Methods: A2C, ",
        ),
        (["{tmp}/run", "published=no.csv"], "published=no.csv: cannot be read"),
        (["{tmp}/run", "out={tmp}/run"], "exists and is no report"),
        (["{tmp}/run", "out={tmp}/run/summary.json/x"], "cannot be written: Not a directory"),
        (["{tmp}/stopped"], r"no finished run there: .*/stopped: interrupted"),
    ],
)
def test_wrong_words_are_told_in_a_line(tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run", config={"env": {"id": "CartPole-v1"}})
    make_run(tmp_path / "stopped", status="interrupted")
    with pytest.raises(UserError, match=message) as error:
        report.main([word.format(tmp=tmp_path) for word in words])
    assert "\n" not in str(error.value)
    assert len(list((tmp_path / "run").iterdir())) == 4


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    for name in ("statistics", "figures", "report"):
        monkeypatch.delitem(sys.modules, f"hydrl.experiments.{name}", raising=False)
    monkeypatch.delattr("hydrl.experiments.report", raising=False)
    with pytest.raises(UserError, match=r"pip install 'hydrl\[report\]'"):
        report.main(["outputs"])


def test_a_folder_without_a_run_costs_the_others_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run")
    report.main([str(tmp_path / "empty"), str(tmp_path / "run"), f"out={tmp_path / 'report'}"])
    assert "1 of 1 runs count, made with hydrl 1." in (tmp_path / "report" / "report.md").read_text()


def test_a_report_without_seconds_with_a_title_from_a_folder_named_like_a_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "title=mine" / "run")
    report.main(["title=mine", "title=How it, went: 1", "seconds=false", "out=made"])
    page = (tmp_path / "made" / "report.md").read_text()
    assert page.startswith("# How it, went: 1\n")
    assert "seconds" not in page.lower().partition("## commands")[0]
    assert "title=mine 'title=How it, went: 1' seconds=false out=made\n" in page
    assert "training time" not in (tmp_path / "made" / "curves-cartpole.svg").read_text()
