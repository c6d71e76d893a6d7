"""The builder of networks: an encoder, a memory, layers and a head, each where it is asked for."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import StepCounter
from torchrl.objectives import ClipPPOLoss, DQNLoss

from hydrl import envs
from hydrl.losses.build import make_loss
from hydrl.networks import actors, critics, heads
from hydrl.networks.rnn import RecurrentLayer
from tests.fakes.envs import CountingEnv

NET = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}


class Squares(nn.Module):
    """Twice the squares of what it reads, five times over, with a weight to be learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, observation):
        return (self.scale * observation.square()).repeat_interleave(5, -1)


def squares(env, in_keys):
    return TensorDictModule(Squares(), in_keys=in_keys, out_keys=["features"])


def toy(actions="continuous", **changes):
    torch.manual_seed(0)
    return envs.make_env(partial(CountingEnv, actions=actions), [StepCounter], num_envs=2, seed=0, **changes)


@pytest.mark.parametrize("build", [actors.tanh_normal, actors.deterministic])
def test_layers_read_what_an_encoder_makes_of_observations(build):
    env = toy()
    actor = build(env, **NET, encoder=squares)
    read = env.reset()
    out = actor(read.clone())
    features = (2 * read["observation"].square()).repeat_interleave(5, -1)
    assert torch.equal(out["features"], features)
    (first, _) = (each for each in actor.modules() if isinstance(each, nn.Linear))
    assert first.in_features == 15
    out["features"].sum().backward()
    (scale,) = (each for name, each in actor.named_parameters() if name.endswith("scale"))
    assert scale.grad == read["observation"].square().sum() * 5


def test_a_critic_reads_the_actor_s_encoder_and_the_loss_learns_it_once():
    env = toy()
    actor = actors.tanh_normal(env, **NET, encoder=squares)
    critic = critics.state_value(env, actor, **{**NET, "in_keys": ["features"]})
    parts = {"actor": actor, "critic": critic}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    loss = make_loss(partial(ClipPPOLoss, functional=False), parts, env.action_spec, networks, {}, None)
    assert sum(name.endswith("scale") for name, _ in loss.named_parameters()) == 1
    read = env.reset()
    by_hand = critic[-1].module((2 * read["observation"].square()).repeat_interleave(5, -1))
    assert torch.equal(critic(read)["state_value"], by_hand)


def test_a_memory_keeps_features_and_a_norm_knows_how_many_it_reads():
    env = toy()
    norm = partial(nn.BatchNorm1d)
    actor = actors.tanh_normal(
        env, **NET, encoder=squares, rnn=partial(RecurrentLayer, cell="gru", hidden_size=7), norm=norm
    )
    (cell,) = (each for each in actor.modules() if isinstance(each, nn.GRU))
    assert (cell.input_size, cell.hidden_size) == (15, 7)
    norms = [each.num_features for each in actor.modules() if isinstance(each, nn.BatchNorm1d)]
    assert norms == [7, 8]
    env = toy(policy=actor)
    rollout = env.rollout(6, actor, break_when_any_done=False)
    assert rollout["memory"].shape == (2, 6, 7)


def test_a_head_of_values_of_actions_reads_features_and_the_action():
    env = toy()
    critic = critics.action_value(env, None, **NET, encoder=squares)
    assert critic.in_keys == ["observation", "action"]
    first = next(each for each in critic.modules() if isinstance(each, nn.Linear))
    assert first.in_features == 15 + 1


def test_every_head_takes_an_encoder_and_its_loss_accepts_it():
    env = toy("one_hot")
    actor = actors.q_value(env, **NET, encoder=squares)
    networks, estimator = {"value_network": "actor"}, {"gamma": 0.9}
    loss = make_loss(DQNLoss, {"actor": actor}, env.action_spec, networks, {}, estimator)
    batch = env.rollout(4, actor, break_when_any_done=False)
    loss(batch.reshape(-1))["loss"].backward()
    (scale,) = (each for name, each in loss.named_parameters() if name.endswith("scale"))
    assert scale.grad.abs() > 0


def test_what_is_not_asked_for_is_not_there():
    """Names in a checkpoint stay as they were."""
    env = toy()
    names = [*actors.deterministic(env, **NET).state_dict()]
    assert names[:2] == ["module.0.module.0.weight", "module.0.module.0.bias"]
    assert [*critics.state_value(env, **NET).state_dict()][:1] == ["module.0.weight"]


def test_a_head_knows_nothing_of_what_lies_before_it():
    """It is over any layers that give as many numbers as it asks for."""
    spec = toy().action_spec_unbatched
    asked = []

    def build(outputs):
        asked.append(outputs)
        return nn.Linear(4, outputs)

    head = heads.tanh_normal(spec, scale="independent")
    acting = head.build(build, ["anything"])
    assert asked == [spec.shape[-1]]
    assert acting.in_keys == ["anything"]
    assert [*acting.out_keys] == ["loc", "scale", "action", "action_log_prob"]
