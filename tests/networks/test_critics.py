from functools import partial

import pytest
import torch
from torch import nn

from hydrl import envs
from hydrl.networks import critics
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [16, 8], "activation": "SiLU", "in_keys": ["observation"]}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_state_value_is_one_number_a_frame_and_ignores_the_action(num_envs):
    env = envs.make_env(CountingEnv, [], num_envs=num_envs, seed=0)
    critic = critics.state_value(env, **NETWORK)
    rollout = env.rollout(6, break_when_any_done=False)
    value = critic(rollout)["state_value"].clone()
    assert value.shape == (*rollout.batch_size, 1)
    rollout["action"] = -rollout["action"]
    assert torch.equal(critic(rollout)["state_value"], value)


@pytest.mark.parametrize("actions", ["continuous", "one_hot"])
def test_an_action_value_is_one_number_a_frame_and_depends_on_the_action(actions):
    env = envs.make_env(partial(CountingEnv, actions=actions), [], num_envs=2, seed=0)
    critic = critics.action_value(env, **NETWORK)
    rollout = env.rollout(6, break_when_any_done=False)
    value = critic(rollout)["state_action_value"].clone()
    assert value.shape == (2, 6, 1)
    rollout["action"] = rollout["action"].roll(1, -1) if actions == "one_hot" else -rollout["action"]
    assert not torch.allclose(critic(rollout)["state_action_value"], value)


@pytest.mark.parametrize(("builder", "inputs"), [(critics.state_value, 3), (critics.action_value, 3 + 1)])
def test_sizes_come_from_the_environment_and_the_configuration(builder, inputs):
    critic = builder(envs.make_env(CountingEnv, [], seed=0), **NETWORK)
    layers = [
        (each.in_features, each.out_features) for each in critic.modules() if isinstance(each, nn.Linear)
    ]
    assert layers == [(inputs, 16), (16, 8), (8, 1)]
    assert sum(isinstance(each, nn.SiLU) for each in critic.modules()) == 2
