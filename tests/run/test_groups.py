"""Runs of several agents of PettingZoo's in groups: what is logged, filmed, and given back by agent."""

import json
from contextlib import closing

import numpy as np
import pytest
from conftest import SMALL, logged, settings

import hydrl
from hydrl.errors import UserError
from hydrl.loop import Episodes
from hydrl.loop.evaluation import episode_seed
from hydrl.run.films import film
from hydrl.run.finished import open_run

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
        played = evaluator(frames, 1, Episodes.CLOSING)
    policy = hydrl.load(folder, "last")
    task = mpe2.simple_tag_v3.parallel_env()
    seen, _ = task.reset(seed=episode_seed(settings.seed, frames, Episodes.CLOSING))
    total = []
    while task.agents:
        actions = policy.predict(seen)
        assert {*map(type, actions.values())} == {int}
        seen, paid, *_ = task.step(actions)
        total.append(np.mean([*paid.values()]))
    assert sum(total) == pytest.approx(played.mean, rel=1e-4)
    for wrong in ([1.0], {}, {"nobody": np.zeros(3)}):
        with pytest.raises(
            UserError, match=r"a dictionary by agent, .* among adversary_0, .* agent_0; got a"
        ):
            policy.predict(wrong)


def test_a_film_is_of_the_episode_that_is_evaluated(folder, tmp_path):
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 1, Episodes.CLOSING)
        value, steps, cut = film(evaluator, tmp_path / "film.mp4", frames, Episodes.CLOSING)
    assert (steps, cut) == (25, False)
    assert value == pytest.approx(played.mean, rel=1e-4)
    assert (tmp_path / "film.mp4").stat().st_size > 1_000
