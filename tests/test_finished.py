import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hydrl.errors import UserError
from hydrl.finished import is_transform, open_run, read_settings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=["normalized", "running_norm"])
def finished(request, run):
    return run("env=inverted_double_pendulum", f"transforms={request.param}", "tuned=none", "debug=fast")


def evaluate(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "scripts/evaluate.py", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_rebuilt_policy_plays_the_run_s_own_episodes_to_the_last_bit(finished):

    summary = json.loads((finished / "summary.json").read_text())
    rebuilt = open_run(finished, checkpoint="last", device="cpu", trust=False)
    again = rebuilt.evaluate(summary["eval/episodes"], stream=1)  # the stream of a run's closing evaluation
    assert rebuilt.frames == summary["frames"]
    assert again.mean == summary["eval/return_mean"]
    assert again.std == summary["eval/return_std"]


def test_it_plays_with_the_run_s_normaliser_not_one_of_its_own(finished):
    rebuilt = open_run(finished, checkpoint="last", device="cpu", trust=False)
    true = rebuilt.evaluate(4, stream=2).returns
    for statistics in rebuilt.normaliser.values():
        for value in statistics.values():
            value.mul_(3)
    assert not torch.equal(rebuilt.evaluate(4, stream=2).returns, true)


def test_the_script_scores_a_run_and_writes_it_down(run):
    folder = run("algo=dqn", "env=cartpole", "tuned=none", "debug=fast")
    done = evaluate(f"run={folder}", "episodes=7", "checkpoint=best")
    assert done.returncode == 0, done.stderr
    assert "dqn on cartpole, best policy" in done.stdout
    assert "Traceback" not in done.stderr

    scores = json.loads((folder / "evaluation.json").read_text())
    assert scores["eval/episodes"] == 7
    assert scores["eval/return_min"] <= scores["eval/return_mean"] <= scores["eval/return_max"]
    assert scores["eval/return_mean"] == pytest.approx(scores["eval/length_mean"])  # 1 a step


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run has no value; give a run folder"),
        (["run=nowhere"], "run=nowhere: no run lies there"),
        (["run=nowhere", "episode=3"], "episode"),
        (["run=nowhere", "episodes=many"], "many"),
        (["run=nowhere", "episodes=0"], "episodes=0: give 1 or more"),
        (["run=nowhere", "checkpoint=first"], "checkpoint=first: use last or best"),
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
    folder = run("env=cartpole", "tuned=none", "debug=fast")
    config = folder / "config_resolved.yaml"
    config.write_text(config.read_text().replace("hydrl.envs.gymnasium_env", "os.system"))
    with pytest.raises(UserError, match=r"names os\.system, which is not one of hydrl's parts"):
        read_settings(folder, trust=False)
    assert read_settings(folder, trust=True).env["_target_"] == "os.system"


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
