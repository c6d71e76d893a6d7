"""EnvPool environments: what a run sees, and one-line errors."""

import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torchrl.envs import SignTransform

from hydrl.envs import find_family, make_env
from hydrl.envs.envpool import EnvPoolEnv, envpool_env, reward_sign
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import UserError
from hydrl.run.checkpoint.env_state.capture import NotCapturedError, capture
from hydrl.specs import INFO, stacked_images

needs_envpool = pytest.mark.skipif(not find_spec("envpool"), reason="needs pip install 'hydrl[envpool]'")

VISIBLE = {"partially_observable": False}


def make(id: str, num_envs: int = 3, seed: int = 0, **keywords):
    return make_env(partial(envpool_env, id=id, **keywords), [], num_envs=num_envs, seed=seed)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"env=envpool: .*Run pip install 'hydrl\[envpool\]'"):
        make("CartPole-v1")


@needs_envpool
@pytest.mark.parametrize(
    ("id", "keywords", "message"),
    [
        ("Snake-v9", {}, "env.id=Snake-v9: no such environment of EnvPool. Write Jumanji/Snake-v1."),
        ("HalfCheeta-v4", {}, "Write HalfCheetah-v5"),
        ("CartPole-v1", {"nonsense": 3}, "env.nonsense=3: CartPole-v1 takes no nonsense. Leave it out."),
        (
            "CartPole-v1",
            {"batch_size": 3},
            "another key sets this. Write collector.num_envs=N.",
        ),
        ("CartPole-v1", {"num_threads": 0}, "env.num_threads=0: should be an integer, 1 or more."),
        ("CartPole-v1", {"mission": "words"}, "env.id=CartPole-v1 has no mission."),
        ("CartPole-v1", {"render_mode": "rgb_array"}, "EnvPool's renderer ends the process"),
        ("CartPole-v1", {"info_keys": ["speed"]}, "env.id=CartPole-v1 has no number speed in info."),
        ("Go9x9-v1", {}, "it has several players"),
    ],
)
def test_mistakes_are_one_line(id, keywords, message):
    with pytest.raises(UserError) as error:
        make(id, **keywords)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@needs_envpool
def test_a_seed_repeats_its_episodes_for_any_number_of_environments():
    torch.manual_seed(0)
    several, single = make("CartPole-v1", 3, seed=5), make("CartPole-v1", 1, seed=7)
    starts = several.reset()["observation"]
    assert torch.equal(starts[2], single.reset()["observation"])
    again = several.reset()["observation"]
    assert not torch.equal(starts, again)
    several.set_seed(5)
    assert torch.equal(several.reset()["observation"], starts)


@needs_envpool
def test_success_and_chosen_values_are_followed():
    env = make("FetchReach-v4", 2, info_keys={"distance": "sum"})
    start = env.reset()
    assert start["episode_info", "is_success"].isnan().all()
    rows = env.rollout(5, auto_reset=False, tensordict=start)["next", "episode_info"]
    assert (rows["distance"].diff(dim=1) > 0).all()
    columns = []
    for how in ("last", "max"):
        torch.manual_seed(0)  # the same random actions
        columns.append(
            make("FetchReach-v4", 2, info_keys={"distance": how}).rollout(5)["next", INFO, "distance"]
        )
    last, highest = columns
    torch.testing.assert_close(highest, last.cummax(1).values)
    assert ((rows["is_success"] == 0) | (rows["is_success"] == 1)).all()


@needs_envpool
def test_atari_is_as_with_its_own_option():
    maker = partial(envpool_env, id="Pong-v5")
    env = make_env(maker, [reward_sign], num_envs=2, seed=0)
    base = env.base_env
    assert isinstance(base, EnvPoolEnv)
    assert base.observation_spec["pixels"].shape == (2, 4, 84, 84)
    assert stacked_images(env) == (["pixels"], 4)
    assert episode_limit(env) == 27_000
    assert any(isinstance(transform, SignTransform) for transform in env.transform)
    training, evaluation = base.pool.task, find_family(maker).for_evaluation(maker)(num_envs=2).pool.task
    assert training.kwargs["episodic_life"]
    assert not evaluation.kwargs["episodic_life"]
    assert not any(task.kwargs["reward_clip"] for task in (training, evaluation))
    assert reward_sign(envpool_env("CartPole-v1")) is None


@needs_envpool
def test_missions_are_words():
    env = make("BabyAI-GoToLocal-v0", 2, mission="words")
    mission = env.reset()["mission"].reshape(2, 50, 61)
    assert np.array_equal(mission.sum(-1), np.ones((2, 50)))
    assert (mission[:, :2].argmax(-1) > 0).all()


@needs_envpool
def test_a_hidden_goal_is_reported_and_can_be_observed(capsys):
    id = "MetaWorld/Reach-v3"
    goals = [make(id, 2, **how).reset()["observation"][..., -3:].abs().sum() for how in ({}, VISIBLE)]
    assert [bool(goal) for goal in goals] == [False, True]
    printed = capsys.readouterr().err
    assert printed.count("zeros in place of the goal. Write +env.partially_observable=false") == 1


@needs_envpool
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_checkpoint_names_the_environment_whose_state_it_lacks(num_envs):
    with pytest.raises(NotCapturedError) as error:
        capture(make("CartPole-v1", num_envs))
    assert str(error.value) == "EnvPool's CartPole-v1"


@needs_envpool
def test_another_name_of_an_environment_is_the_same_task():
    names = ("Snake-v1", "Jumanji/Snake-v1")
    spaces = [make(name, 2).observation_spec for name in names]
    assert spaces[0] == spaces[1]
    assert "time_step" in spaces[0]
