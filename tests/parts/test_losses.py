from functools import partial

import pytest
import torch
from conftest import loss_of, settings
from torchrl.data import OneHot
from torchrl.objectives import ClipPPOLoss

from hydrl.errors import UserError
from hydrl.parts import environments
from hydrl.parts.losses import make_loss, parameter_groups


def built(*overrides: str):
    """The configured loss over the configured networks of a small Pendulum."""
    chosen = settings("~tuned", "actor.num_cells=[8]", "critic.num_cells=[8]", *overrides)
    env = environments.make_env(chosen.build("env"), chosen.transform_builders, seed=0)
    environments.initialise_normalisers(env, 100)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic", "value")}
    return chosen, env, parts, loss_of(chosen, env, **parts)


def test_each_part_goes_into_the_argument_it_is_named_for():
    _, _, parts, loss = built("algo=iql", "env=pendulum", "collector.path=none", "value.num_cells=[5]")
    assert loss.actor_network is parts["actor"]
    assert loss.qvalue_network is parts["critic"]
    assert loss.value_network is parts["value"]
    shapes = [each.shape for each in loss.value_network_params.values(True, True)]
    assert torch.Size([5, 3]) in shapes


def test_the_action_spec_is_filled_in_where_the_loss_asks_for_it():
    _, env, _, loss = built("algo=td3", "env=pendulum")
    assert loss.max_action.item() == env.action_spec.space.high.item() == 2.0
    spec = OneHot(3)

    def takes(actor_network, *, action_space, num_actions):
        return actor_network, action_space, num_actions

    asked = make_loss(takes, {"actor": "an actor"}, spec, {"actor_network": "actor"}, {}, None)
    assert asked == ("an actor", spec, 3)


def test_keys_reach_the_loss_and_its_value_estimator():
    keys = {"reward": ["agents", "reward"], "value": "worth"}
    chosen, env, parts, _ = built("algo=ppo", "env=pendulum")
    parts["critic"].out_keys = ["worth"]
    loss = make_loss(
        partial(ClipPPOLoss, functional=False),
        parts,
        env.action_spec,
        chosen.loss.networks,
        keys,
        {"gamma": 0.9, "lmbda": 0.9},
    )
    assert loss.tensor_keys.reward == ("agents", "reward")
    assert loss.value_estimator.tensor_keys.reward == ("agents", "reward")
    assert loss.value_estimator.tensor_keys.value == "worth"


def test_a_group_of_parameters_has_options_of_its_own_and_the_rest_the_optimizer_s():
    chosen, _, _, loss = built("algo=sac", "env=pendulum", "optim.lr=1e-2")
    optimizer = chosen.build("optim")(
        parameter_groups(loss, {"log_alpha": {"lr": 1e-4}, "actor": {"lr": 1e-3}})
    )
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    named = dict(loss.named_parameters())
    assert len(rates) == len(named)
    assert rates[id(named["log_alpha"])] == 1e-4
    assert {rates[id(each)] for name, each in named.items() if name.startswith("actor")} == {1e-3}
    assert {rates[id(each)] for name, each in named.items() if name.startswith("qvalue")} == {1e-2}
    assert parameter_groups(loss, {}) == list(loss.parameters())


def test_a_group_without_a_parameter_is_refused_and_those_there_are_are_named():
    loss = built("algo=sac", "env=pendulum")[-1]
    with pytest.raises(UserError, match="actor_network or log_alpha or qvalue_network"):
        parameter_groups(loss, {"mixer": {"lr": 1e-4}})
