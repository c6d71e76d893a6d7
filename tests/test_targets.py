"""What every off-policy loss regresses on, from the environment to the loss, against the same by hand.

An episode of :class:`probes.Clockwork` follows from what is observed. Of a minibatch nothing but observations
and actions is believed here: rewards, ends and what comes next are worked out anew.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from conftest import settings
from probes import cases, following, judges, learns_from, overrides_of, small, supplied, watch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import DiscreteSACLoss, LossModule, REDQLoss, TQCLoss

import hydrl.parts.losses
from hydrl.config.settings import Loss

GAMMA = 0.9
NUMBERS = {
    "total_frames": 600,
    "collector.num_envs": 4,
    "collector.frames_per_batch": 20,
    "collector.init_random_frames": 20,
    "minibatches.size": 4,  # a wrong row among them is not averaged away
    "minibatches.updates": 4,
    "minibatches.warmup_frames": 20,
    "target.tau": 0.1,
    "loss.module.loss_function": "l2",
    "loss.module.alpha_init": 1e-12,  # the entropy in a target is drawn at random: nothing of it is left
    "loss.module.min_alpha": 1e-12,
    "loss.value_estimator.gamma": GAMMA,
}
DATA = {"total_frames": 2_000}
CASES = [
    (*case, ())
    for case in cases()
    if learns_from(settings(*overrides_of(*case, "Clockwork-v0")).model_dump()) != "fresh"
]
CASES += [
    ("dqn", "discrete", ("loss.module.double_dqn=false",)),
    ("dqn", "discrete", ("minibatches.n_steps=3",)),
    ("td3", "continuous", ("minibatches.n_steps=4", "buffer=prioritized")),
]


class Known(nn.Module):
    """Values linear in the observation; every action is worth the same but where each has its own output."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(values, 2)), nn.Parameter(torch.zeros(values))

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        return nn.functional.linear(observation, self.weight, self.bias)


def known(network: TensorDictModuleBase) -> TensorDictModuleBase:
    """A network of known values that takes the place of one that judges."""
    if isinstance(network, QValueActor):
        return QValueActor(Known(2), in_keys=network.in_keys[:1], spec=network.spec)
    values = [each for each in network.parameters()][-1].numel()  # one, a choice's each, or quantiles
    return TensorDictModule(Known(values), in_keys=network.in_keys, out_keys=network.out_keys)


@pytest.fixture
def known_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network that judges is of known values, drawn at random and others in the target network."""
    make_loss = hydrl.parts.losses.make_loss

    def make(module, parts, action_spec, networks, *args):
        known_ones = [networks[argument] for argument in judges(networks)]
        parts = {part: known(each) if part in known_ones else each for part, each in parts.items()}
        loss = make_loss(module, parts, action_spec, networks, *args)
        for argument in judges(networks):
            for parameters in (f"{argument}_params", f"target_{argument}_params"):
                getattr(loss, parameters).apply(lambda each: each.data.normal_())
        return loss

    monkeypatch.setattr(hydrl.parts.losses, "make_loss", make)


def values(parameters: TensorDictBase, observation: Tensor) -> Tensor:
    """``[critics, rows, outputs]`` of observations ``[rows, 2]``."""
    leaves = {key[-1]: each.detach() for key, each in parameters.items(True, True)}
    said = torch.einsum("...oi,ri->...ro", leaves["weight"], observation) + leaves["bias"].unsqueeze(-2)
    return said if parameters.batch_dims else said.unsqueeze(0)


def worth(loss: LossModule, chosen: Loss, observation: Tensor) -> Tensor:
    """What a target counts for the states it goes on from, ``[rows]``: the least that a critic says.

    Of quantiles ``[quantiles, rows]``, of all critics together without the greatest.
    """
    *_, argument = judges(chosen.networks)  # a state's own value where there is one
    online, target = getattr(loss, f"{argument}_params"), getattr(loss, f"target_{argument}_params")
    now, target = values(online, observation), values(target, observation)
    if isinstance(loss, TQCLoss):
        dropped = chosen.module["top_quantiles_to_drop_per_net"] * len(target)
        return target.movedim(-1, 0).flatten(0, 1).sort(0).values[:-dropped]
    if isinstance(loss, DiscreteSACLoss):  # expected of what the policy chooses
        with torch.no_grad(), loss.actor_network_params.to_module(loss.actor_network):
            chances = loss.actor_network.get_dist(TensorDict(observation=observation)).probs
        return (chances * target.amin(0)).sum(-1)
    if isinstance(loss, REDQLoss):  # of the critics that it is about to draw
        with torch.random.fork_rng(devices=[]):
            target = target[torch.randperm(len(target))[: loss.sub_sample_len]]
    greedy = (now if chosen.module.get("double_dqn") else target).argmax(-1, keepdim=True)
    return target.gather(-1, greedy).squeeze(-1).amin(0)


def targets(observation: Tensor, n_steps: int, worth: Callable[[Tensor], Tensor]) -> tuple[Tensor, set[str]]:
    """The discounted rewards of so many steps, and what is bootstrapped where no end was reached.

    Returns:
        ``[rows]``, and which kinds of rows there are.
    """
    runs = torch.ones(len(observation), dtype=torch.bool)
    ended, out_of_time, steps = ~runs, ~runs, torch.zeros(len(observation))
    rewards = torch.zeros(len(observation))
    for _ in range(n_steps):
        after, reward, ends, time_is_up = following(observation)
        rewards += runs * GAMMA**steps * reward
        steps += runs
        ended, out_of_time = ended | (runs & ends), out_of_time | (runs & time_is_up)
        observation, runs = torch.where(runs.unsqueeze(-1), after, observation), runs & ~(ends | time_is_up)
    kinds = {"ended": ended & ~out_of_time, "out of time": out_of_time & ~ended, "both": ended & out_of_time}
    kinds |= {"runs": runs, "short": (steps < n_steps)}
    found = {kind for kind, rows in kinds.items() if rows.any()}
    return rewards + ~ended * GAMMA**steps * worth(observation), found


def quantile_error(said: Tensor, wanted: Tensor) -> Tensor:
    """The quantile Huber loss (Dabney et al. 2018), summed over critics, pair by pair.

    Args:
        said: ``[critics, rows, quantiles]``.
        wanted: ``[targets, rows]``.
    """
    total = torch.zeros(said.shape[1])
    for critic in said.unbind(0):
        for number, quantile in enumerate(critic.unbind(-1)):
            level = (number + 0.5) / critic.shape[-1]
            miss = wanted - quantile
            huber = torch.where(miss.abs() <= 1, miss.square() / 2, miss.abs() - 0.5)
            total += (torch.where(miss < 0, 1 - level, level) * huber).mean(0) / critic.shape[-1]
    return total


@pytest.mark.parametrize(("algo", "actions", "changes"), CASES)
def test_the_target_stops_at_an_end_and_goes_on_at_a_time_limit(
    algo, actions, changes, run, known_networks, monkeypatch
):
    overrides = small(overrides_of(algo, actions, "Clockwork-v0"), all=NUMBERS, data=DATA)
    overrides = supplied([*overrides, *changes], run)
    chosen, kinds, errors = settings(*overrides), set(), []
    first, *_ = judges(chosen.loss.networks)
    n_steps = chosen.minibatches.get("n_steps", 1)

    def before(loss, minibatch):
        observation = minibatch["observation"]
        by_hand, found = targets(observation, n_steps, partial(worth, loss, chosen.loss))
        said = values(getattr(loss, f"{first}_params"), observation)
        if isinstance(loss, TQCLoss):
            error = quantile_error(said, by_hand)
        else:
            chosen_one = minibatch["action"] if said.shape[-1] > 1 else 1
            error = ((said * chosen_one).sum(-1) - by_hand).square().sum(0)
        if isinstance(loss, REDQLoss):
            error = error / len(said)  # means over critics where the others sum
        weight = minibatch.get("priority_weight", torch.ones(len(error))).reshape(-1)
        expected = (error * weight).sum() / weight.sum()
        kinds.update(found)

        def after(losses):
            term = next(each for each in ("loss_qvalue", "loss_value", "loss") if each in losses)
            errors.append(abs(losses[term].item() / expected.item() - 1))

        return after

    watch(monkeypatch, before)
    run(*overrides)
    assert len(errors) >= 100
    assert max(errors) < 1e-5
    assert kinds == {"ended", "out of time", "both", "runs", *(["short"] if n_steps > 1 else [])}
