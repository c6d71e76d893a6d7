"""Runs of several agents of PettingZoo's in groups: what is logged, filmed, and given back by agent."""

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

import hydrl
from hydrl.deploy.load import open_run
from hydrl.errors import UserError
from hydrl.run.video import record_episode
from hydrl.training import SeedStream
from hydrl.training.evaluator import episode_seed
from tests.conftest import SMALL, logged, settings, typed

mpe2 = pytest.importorskip("mpe2")

TAG = ["algo=mappo", "env=pettingzoo", "env.id=mpe2/simple_tag_v3", "collector.num_envs=4"]
TAG += [*SMALL, "eval.max_steps=auto", "minibatches.epochs=2", "critic.num_cells=[16,16]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from train import train

    folder = tmp_path_factory.mktemp("tag") / "run"
    train(settings(*TAG, run_dir=folder))
    return folder


def test_each_group_has_its_own_columns_and_all_learn(folder):
    rows = logged(folder)
    assert {f"loss/{group}/critic" for group in ("adversary", "agent")} < set(rows[-1])
    for row in (each for each in rows if each["train/return"]):
        adversary, agent = (float(row[f"train/{group}/return"]) for group in ("adversary", "agent"))
        assert float(row["train/return"]) == pytest.approx((3 * adversary + agent) / 4, rel=1e-4)
    summary = json.loads((folder / "summary.json").read_text())
    adversary, agent = (summary[f"eval/{group}/return"] for group in ("adversary", "agent"))
    assert summary["eval/return_mean"] == pytest.approx((3 * adversary + agent) / 4, rel=1e-4)
    for group in ("adversary", "agent"):
        assert len({row[f"train/{group}/entropy"] for row in rows}) == len(rows)


def test_predict_plays_pettingzoo_s_own_loop_as_an_evaluation_does(folder):
    settings, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 1, SeedStream.FINAL)
    policy = hydrl.load(folder, "last")
    task = mpe2.simple_tag_v3.parallel_env()
    seen, _ = task.reset(seed=episode_seed(settings.seed, frames, SeedStream.FINAL))
    total = []
    while task.agents:
        actions = policy.predict(seen)
        assert {*map(type, actions.values())} == {int}
        seen, paid, *_ = task.step(actions)
        total.append(np.mean([*paid.values()]))
    assert sum(total) == pytest.approx(played.mean, rel=1e-4)
    for wrong in ([1.0], {}, {"nobody": np.zeros(3)}):
        with pytest.raises(
            UserError, match=r"got a .*Pass a dictionary by agent, .* among adversary_0, .* agent_0"
        ):
            policy.predict(wrong)


def test_a_group_that_is_untrained_draws_its_actions_and_the_other_acts_as_it_learned(folder):
    def acted(*untrained):
        opened = open_run(folder, checkpoint="last", device="cpu", trust=False, untrained=untrained)
        with closing(opened[2].make_env(num_envs=40, seed=3)) as env, torch.no_grad():
            return opened[2].actor(env.reset())

    with set_exploration_type(ExplorationType.DETERMINISTIC):
        learned, prey, both = acted(), acted("agent"), acted("adversary", "agent")
    assert torch.equal(learned["agent", "observation"], prey["agent", "observation"])
    assert torch.equal(learned["adversary", "action"], prey["adversary", "action"])
    for made, group in ((prey, "agent"), (both, "adversary"), (both, "agent")):
        assert not torch.isclose(made[group, "logits"], learned[group, "logits"]).any()
        likely = made[group, "logits"].argmax(-1)
        assert (made[group, "action"] != likely).float().mean() > 0.5  # one of five, about evenly
    assert torch.equal(learned["agent", "action"], learned["agent", "logits"].argmax(-1))


def test_the_script_scores_sides_that_did_not_learn(folder):
    done = typed(f"run={folder}", "episodes=5", "untrained=agent", script="scripts/evaluate.py")
    assert "256 frames; untrained: agent" in done.stdout, done.stderr
    scores = json.loads((folder / "evaluation.json").read_text())
    assert scores["untrained"] == ["agent"]
    adversary, agent = (scores["info"][f"{group}/return"] for group in ("adversary", "agent"))
    assert all(each % 10 == 0 for each in adversary)  # a catch is 10 for each of them
    assert scores["returns"] == pytest.approx(
        [(3 * a + b) / 4 for a, b in zip(adversary, agent, strict=True)]
    )
    for untrained in (["prey"], ["agent", "prey"]):
        with pytest.raises(UserError, match=r"no such group as prey\. Write adversary or agent"):
            open_run(folder, checkpoint="last", device="cpu", trust=False, untrained=untrained)


def test_a_film_is_of_the_episode_that_is_evaluated(folder, tmp_path):
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 1, SeedStream.FINAL)
        value, steps, cut = record_episode(evaluator, tmp_path / "film.mp4", frames, SeedStream.FINAL)
    assert (steps, cut) == (25, False)
    assert value == pytest.approx(played.mean, rel=1e-4)
    assert (tmp_path / "film.mp4").stat().st_size > 1_000
