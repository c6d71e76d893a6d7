"""Data of an environment in other wrappers, or with other keywords, than the run has that reads it."""

import json
from secrets import token_hex

import numpy as np
import pytest

from hydrl.datasets.recorded_env import compare_envs, without_training_wrappers
from tests.conftest import settings, typed

SMALL = ["env=pendulum", "~tuned", "total_frames=256", "collector.frames_per_batch=128"]
SMALL += ["minibatches.size=32", "eval.every_frames=512", "eval.episodes=2", "eval.final_episodes=2"]
SMALL += ["eval.max_steps=20"]
SAC = ["algo=sac", *SMALL, "minibatches.warmup_frames=128", "minibatches.updates=1"]
RESCALED = ["+env.wrappers.unit._target_=gymnasium.wrappers.RescaleAction"]
RESCALED += ["+env.wrappers.unit.min_action=-1", "+env.wrappers.unit.max_action=1"]
TOLD = "recorded with other settings of the environment"


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """The folder of a run whose environment takes actions in [-1, 1] and is heavier."""
    from train import train

    folder = tmp_path_factory.mktemp("wrapped") / "run"
    train(settings(*SAC, *RESCALED, "+env.g=12.0", run_dir=folder))
    return folder


def warning_of(run, capsys, monkeypatch, *words):
    capsys.readouterr()
    run("algo=bc", *SMALL, *words, folder=token_hex(4))
    return capsys.readouterr().err


def test_other_wrappers_and_keywords_are_named_in_one_warning(wrapped, run, capsys, monkeypatch, tmp_path):
    out = tmp_path / "set"
    done = typed(f"run={wrapped}", f"out={out}", "frames=200", script="scripts/record.py")
    assert done.returncode == 0, done.stderr
    for words in (["data=npz", f"data.path={out}"], [f"data.path={wrapped}"]):
        warning = warning_of(run, capsys, monkeypatch, *words)
        assert warning.count(TOLD) == 1
        assert "env.wrappers.unit._target_=gymnasium.wrappers.RescaleAction (this run: null)" in warning
        assert "env.wrappers.unit.min_action=-1 (this run: null)" in warning
        assert "env.g=12.0 (this run: null)" in warning
        assert "info_keys" not in warning
        same = [*words, *RESCALED, "+env.g=12.0", "+env.info_keys=[]"]
        assert TOLD not in warning_of(run, capsys, monkeypatch, *same)


def test_nothing_is_said_of_a_set_of_which_nothing_is_known(run, capsys, monkeypatch, tmp_path):
    rows = np.zeros((40, 3), np.float32)
    ends = np.arange(40) == 39
    columns = {"observations": rows, "actions": rows[:, :1], "rewards": rows[:, 0]}
    np.savez(tmp_path / "data.npz", **columns, terminals=ends, timeouts=~ends & ends)
    words = ["data=npz", f"data.path={tmp_path}", *RESCALED]
    for about in (None, {}, {"env": None}, {"env": ["x"]}, {"env": {"wrappers": ["x"], "id": "Pendulum-v1"}}):
        if about is not None:
            (tmp_path / "about.json").write_text(json.dumps(about))
        warning = warning_of(run, capsys, monkeypatch, *words)
        assert (TOLD in warning) == isinstance((about or {}).get("env"), dict)


WRAPPERS = {"a": {"_target_": "A"}, "b": {"_target_": "B"}}


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        ({"id": "X"}, {"id": "X"}, []),
        ({"id": "X", "wrappers": {}}, {"id": "X", "wrappers": None}, []),
        ({"wrappers": {"a": {"_target_": "A"}}}, {"wrappers": {"b": {"_target_": "A"}}}, []),
        ({"g": 0}, {}, ["env.g=0 (this run: null)"]),
        ({"on": False}, {"on": True}, ["env.on=false (this run: true)"]),
        ({"info_keys": ["x"], "_target_": "old.name"}, {"_target_": "new.name"}, []),
        (
            {"wrappers": WRAPPERS},
            {"wrappers": dict(reversed(WRAPPERS.items()))},
            ["env.wrappers in the order a, b (this run: b, a)"],
        ),
    ],
)
def test_what_differs_is_what_changes_rows(then, now, differs):
    assert compare_envs(then, now) == differs


def test_a_wrapper_that_is_for_training_alone_is_not_in_what_record_plays():
    env = {"id": "X", "wrappers": {"a": {"_target_": "A", "training_only": True}, "b": {"_target_": "B"}}}
    assert without_training_wrappers(env) == {"id": "X", "wrappers": {"b": {"_target_": "B"}}}
    assert without_training_wrappers(None) is None
