"""Searches: what they draw from, what they refuse, and small ones that really run."""

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import psutil
import pytest
from matplotlib import image
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState

from hydrl.config import CONFIGS
from hydrl.config.settings import make_builder
from hydrl.config.tree import find
from hydrl.errors import RunError, UserError
from hydrl.experiments import processes, search, search_space, search_storage
from scripts import search as script
from tests.conftest import HANGING, composed, settings, typed

optuna.logging.set_verbosity(optuna.logging.WARNING)
SCRIPT = "scripts/search.py"
TASKS = {"ppo": "cartpole", "dqn": "cartpole", "sac": "pendulum"}
TINY = ["algo=dqn", "env=cartpole", "total_frames=512", "eval.every_frames=256", "eval.episodes=2"]
TINY += ["eval.final_episodes=2", "minibatches.warmup_frames=128", "actor.num_cells=[16]"]
ALONE = [*TINY, "search=base", "seeds=0,1", "trials=2", "jobs=1"]  # with a range that a test adds


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_space, "compose_run", lambda words: composed(*words))


@pytest.mark.parametrize(
    ("word", "present", "expected"),
    [
        ("optim.lr=interval(0,1)", 3e-4, FloatDistribution(0.0, 1.0)),
        ("optim.lr=tag(log,interval(1e-4,1e-2))", 3e-4, FloatDistribution(1e-4, 1e-2, log=True)),
        ("minibatches.epochs=tag(log,interval(4,20))", 10, IntDistribution(4, 20, log=True)),
        ("+env.n=int(interval(4,20))", None, IntDistribution(4, 20)),
        ("minibatches.epochs=range(4,20,8)", 10, CategoricalDistribution([4, 12])),  # as in a sweep
        ("minibatches.size=64,128", 64, CategoricalDistribution([64, 128])),
        ("minibatches.size=64,128,64", 64, CategoricalDistribution([64, 128])),  # the present one, once more
        ("optim.fused=choice(true,false)", True, CategoricalDistribution([True, False])),
        ("actor.num_cells=choice([64,64],[256])", [64], CategoricalDistribution(["[64,64]", "[256]"])),
    ],
)
def test_each_form_of_a_range(word: str, present: Any, expected: Any):
    (override,) = search_space.parse_overrides([word]).values()
    assert search_space.distribution(override, present) == expected


@pytest.mark.parametrize("algo", TASKS)
def test_both_ends_of_every_range_of_the_search_files_can_be_trained(algo: str):
    assert {file.stem for file in (CONFIGS / "search").glob("*.yaml")} == {"base", *TASKS}
    plan = search_space.read_plan([f"algo={algo}", f"env={TASKS[algo]}"])
    assert plan.out == f"outputs/searches/{algo}-{TASKS[algo]}"
    assert (plan.seeds, plan.jobs) == ([0, 1, 2], 2)
    assert len(plan.space) >= 6
    for key, space in plan.space.items():
        discrete = isinstance(space, CategoricalDistribution)
        for value in space.choices if discrete else (space.low, space.high):
            taken = find(settings(*plan.overrides, f"{key}={value}").model_dump(), key)
            assert (taken, type(taken)) == (value, type(value))


OF_ANY = {"dm_control": "cartpole-swingup", "minatar": "MinAtar/Breakout-v1", "atari": "ALE/Pong-v5"}
OF_ANY["minigrid"] = "MiniGrid-DoorKey-5x5-v0"
OF_ANY["self_play"] = "classic/tictactoe_v3"
OF_ANY["open_spiel"] = "kuhn_poker"
OF_ANY |= {"brax": "inverted_pendulum", "jumanji": "Snake-v1"}
NOW = sorted(
    (file.parent.name, f"{file.stem} env.id={OF_ANY[file.stem]}" if file.stem in OF_ANY else file.stem)
    for algo in TASKS
    for file in (CONFIGS / "tuned" / algo).glob("*.yaml")
)
NOW += [(algo, f"{env} tuned=none") for algo, env in TASKS.items()]
NOW += [("ppo", "mountain_car_continuous tuned=none")]  # whose discount is none that somebody wrote down


@pytest.mark.parametrize(("algo", "env"), NOW)
def test_a_search_begins_with_the_present_numbers_of_every_task(algo: str, env: str):
    plan = search_space.read_plan([f"algo={algo}", *f"env={env}".split()])
    values = plan.settings.model_dump()
    assert {key: search.as_choice(space, find(values, key)) for key, space in plan.space.items()} == {
        key: find(values, key) for key in plan.space
    }


@pytest.mark.parametrize(
    ("word", "value", "taken"),
    [
        ("optim.lr=tag(log,interval(1e-4,1e-2))", 0.0, None),
        ("optim.lr=tag(log,interval(1e-4,1e-2))", 1e-4, 1e-4),
        ("optim.lr=interval(1e-4,1e-2)", 2e-2, None),
        ("optim.lr=interval(0.0,2.0)", True, None),
        ("optim.lr=interval(0.0,2.0)", None, None),
        ("minibatches.size=64,128", 256, None),
        ("optim.fused=choice(true,false)", False, False),
        ("actor.num_cells=choice([64,64],[256])", [64, 64], "[64,64]"),
    ],
)
def test_a_value_is_drawn_as_it_is_or_not_at_all(word: str, value: Any, taken: Any):
    (override,) = search_space.parse_overrides([word]).values()
    assert search.as_choice(search_space.distribution(override, value), value) == taken


def test_the_command_line_changes_adds_fixes_and_leaves_out():
    words = ["optim.lr=interval(1e-3,2e-3)", "loss.value_estimator.gamma=0.9", "~transforms.double_to_float"]
    words += ["optim.eps=choice(1e-8,1e-5)", "seeds=4,5", "trials=7", "jobs=1", "out=here"]
    plan = search_space.read_plan(["algo=dqn", "env=cartpole", *words])
    assert plan.space["optim.lr"] == FloatDistribution(1e-3, 2e-3)
    assert plan.space["optim.eps"] == CategoricalDistribution([1e-8, 1e-5])
    assert "loss.value_estimator.gamma" not in plan.space
    ours = ["loss.value_estimator.gamma=0.9", "~transforms.double_to_float"]
    assert plan.overrides == ["algo=dqn", "env=cartpole", *ours]
    message = plan
    assert (message.seeds, message.trials, message.jobs, message.out) == ([4, 5], 7, 1, "here")
    assert search_space.read_plan(["algo=dqn", "env=cartpole", "seeds=3"]).seeds == [3]
    without = search_space.read_plan(
        ["algo=a2c", "env=cartpole", "search=base", "optim.lr=interval(1e-3,2e-3)"]
    )
    assert without.space == {"optim.lr": FloatDistribution(1e-3, 2e-3)}


def test_a_search_draws_keys_of_the_parts_that_tuned_numbers_choose():
    words = ["algo=ddpg", "env=mountain_car_continuous", "search=base", "exploration.sigma=interval(0.1,0.9)"]
    plan = search_space.read_plan(words)
    assert plan.settings.exploration["sigma"] == 0.5
    assert plan.overrides == words[:2]
    assert plan.space == {"exploration.sigma": FloatDistribution(0.1, 0.9)}


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("trial=4", "trial=4: no such key. Write trials=4"),
        ("trials=many", "search.trials=many: should be an integer"),
        ("jobs=0", "search.jobs=0: should be greater than 0"),
        ("seeds=0.5", "seeds="),
        ("search=dqm", "search=dqm: no such option. Try dqn, base, ppo, sac"),
        ("algo=dqm", "=dqm: no such option"),
        ("seed=3", "seed: the search sets it. Use search, trials, seeds"),
        ("hydra.run.dir=x", "hydra.run.dir: the search sets it"),
        ("optim.lrr=1", r"optim.lrr=1: no such key. Write optim.lr=1."),
        ("optim.lr=interval(1,0)", "optim.lr=interval"),
        ("optim.lr=tag(log,interval(0,1))", "optim.lr=tag"),
        ("optim.lr=interval(1", r"optim.lr=interval\(1: this cannot be read"),
        ("search=base", "search: no ranges. Add one"),
        ("out=", "out=: no folder. Write out=DIR"),
        ("--config-dir=nosuch", "nosuch: no such folder. Name one that holds groups such as actor/"),
        ("search=ppo", r"search.space.loss.module.clip_epsilon: Interpolation key .* not found"),
        (
            "algo=a2c",
            "no ranges for algo=a2c\\. Add search=base and .*or write conf/search/a2c.yaml",
        ),
    ],
)
def test_what_a_search_refuses_is_a_line(word: str, answer: str):
    with pytest.raises(UserError, match=answer) as error:
        search_space.read_plan(["algo=dqn", "env=cartpole", word])
    assert "\n" not in str(error.value)


class Run:
    """Takes the place of a process: it has written its curve and ended with its code."""

    error = "it was killed"

    def __init__(self, outcome: tuple[dict[int, float], float, int], folder: Path) -> None:
        curve, score, self.code = outcome
        self.folder, self.log = folder, folder.with_suffix(".log")
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        # A row without an evaluation, and one that is being written.
        rows = [f"{frames},{value},1,{value / 100}" for frames, value in curve.items()]
        text = "\n".join(["frames,eval/return_mean,time/elapsed,eval/is_success", *rows, "400,,1", "512,9"])
        (folder / "metrics.csv").write_text(text)
        (folder / "summary.json").write_text(
            json.dumps({"eval/return_mean": score, "eval/is_success": score / 100})
        )

    def stop(self) -> None:
        pass


def searched(
    monkeypatch: pytest.MonkeyPatch, out: Path, *words: str, outcome: Any
) -> tuple[optuna.Study, list[str], list[str]]:
    """The study of a search whose runs only write files, its runs and what it said."""
    started, lines = [], []

    def start(arguments: list[str], folder: Path, cores: int, shown: bool) -> Run:
        trial, seed = int(folder.parent.name[-4:]), int(folder.name.removeprefix("seed"))
        started.append(f"{trial}/{seed}")
        return Run(outcome(trial, seed), folder)

    monkeypatch.setattr(processes, "TrainingProcess", start)
    plan = search_space.read_plan([*ALONE, f"out={out}", "optim.lr=interval(1e-3,9e-3)", *words])
    with closing(search.Search(plan, lines.append)) as built:
        built.run()
    return built.study, started, lines


def test_running_means_over_seeds_decide_which_trial_is_cut_short(monkeypatch, tmp_path):
    level = {0: 40.0, 1: 60.0, 2: 49.0, 3: 51.0}
    pruner = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 2, "n_warmup_steps": 1}
    read = lambda trial, seed: ({256 + 44 * seed: level[trial]}, 100.0, 0)  # noqa: E731
    monkeypatch.setattr(
        search, "make_builder", lambda part: make_builder(pruner if "Pruner" in str(part) else part)
    )
    study, started, lines = searched(monkeypatch, tmp_path, "trials=4", outcome=read)
    # The second seed's evaluation is averaged with the first seed's score, whatever its frames.
    assert study.trials[0].intermediate_values == {1: 40.0, 3: 70.0}
    assert study.trials[2].intermediate_values == {1: 49.0}  # the median is 50
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]
    assert started == ["0/0", "0/1", "1/0", "1/1", "2/0", "3/0", "3/1"]
    assert study.trials[0].params == {"optim.lr": 2e-3}  # the present number
    assert lines[0] == "#0  100.0  lr=0.002"
    assert lines[2].startswith("#2  49.0, pruned  lr=0.00")
    # Only the best trial can be gone on with.
    assert {path.parts[-3] for path in tmp_path.glob("*/*/checkpoints")} == {"trial-0000"}


def test_a_search_takes_what_it_is_told_to_maximise(monkeypatch, tmp_path):
    read = lambda trial, seed: ({256: 40.0}, 50.0 + 10 * trial, 0)  # noqa: E731
    words = ["trials=2", "maximise=eval/is_success"]
    study, _, lines = searched(monkeypatch, tmp_path / "one", *words, outcome=read)
    assert [trial.value for trial in study.trials] == [0.5, 0.6]
    assert study.trials[0].intermediate_values == {1: 0.4, 3: pytest.approx(0.45)}
    assert lines[0] == "#0  0.5  lr=0.002"
    with pytest.raises(
        UserError, match="another search, with maximise=eval/is_success where this one has no"
    ):
        searched(monkeypatch, tmp_path / "one", "trials=2", outcome=read)
    with pytest.raises(UserError, match=r"has no such metric\. Use one of eval/return_mean, eval/is_success"):
        searched(monkeypatch, tmp_path / "other", "trials=1", "maximise=eval/speed", outcome=read)


def test_failures_are_made_up_for_three_in_a_row_end_it_and_a_mistake_at_once(monkeypatch, tmp_path):
    codes = {0: 0, 1: -9, 2: 0, 3: 3}
    read = lambda trial, seed: ({}, 5.0, codes[trial])  # noqa: E731
    study, _, lines = searched(monkeypatch, tmp_path / "a", "trials=3", outcome=read)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "PRUNED"]
    assert lines[1].startswith(f"#1  failed: it was killed; see {tmp_path / 'a'}/trial-0001/seed0.log")
    assert lines[3].startswith("#3  diverged")
    with pytest.raises(RunError, match="3 trials in a row failed"):
        searched(monkeypatch, tmp_path / "b", outcome=lambda trial, seed: ({}, 5.0, -9))
    with pytest.raises(UserError, match="it was killed"):
        searched(monkeypatch, tmp_path / "c", "jobs=2", outcome=lambda trial, seed: ({}, 5.0, 2))


def test_the_present_numbers_are_tried_again_where_they_failed_and_told_where_they_cannot_be(
    monkeypatch, tmp_path
):
    code = {0: -9, 1: 0, 2: 0}
    read = lambda trial, seed: ({}, 5.0, code[trial])  # noqa: E731
    study, *_ = searched(monkeypatch, tmp_path, "trials=1", outcome=read)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    assert study.trials[0].params == {"optim.lr": 2e-3}
    assert study.trials[1].params != {"optim.lr": 2e-3}
    study, started, lines = searched(monkeypatch, tmp_path, "trials=2", outcome=read)
    assert started == ["2/0", "2/1"]
    assert study.trials[2].params == {"optim.lr": 2e-3}
    assert lines == ["#2  5.0  lr=0.002"]
    assert len(searched(monkeypatch, tmp_path, "trials=2", outcome=read)[0].trials) == 3  # nothing waits
    _, _, lines = searched(
        monkeypatch,
        tmp_path / "b",
        "trials=1",
        "optim.eps=interval(1e-6,1e-5)",
        outcome=lambda *_: ({}, 5.0, 0),
    )
    outside = "1e-08 is outside optim.eps=interval(1e-6,1e-5)"
    assert lines[0] == f"the first trial samples optim.eps: {outside}"
    assert lines[1].startswith("#0  5.0  lr=0.002 eps=")


def test_a_number_of_many_digits_is_tried_as_it_is(monkeypatch, tmp_path):
    read = lambda trial, seed: ({}, 5.0, 0)  # noqa: E731
    experiment = "loss.value_estimator.gamma=interval(0.9,0.9999)"
    monkeypatch.setattr(
        search, "find", lambda values, key: 0.994994 if key.endswith("gamma") else find(values, key)
    )
    _, _, lines = searched(monkeypatch, tmp_path, "trials=1", experiment, outcome=read)
    assert lines == ["#0  5.0  lr=0.002 gamma=0.994994"]


def test_a_search_that_is_refused_leaves_nothing(monkeypatch, tmp_path):
    out = tmp_path / "new" / "er"
    with pytest.raises(UserError, match="it was killed"):
        searched(monkeypatch, out, outcome=lambda trial, seed: ({}, 5.0, 2))
    assert list(tmp_path.iterdir()) == []
    code = {0: 0, 1: 2}
    with pytest.raises(UserError, match="it was killed"):
        searched(monkeypatch, out, outcome=lambda trial, seed: ({}, 5.0, code[trial]))
    assert (out / "study.db").is_file()  # a whole trial is there


def test_a_finished_search_runs_nothing_and_another_one_has_no_place_there(monkeypatch, tmp_path):
    read = lambda trial, seed: ({}, 5.0, 0)  # noqa: E731
    searched(monkeypatch, tmp_path, outcome=read)
    assert searched(monkeypatch, tmp_path, outcome=read)[1] == []
    differs = {
        "seeds=0,2": "with seeds=0,1 where this one has seeds=0,2.",
        "optim.lr=interval(1e-3,8e-3)": "where this one has 'optim.lr=interval(1e-3,8e-3)'.",
        "optim.eps=choice(1e-8)": "with nothing where this one has 'optim.eps=choice(1e-8)'.",
        "optim=adamw": "with nothing where this one has optim=adamw.",
    }
    for word, difference in differs.items():
        with pytest.raises(UserError, match=f"another search, .*{re.escape(difference)} Use the same"):
            searched(monkeypatch, tmp_path, word, outcome=read)


def test_the_best_is_left_as_a_command_and_as_an_experiment_which_are_the_same_run(
    tmp_path, monkeypatch, capsys
):
    def run(built: search.Search) -> None:
        built.study.tell(built.study.ask(built.plan.space), 9.0)

    monkeypatch.setattr(search.Search, "run", run)
    words = [
        "algo=dqn",
        "env=gym",
        "env.id=CartPole-v1",
        "total_frames=7",
    ]  # a tuned file would be all tasks'
    ranges = ["optim.lr=choice(0.25)", "+optim.betas=choice([0.5,0.75])", "compile=choice(true)"]
    script.main([*words, "search=base", *ranges, "~transforms.double_to_float", f"out={tmp_path}"])
    best = ["optim.lr=0.25", "+optim.betas=[0.5,0.75]", "compile=True"]
    best.append("eval.stop_when_solved=false")  # as the trials ran
    command = ["python", "train.py", *words, "~transforms.double_to_float", *best]
    assert f"  {shlex.join(command)}\n" in capsys.readouterr().out
    text = (tmp_path / "experiment.yaml").read_text()
    assert text.startswith(f"# @package _global_\n# 9.0 by {shlex.join(command)}\n")
    assert OmegaConf.create(text) == {"optim": {"lr": 0.25, "betas": [0.5, 0.75]}, "compile": True}
    for name in ("optimization_history", "slice", "param_importances"):
        assert image.imread(tmp_path / f"{name}.png").shape[0] > 300


def killed(trial: int, seed: int) -> Any:
    raise SystemExit  # nothing is told to the study


def test_a_search_that_was_killed_goes_on_with_its_trial(monkeypatch, tmp_path):
    with pytest.raises(SystemExit):
        searched(monkeypatch, tmp_path, "trials=1", outcome=killed)
    study, started, _ = searched(monkeypatch, tmp_path, "trials=1", outcome=lambda *_: ({}, 5.0, 0))
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[1].params == study.trials[0].params
    assert started == ["0/0", "0/1"]  # where they were begun


def shared(monkeypatch: pytest.MonkeyPatch, place: Path, name: str, *words: str, outcome: Any) -> Any:
    """What :func:`searched` gives of one of several processes, with a folder of its own."""
    database = f"storage=sqlite:///{place}/shared.db"
    return searched(monkeypatch, place / name, database, "study=ours", *words, outcome=outcome)


def ends(trial: int, seed: int) -> Any:
    return {}, 5.0 + trial, 0


def test_several_processes_make_the_trials_of_one_search_and_each_goes_on_with_its_own(monkeypatch, tmp_path):
    with pytest.raises(SystemExit):
        shared(monkeypatch, tmp_path, "one", "trials=2", outcome=killed)
    study, started, _ = shared(monkeypatch, tmp_path, "other", "trials=2", outcome=ends)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING, TrialState.COMPLETE]
    assert started == ["1/0", "1/1"]  # the present numbers are the first one's to try, once
    assert study.trials[1].params != study.trials[0].params == {"optim.lr": 2e-3}
    study, started, _ = shared(monkeypatch, tmp_path, "one", "trials=2", outcome=ends)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[2].params == study.trials[0].params
    assert started == ["0/0", "0/1"]  # where they were begun
    assert study.study_name == "ours"


def test_what_a_machine_left_that_is_not_heard_of_is_made_by_another(monkeypatch, tmp_path):
    with pytest.raises(SystemExit):
        shared(monkeypatch, tmp_path, "one", "trials=1", outcome=killed)
    with closing(sqlite3.connect(tmp_path / "shared.db")) as database, database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
    study, started, lines = shared(monkeypatch, tmp_path, "other", "trials=1", outcome=ends)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    assert study.trials[1].params == study.trials[0].params
    assert started == ["0/0", "0/1"]  # in its own folder
    assert lines == ["#1  5.0  lr=0.002"]


def test_what_another_machine_took_over_is_not_told_twice(monkeypatch, tmp_path):
    def outcome(trial: int, seed: int) -> Any:
        if (trial, seed) == (0, 1):
            study = optuna.load_study(study_name="ours", storage=f"sqlite:///{tmp_path}/shared.db")
            study.tell(0, state=TrialState.FAIL)
        return {256: 5.0}, 5.0, 0

    study, _, lines = shared(monkeypatch, tmp_path, "one", "trials=1", outcome=outcome)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    assert lines[0] == "#0  repeated by another process: no heartbeat for 300 seconds  lr=0.002"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", "storage=study.db: not a database URL. Write storage=postgresql://USER@HOST/DATABASE"),
        ("nosuch://me:secret@host/d", "storage=nosuch://me:***@host/d: not a database URL. Write storage="),
        (
            "mssql+pymssql://me:secret@h/d",
            "storage=mssql+pymssql://me:***@h/d: no driver. Install one for mssql+pymssql",
        ),
        (
            "mysql+pymysql://me@host/d",
            "@host/d: no driver. Run pip install 'pymysql'",
        ),
        ("sqlite:////nosuch/folder/x.db", "storage=sqlite:////nosuch/folder/x.db: unable to open database"),
    ],
)
def test_a_storage_that_cannot_be_had_is_a_line_and_leaves_nothing(monkeypatch, tmp_path, url, message):
    for driver in ("pymysql", "pymssql"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(UserError, match=re.escape(message)) as error:
        searched(monkeypatch, tmp_path / "out", f"storage={url}", outcome=ends)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_is_gone_ends_the_search_in_a_line(monkeypatch, tmp_path):
    def outcome(trial: int, seed: int) -> Any:
        with closing(sqlite3.connect(tmp_path / "shared.db")) as database, database:
            database.execute("DROP TABLE IF EXISTS trial_values")
        return {}, 5.0, 0

    with pytest.raises(RunError) as error, search_storage.report_failure(f"sqlite:///{tmp_path}/shared.db"):
        shared(monkeypatch, tmp_path, "one", outcome=outcome)
    place = f"storage=sqlite:///{tmp_path}/shared.db"
    assert str(error.value).startswith(f"{place}: no such table: trial_values. The runs have saved.")


def test_a_search_of_another_name_has_the_same_database_and_a_folder_is_one_process_s(monkeypatch, tmp_path):
    shared(monkeypatch, tmp_path, "one", outcome=ends)
    with pytest.raises(UserError, match=r"study=ours: another search, .* or study=NAME for a new search"):
        shared(monkeypatch, tmp_path, "two", "seeds=3", outcome=ends)
    assert not (tmp_path / "two").exists()
    assert shared(monkeypatch, tmp_path, "two", "seeds=3", "study=theirs", outcome=ends)[1] == ["0/3", "1/3"]
    with (tmp_path / "two" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(UserError, match=r"in use by another process.* its own out=DIR"):
            shared(monkeypatch, tmp_path, "two", outcome=ends)


def test_a_shared_search_shows_no_warning_of_optuna(monkeypatch, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shared(monkeypatch, tmp_path, "one", "trials=1", outcome=ends)
    of_optuna = [warning for warning in caught if "eartbeat" in str(warning.message)]
    assert not [*of_optuna, *(warning for warning in caught if warning.category is ExperimentalWarning)]


def test_the_best_of_all_is_told_with_its_machine(monkeypatch, tmp_path, capsys):
    shared(monkeypatch, tmp_path, "one", "trials=1", outcome=ends)
    words = [*ALONE, "optim.lr=interval(1e-3,9e-3)", f"storage=sqlite:///{tmp_path}/shared.db", "study=ours"]
    script.main([*words, "trials=1", f"out={tmp_path / 'other'}"])
    printed = capsys.readouterr().out
    assert f"best of 1 trials: 5.0, in {socket.gethostname()}:{tmp_path}/one/trial-0000\n" in printed


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow  # members of a sweep are stopped so too, tests/experiments/test_sweep.py
def test_a_search_that_was_stopped_goes_on_with_its_run_and_leaves_none(tmp_path: Path):
    out = tmp_path / "out"
    checkpoints = out / "trial-0000/seed0/checkpoints"
    words = [*ALONE, "total_frames=2_048", "checkpoint_every_frames=256", "eval.every_frames=1_024"]
    words += ["optim.lr=interval(1e-3,2e-3)", "seeds=0", "trials=1", f"out={out}"]

    def stop() -> None:
        wait_for(lambda: list(checkpoints.glob("checkpoint-*")))
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert typed(*words, script=SCRIPT).returncode == 130  # its runs are processes of their own
    stopping.join()

    searching = typed(*words, script=SCRIPT)
    assert searching.returncode == 0, searching.stderr
    output = searching.stdout
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{out}/study.db")
    stopped, whole = study.trials  # the other's run is gone on with
    assert stopped.state == TrialState.FAIL
    assert whole.params == stopped.params
    summary = OmegaConf.load(out / "trial-0000/seed0/summary.json")
    assert whole.value == pytest.approx(summary["eval/return_mean"])
    assert len(summary.resumed_at_frames) == 1
    assert OmegaConf.load(out / "trial-0000/seed0/config_resolved.yaml").eval.stop_when_solved is False
    assert "python train.py algo=dqn env=cartpole" in output
    assert (out / "experiment.yaml").exists()
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(out) in " ".join(process.info["cmdline"] or [])
    ]
    assert left == []


@pytest.mark.parametrize("named", ["../../elsewhere", "/elsewhere", "..", 3])
def test_a_trial_of_a_folder_of_others_lies_in_it(named, tmp_path):
    trial = SimpleNamespace(number=3, user_attrs={"folder": named})
    assert search.Search.folder(SimpleNamespace(out=tmp_path), trial) == tmp_path / "trial-0003"
    trial.user_attrs["folder"] = "trial-0001"
    assert search.Search.folder(SimpleNamespace(out=tmp_path), trial) == tmp_path / "trial-0001"
