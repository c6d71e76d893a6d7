"""Opponents of several environments move by one network call, and play the same games as one by one."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from hydrl import envs, specs
from hydrl.envs import self_play
from hydrl.envs.self_play import OpponentPool, PolicyStack
from tests.conftest import settings

pytest.importorskip("pyspiel")

LEDUC = ["env=open_spiel", "env.id=leduc_poker", "transforms=plain"]
TICTACTOE = ["env=self_play", "env.id=classic/tictactoe_v3", "transforms=plain"]


def play(words, num_envs, steps, policies=3, scale=0.0, algo="ppo", batched=True):
    """Rows of random actions against a pool of policies, and the environment's pool.

    ``scale`` multiplies the logits of the policies; large ones leave them no choice.
    """
    torch.manual_seed(0)
    chosen = settings(f"algo={algo}", *words, "env.opponents.latest_prob=0.3")
    with closing(
        envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=num_envs, seed=0)
    ) as env:
        actor, pool = chosen.build("actor")(env), specs.opponent_pool(env)
        for frames in range(1, policies + 1):
            for module in actor.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.5 + scale)
            pool.maybe_add(actor, frames * pool.every_frames, env)
        pool.batched = batched
        torch.manual_seed(1)
        return env.rollout(steps, break_when_any_done=False), pool, env


def assert_same_rows(rows, others):
    for key in ("action", "observation", ("next", "observation"), ("next", "reward"), ("next", "done")):
        assert torch.equal(rows[key], others[key]), key
    assert rows["next", "done"].sum() > 5


@pytest.mark.parametrize("words", [LEDUC, TICTACTOE])
def test_one_environment_plays_the_same_moves(words):
    """By the same random numbers, drawn from the same probabilities."""
    together, *_ = play(words, 1, 60)
    alone, *_ = play(words, 1, 60, batched=False)
    assert_same_rows(together, alone)


@pytest.mark.parametrize("words", [LEDUC, TICTACTOE])
def test_several_environments_play_the_games_that_they_would_play_alone(words):
    """The policies leave no choice, so that random numbers do not matter."""
    together, *_ = play(words, 6, 40, scale=30.0)
    alone, *_ = play(words, 6, 40, scale=30.0, batched=False)
    assert_same_rows(together, alone)


def test_all_that_wait_are_asked_in_one_call(monkeypatch):
    stacked, single = [], []
    call, act = PolicyStack.__call__, OpponentPool.act

    def call_noted(self, indices, observations):
        stacked.append(len(indices))
        return call(self, indices, observations)

    def act_noted(self, *request):
        single.append(request)
        return act(self, *request)

    monkeypatch.setattr(PolicyStack, "__call__", call_noted)
    monkeypatch.setattr(OpponentPool, "act", act_noted)
    rows, *_ = play(TICTACTOE, 8, 20)
    steps_and_resets = 20 + int(rows["next", "done"].any(0).sum()) + 2
    assert len(stacked) + len(single) <= steps_and_resets
    assert sum(stacked) > 4 * len(stacked)


def test_a_stack_has_the_probabilities_of_its_policies():
    _, pool, _ = play(LEDUC, 2, 5, policies=4)
    stack = PolicyStack([*pool.policies])
    observations = torch.randn(40, 30).sign()
    masks = torch.ones(40, 3, dtype=torch.bool)
    indices = torch.arange(40) % 4
    batch = self_play.TensorDict({"observation": observations, "action_mask": masks}, 40)
    outputs = torch.vmap(stack.call_network)(stack.weights[indices], batch)
    for index, policy in enumerate(pool.policies):
        rows = indices == index
        expected = policy(batch[rows].clone())["logits"]
        torch.testing.assert_close(outputs["logits"][rows], expected)
    assert not torch.allclose(outputs["logits"][0], outputs["logits"][1])


def test_actions_are_drawn_by_these_probabilities():
    _, pool, _ = play(LEDUC, 2, 5, policies=2)
    observation, mask = np.ones(30, np.float32), np.array([False, True, True])
    request = self_play.MoveRequest(1, {"observation": observation}, mask)
    shares = np.bincount(pool.act_together([request] * 4_000), minlength=3) / 4_000
    entries = {"observation": torch.ones(30), "action_mask": torch.from_numpy(mask)}
    logits = pool.policies[1](self_play.TensorDict(entries))["logits"]
    np.testing.assert_allclose(shares[1:], logits[1:].softmax(-1), atol=0.03)
    assert shares[0] == 0


def test_policies_without_a_distribution_move_together_by_policy():
    together, pool, _ = play(LEDUC, 6, 40, algo="dqn", scale=1.0)
    alone, *_ = play(LEDUC, 6, 40, algo="dqn", scale=1.0, batched=False)
    assert not pool.stack.can_stack
    assert_same_rows(together, alone)


def test_a_policy_that_joins_plays_from_then_on():
    _, pool, env = play(LEDUC, 4, 10, policies=1)
    request = self_play.MoveRequest(0, {"observation": np.ones(30, np.float32)}, np.ones(3, bool))
    pool.act_together([request, request])
    first = pool.stack
    assert first is not None
    pool.maybe_add(pool.policies[0], 9 * pool.every_frames, env)
    pool.act_together([request, request._replace(policy_index=1)])
    assert pool.stack is not first
    with pool.restored({"policies": [pool.policies[0].state_dict()]}):
        assert pool.stack is None
    assert pool.stack is None


class TwoSteps(gymnasium.Wrapper):
    """Repeats an action while the game goes on."""

    def step(self, action):
        result = self.env.step(action)
        mask = self.env.get_wrapper_attr("action_masks")()
        return result if result[2] or not mask[action] else self.env.step(action)


def test_a_wrapper_that_steps_more_than_once_leaves_opponents_alone():
    wrapper = "+env.wrappers.two._target_=tests.envs.test_self_play_batched.TwoSteps"
    rows, pool, env = play([*LEDUC, wrapper], 3, 30)
    assert env.base_env.games == []
    assert pool.stack is None
    assert rows["next", "done"].sum() > 3
