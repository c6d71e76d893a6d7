"""A decision transformer acts step by step as it learned in one piece, whatever its episodes began with."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import step_mdp

from hydrl import envs
from hydrl.errors import UserError
from hydrl.specs import CONTEXT_KEYS
from tests.conftest import settings

pytest.importorskip("transformers")
WORDS = ["algo=decision_transformer", "env=pendulum", "~tuned", "data.path=none", "actor.width=16"]
WORDS += ["actor.layers=2", "actor.heads=2", "minibatches.sequence=4"]


@pytest.fixture(scope="module")
def made():
    """An actor that has seen returns of a set, and its environment."""
    chosen = settings(*WORDS, "eval.target_return=-300")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    torch.manual_seed(0)
    actor = chosen.build("actor")(env)
    rows = {"return_to_go": torch.tensor([-800.0, -400, 0]).unsqueeze(-1)}
    rows |= {"episode_reward": torch.zeros(3, 1), "episode": torch.zeros(3, dtype=torch.int32)}
    rows["step_count"] = torch.tensor([0, 1, 49]).unsqueeze(-1)
    actor.fit(TensorDict(rows, [3]))
    return chosen, actor


@torch.no_grad()
def test_it_acts_step_by_step_as_it_learned(made):
    chosen, actor = made
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, policy=actor)
    env.set_seed(0)
    now, steps = env.reset(), []
    for step in range(9):
        if step == 3:  # one of them begins anew, and stands elsewhere in its context from now on
            now = env.reset(now.set("_reset", torch.tensor([[False], [True]])))
        now, following = env.step_and_maybe_reset(actor(now))
        steps.append(now)
        now = following
    for place, begin in ((0, 0), (1, 3)):
        lines = torch.stack([each[place] for each in steps[begin:]])
        for step in range(len(lines)):
            piece = lines[max(0, step - 3) : step + 1].select("observation", "action", "episode_reward")
            piece["step_count"] = torch.arange(max(0, step - 3), step + 1).unsqueeze(-1)
            piece["return_to_go"] = -300 - piece["episode_reward"]  # in the task's own units
            expected = piece["action"][-1].clone()
            piece["action"] = torch.cat(
                [piece["action"][:-1], torch.full((1, 1), 0.7)]
            )  # which it cannot see
            assert torch.allclose(actor(piece.unsqueeze(0))["action"][0, -1], expected, atol=1e-5)


@torch.no_grad()
def test_it_acts_by_the_return_it_is_asked_for(made):
    chosen, actor = made
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, policy=actor)
    env.set_seed(0)
    now = env.reset()
    first = actor(now.clone())["action"]
    actor.target_return.fill_(-1_500)
    assert not torch.allclose(actor(now.clone())["action"], first)
    actor.target_return.fill_(-300)
    assert torch.equal(actor(now.clone())["action"], first)
    assert step_mdp(env.step(actor(now.clone())))[CONTEXT_KEYS[1]].item() == 1


def test_nobody_says_what_to_reach_and_it_is_what_one_in_ten_of_the_data_did():
    chosen = settings(*WORDS)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    actor = chosen.build("actor")(env)
    rows = {"return_to_go": torch.arange(22.0).unsqueeze(-1) % 2 * 3}
    rows |= {"episode_reward": torch.arange(22.0).unsqueeze(-1) // 2}
    rows |= {"episode": torch.arange(22, dtype=torch.int32) // 2}
    rows |= {"step_count": torch.arange(22).unsqueeze(-1) % 2}
    actor.fit(TensorDict(rows, [22]))  # eleven episodes that return 3 to 13
    assert actor.target_return.item() == pytest.approx(12)
    assert actor.scale_returns(torch.tensor([0.0, 3.0])).tolist() == pytest.approx([-1, 1])


@torch.no_grad()
def test_it_tells_an_episode_that_begins_from_one_that_is_soon_over(made):
    """Of the same state and the same return still to come; an episode of the set has 50 steps."""
    _, actor = made
    seen = TensorDict({"observation": torch.tensor([-1.0, 0, 0]).expand(2, 3)}, [2])
    joined = actor.concat_observation(seen, torch.tensor([[0], [50]]))
    assert joined.tolist() == [[-1, 0, 0, -1], [-1, 0, 0, 1]]
    piece = seen.unsqueeze(1).update({"action": torch.zeros(2, 1, 1), "return_to_go": torch.zeros(2, 1, 1)})
    first, last = actor(piece.set("step_count", torch.tensor([0, 50]).view(2, 1, 1)))["action"]
    assert not torch.allclose(first, last)


def test_heads_that_do_not_divide_the_width_are_told_in_a_line():
    chosen = settings(*WORDS, "actor.heads=3")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    with pytest.raises(UserError, match=r"^actor\.heads=3: should divide actor\.width=16\.$"):
        chosen.build("actor")(env)
