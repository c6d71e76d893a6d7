"""Quantile regression, Munchausen DQN and PQN against their papers' equations, row by row."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Categorical, OneHot

from hydrl.errors import UserError
from hydrl.experience.minibatches import estimate_advantages
from hydrl.losses.value_based import MunchausenDQNLoss, PQNLoss, QuantileDQNLoss
from hydrl.networks import heads
from hydrl.networks.layers import Layers

GAMMA = 0.5


def q_network(spec, quantiles: int | None):
    """A linear Q-network of observations ``[2]`` and two actions."""
    layers = Layers([], "ReLU", None, 2)
    head = heads.q_value(spec) if quantiles is None else heads.quantile_values(spec, quantiles, dueling=False)
    network = head.build(layers, ["observation"])
    network(TensorDict(observation=torch.zeros(1, 2), batch_size=[1]))
    return network


def make(module, spec, quantiles: int | None = None, **options):
    """A loss with random weights, others in the target network."""
    torch.manual_seed(0)
    loss = module(q_network(spec, quantiles), action_space=spec, **options)
    loss.make_value_estimator(gamma=GAMMA)
    for params in (loss.value_network_params, loss.target_value_network_params):
        for value in params.values(True, True):
            value.data.normal_()
    return loss


def rows(spec) -> TensorDict:
    """Four transitions, the first of which ends."""
    torch.manual_seed(1)
    terminated = torch.tensor([[True], [False], [False], [False]])
    following = {"observation": torch.randn(4, 2), "reward": torch.randn(4, 1), "terminated": terminated}
    action = spec.encode([0, 1, 1, 0]) if isinstance(spec, OneHot) else torch.tensor([0, 1, 1, 0])
    return TensorDict(
        {"observation": torch.randn(4, 2), "action": action, "next": {**following, "done": terminated}}, [4]
    )


def outputs(params, observation: Tensor) -> Tensor:
    """``[rows, outputs]`` of the linear network."""
    weights = {key[-1]: value.detach() for key, value in params.items(True, True)}
    return nn.functional.linear(observation, weights["weight"], weights["bias"])


SPECS = pytest.mark.parametrize("spec", [OneHot(2), Categorical(2)], ids=["one-hot", "integer"])


@SPECS
@pytest.mark.parametrize("double", [True, False])
def test_quantiles_regress_on_all_quantiles_of_the_target(spec, double):
    loss, minibatch = make(QuantileDQNLoss, spec, 3, double_dqn=double), rows(spec)
    now = outputs(loss.value_network_params, minibatch["observation"]).reshape(4, 3, 2)
    after = minibatch["next", "observation"]
    following = outputs(loss.target_value_network_params, after).reshape(4, 3, 2)
    choosing = outputs(loss.value_network_params, after).reshape(4, 3, 2) if double else following
    by_hand, priorities = [], []
    for row, action in enumerate([0, 1, 1, 0]):
        best = choosing[row].mean(0).argmax()
        goes_on = 0.0 if row == 0 else GAMMA
        targets = minibatch["next", "reward"][row] + goes_on * following[row, :, best]
        total, distances = 0.0, []
        for index, quantile in enumerate(now[row, :, action].tolist()):
            level = (index + 0.5) / 3
            for target in targets.tolist():
                miss = target - quantile
                distances.append(abs(miss))
                huber = miss**2 / 2 if abs(miss) <= 1 else abs(miss) - 0.5
                total += (level if miss >= 0 else 1 - level) * huber / 3
        by_hand.append(total)
        priorities.append(sum(distances) / 9)
    assert loss(minibatch)["loss"].item() == pytest.approx(sum(by_hand) / 4, rel=1e-5)
    assert minibatch["td_error"].squeeze(-1).tolist() == pytest.approx(priorities, rel=1e-5)


@SPECS
def test_munchausen_adds_the_log_probability_and_bootstraps_from_a_soft_policy(spec):
    temperature, share, lowest = 0.5, 0.9, -0.3
    loss = make(
        MunchausenDQNLoss, spec, temperature=temperature, share=share, lowest=lowest, loss_function="l2"
    )
    minibatch = rows(spec)
    now = outputs(loss.value_network_params, minibatch["observation"])
    target_now = outputs(loss.target_value_network_params, minibatch["observation"])
    following = outputs(loss.target_value_network_params, minibatch["next", "observation"])
    by_hand, clipped = [], []
    for row, action in enumerate([0, 1, 1, 0]):
        policy, next_policy = ((values[row] / temperature).softmax(-1) for values in (target_now, following))
        log_prob = temperature * math.log(policy[action])
        clipped.append(log_prob < lowest)
        soft = (next_policy * (following[row] - temperature * next_policy.log())).sum().item()
        target = minibatch["next", "reward"][row].item() + share * max(log_prob, lowest)
        target += 0.0 if row == 0 else GAMMA * soft
        by_hand.append((now[row, action].item() - target) ** 2)
    assert {*clipped} == {True, False}
    assert loss(minibatch)["loss"].item() == pytest.approx(sum(by_hand) / 4, rel=1e-5)


def test_invalid_actions_take_no_part_in_a_soft_maximum():
    loss = make(MunchausenDQNLoss, OneHot(2), temperature=0.03)
    values = torch.tensor([[0.5, torch.finfo(torch.float32).min]])
    assert loss.soft_maximum(values).item() == pytest.approx(0.5, rel=1e-6)


@SPECS
def test_pqn_regresses_on_lambda_returns_of_the_greedy_values(spec):
    """R_t = r_t + gamma ((1 - lambda) max Q(s') + lambda R_t+1), cut at ends; actions stay the ones taken."""
    lmbda = 0.75
    torch.manual_seed(0)
    loss = PQNLoss(q_network(spec, None), action_space=spec)
    loss.make_value_estimator(gamma=GAMMA, lmbda=lmbda)
    batch = rows(spec)
    batch["next", "done"] = torch.tensor([[True], [False], [True], [False]])  # the third is truncated
    batch["chosen_action_value"] = torch.full((4, 1), 7.0)  # as the policy wrote it while it acted
    taken = batch["action"].clone()
    greedy = outputs(loss.value_network_params, batch["next", "observation"]).max(-1).values.tolist()
    rewards, returns, following = batch["next", "reward"].squeeze(-1).tolist(), [0.0] * 4, greedy[3]
    for row in (3, 2, 1, 0):
        ended = row in (0, 2)
        bootstrap = greedy[row] if ended else (1 - lmbda) * greedy[row] + lmbda * following
        returns[row] = following = rewards[row] + (0.0 if row == 0 else GAMMA * bootstrap)
    estimate_advantages(batch, loss)
    assert batch["value_target"].squeeze(-1).tolist() == pytest.approx(returns, rel=1e-5)
    assert torch.equal(batch["action"], taken)
    predicted = outputs(loss.value_network_params, batch["observation"])
    errors = [(predicted[row, action].item() - returns[row]) ** 2 for row, action in enumerate([0, 1, 1, 0])]
    assert loss(batch)["loss"].item() == pytest.approx(sum(errors) / 4, rel=1e-5)


def test_an_actor_without_quantiles_is_refused():
    with pytest.raises(UserError, match=r"^actor: it writes no quantiles\. Write actor=quantile\."):
        QuantileDQNLoss(q_network(OneHot(2), None))
