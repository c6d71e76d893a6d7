import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import av
import pytest
import torch
from omegaconf import OmegaConf

from hydrl.config.trust import is_transform
from hydrl.errors import UserError
from hydrl.run.finished import open_run, read_settings
from hydrl.run.headless import has_egl

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["normalized", "running_norm"])
def finished(request, run):
    return run("env=inverted_double_pendulum", f"transforms={request.param}", "~tuned", "debug=fast")


def evaluate(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "scripts/evaluate.py", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_rebuilt_policy_plays_the_run_s_own_episodes_to_the_last_bit(finished):

    summary = json.loads((finished / "summary.json").read_text())
    rebuilt = open_run(finished, checkpoint="last", device="cpu", trust=False)
    again = rebuilt.evaluate(summary["eval/episodes"], drawn=1)  # the stream of a run's closing evaluation
    assert rebuilt.frames == summary["frames"]
    assert again.mean == summary["eval/return_mean"]
    assert again.std == summary["eval/return_std"]


def test_the_rebuilt_policy_repeats_an_evaluation_of_the_training_to_the_last_bit(finished):
    with (finished / "metrics.csv").open() as file:
        rows = [each for each in csv.DictReader(file) if each["eval/return_mean"]]
    assert [row["frames"] for row in rows] == ["1024", "2048"]
    for row in rows:
        rebuilt = open_run(finished, checkpoint=row["frames"], device="cpu", trust=False)
        again = rebuilt.evaluate(int(row["eval/episodes"]), drawn=0)  # the stream of evaluations in training
        assert rebuilt.frames == int(row["frames"])
        assert (again.mean, again.std) == (float(row["eval/return_mean"]), float(row["eval/return_std"]))


def test_it_plays_with_the_run_s_normaliser_not_one_of_its_own(finished):
    rebuilt = open_run(finished, checkpoint="last", device="cpu", trust=False)
    true = rebuilt.evaluate(4, drawn=2).returns
    for statistics in rebuilt.normaliser.values():
        for value in statistics.values():
            value.mul_(3)
    assert not torch.equal(rebuilt.evaluate(4, drawn=2).returns, true)


def test_the_script_scores_a_run_and_writes_it_down(run):
    folder = run("algo=dqn", "env=cartpole", "~tuned", "debug=fast")
    done = evaluate(f"run={folder}", "episodes=7", "checkpoint=best")
    assert done.returncode == 0, done.stderr
    assert "dqn on cartpole, best policy" in done.stdout
    assert "Traceback" not in done.stderr

    scores = json.loads((folder / "evaluation.json").read_text())
    assert scores["eval/episodes"] == 7
    assert scores["eval/return_min"] <= scores["eval/return_mean"] <= scores["eval/return_max"]
    assert scores["eval/return_mean"] == pytest.approx(scores["eval/length_mean"])  # 1 a step
    assert scores["returns"] == scores["lengths"]
    assert len(scores["lengths"]) == 7
    assert scores["eval/length_min"] == min(scores["lengths"])
    assert scores["eval/length_max"] == max(scores["lengths"])
    assert (scores["checkpoint"], scores["seed"], scores["stream"]) == ("best", 0, 2)
    assert scores["frames"] in (512, 1024)
    assert "video" not in scores


@pytest.mark.parametrize(
    "words",
    [
        ("algo=dqn", "env=cartpole"),
        pytest.param(
            ("algo=ppo", "env=inverted_double_pendulum"),
            marks=pytest.mark.skipif(not has_egl(), reason="MuJoCo needs libEGL here, which is not there"),
        ),
    ],
)
def test_the_script_films_the_first_episode_without_a_display(words, run, monkeypatch):
    for name in ("DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    folder = run(*words, "~tuned", "debug=fast")
    before = {each.name for each in folder.iterdir()}
    done = evaluate(f"run={folder}", "episodes=3", "video=true")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {each.name for each in folder.iterdir()} - before == {"evaluation.json", "video-last.mp4"}
    scores = json.loads((folder / "evaluation.json").read_text())
    filmed = {"file": "video-last.mp4", "return": scores["returns"][0], "length": scores["lengths"][0]}
    assert scores["video"] == filmed
    assert f"return {filmed['return']:,.1f}, length {filmed['length']:,}" in done.stdout
    with av.open(str(folder / "video-last.mp4")) as container:
        every = 2 if "env=cartpole" in words else 1  # 50 and 20 a second, and at most 30 are drawn
        assert container.streams.video[0].frames == 1 + math.ceil(filmed["length"] / every)


def test_what_cannot_be_filmed_is_said_before_an_episode_is_played(run):
    folder = run("env=torchrl_pendulum", "~tuned", "debug=fast", "total_frames=256")
    done = evaluate(f"run={folder}", "episodes=100000", "video=true")  # playing them would take hours
    assert (done.returncode, done.stdout) == (2, "")
    reason = "'PendulumEnv' object has no attribute 'render'"
    assert done.stderr == f"error: PendulumEnv cannot be filmed: {reason}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run has no value; give one, as run=outputs/… episodes=100"),
        (["run=nowhere"], "run=nowhere: no run lies there"),
        (["run=nowhere", "episode=3"], "episode"),
        (["run=nowhere", "episodes=many"], "many"),
        (["run=nowhere", "episodes=0"], "episodes=0: give 1 or more"),
        (["run=nowhere", "checkpoint=first"], "checkpoint=first: use last, best or a number of frames"),
        (["run=nowhere", "checkpoint=-5"], "checkpoint=-5: use last, best or a number of frames"),
        (["run=nowhere", "checkpoint={"], "checkpoint={: "),
        (["run=nowhere", "stream=-1"], "stream=-1: give 0 or more"),
        (["run=nowhere", "video=maybe"], "video=maybe: "),
        (["run=${nothing}"], "run=${nothing}: "),
        (["nowhere"], "nowhere: write key=value"),
    ],
)
def test_mistakes_are_told_in_a_line(words, message):
    done = evaluate(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_target_that_is_not_hydrl_s_is_refused_unless_trusted(tmp_path, run):
    folder = run("env=cartpole", "~tuned", "debug=fast")
    config = folder / "config_resolved.yaml"
    config.write_text(config.read_text().replace("hydrl.parts.environments.gymnasium_env", "os.system"))
    with pytest.raises(UserError, match=r"names os\.system, which is not one of hydrl's parts"):
        read_settings(folder, trust=False)
    assert read_settings(folder, trust=True).env["_target_"] == "os.system"


def test_a_target_inside_a_list_is_refused_too(run):
    folder = run("env=cartpole", "~tuned", "debug=fast", "total_frames=256")
    config = OmegaConf.load(folder / "config_resolved.yaml")
    nested = {"_target_": "torchrl.envs.Compose", "_args_": [{"_target_": "os.mkdir", "path": "/tmp/c"}]}
    config.transforms.planted = nested
    OmegaConf.save(config, folder / "config_resolved.yaml")
    with pytest.raises(UserError, match=r"names os\.mkdir, which is not one of hydrl's parts"):
        read_settings(folder, trust=False)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("torchrl.envs.ClipTransform", True),
        ("torchrl.envs.GymEnv", False),
        ("torchrl.envs.transforms.os.system", False),
        ("torchrl.envs.os", False),
        ("os.system", False),
    ],
)
def test_transforms_of_torchrl_need_no_trust(name, known):
    assert is_transform(name) == known
