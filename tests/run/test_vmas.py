"""VMAS' simulator steps all environments at once and draws from generators of its own."""

import csv
import json
from pathlib import Path

import pytest
import torch
from conftest import needs_vmas, saved

from hydrl.errors import UserError
from hydrl.loop.evaluation import Episodes
from hydrl.run.finished import open_run

SMALL = ["env=vmas_navigation", "~tuned", "debug=fast", "minibatches.epochs=2", "collector.num_envs=8"]
SMALL += ["eval.every_frames=512", "log_every_frames=256", "checkpoint_every_frames=512"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _vmas() -> None:
    needs_vmas()


@pytest.mark.parametrize("algo", ["mappo", "ippo"])
def test_a_run_is_scored_again_and_goes_on(algo, run, capsys):
    folder = run(f"algo={algo}", *SMALL, "total_frames=512")
    row = rows(folder)[-1]
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    again = evaluator(frames, int(row["eval/episodes"]), Episodes.TRAINING)
    assert (again.mean, again.std) == (float(row["eval/return_mean"]), float(row["eval/return_std"]))

    before = saved(folder, "loss")
    run(f"algo={algo}", *SMALL, "total_frames=1_024", "resume=auto")
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "the environments start anew: env._env (vmas.simulator.environment.environment.Environment)" in told
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["frames"], summary["resumed_at_frames"]) == (1024, [512])
    assert any(not torch.equal(now, before[key]) for key, now in saved(folder, "loss").items())


def test_an_evaluation_leaves_the_training_s_draws_alone(run):
    overrides = [
        "algo=mappo",
        *SMALL,
        "total_frames=1_024",
        "collector.num_envs=2",
    ]  # an episode ends in each batch
    often = run(*overrides, "eval.every_frames=256", folder="often")
    seldom = run(*overrides, "eval.every_frames=1_024", folder="seldom")
    ours, theirs = ([row["train/return"] for row in rows(each)] for each in (often, seldom))
    assert ours == theirs
    assert len(set(ours)) == 4


def test_a_scenario_that_vmas_does_not_have_is_told(run):
    with pytest.raises(UserError, match=r"env\.scenario=balanc: no such choice; try balance, "):
        run("algo=mappo", "env=vmas", "env.scenario=balanc")
    with pytest.raises(UserError, match="env=simple_tag has multi-agent Composite actions"):
        run("algo=mappo", "env=vmas", "env.scenario=simple_tag")
