"""What every off-policy loss regresses on, from the environment to the loss, against the same by hand.

Episodes of :class:`~tests.fakes.probe_envs.ClockworkEnv` follow from their observations. Of a minibatch
the tests read only observations and actions; rewards, ends and next observations are worked out anew.
"""

from functools import partial

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.modules import DistributionalQValueActor, QValueActor
from torchrl.objectives import DiscreteSACLoss, LossModule, REDQLoss, TQCLoss

import hydrl.training.learner
from hydrl.config.schema import Loss
from hydrl.losses.offline import DiscreteCQLLoss
from tests.conftest import settings
from tests.fakes.probe_envs import (
    cases,
    following,
    fresh,
    imitates,
    judges,
    overrides_of,
    small,
    supplied,
    watch,
)

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
DATA = {"total_frames": 800}
slow = partial(pytest.param, marks=pytest.mark.slow)
LATER = ["cql", "iql_discrete"]
# Work out targets of sequences, models and distributions: experience/test_sequences.py and losses/:
# test_dreamer.py, test_ensemble.py, test_categorical_sac.py, test_value_based.py.
NO_VALUES = ["r2d2", "munchausen_dqn", "qr_dqn", "dreamer_v3", "mpc", "simba_v2", "xqc", "flash_sac"]
CASES = [(*case, ()) for case in cases() if not (fresh(case[0]) or imitates(case[0]) or case[0] in NO_VALUES)]
CASES = [slow(*case) if case[0] in LATER else case for case in CASES]
CASES += [
    slow("dqn", "discrete", ("loss.module.double_dqn=false",)),
    ("dqn", "discrete", ("minibatches.n_steps=3",)),
    slow("dqn", "discrete", ("loss=c51", "actor=distributional")),
    # As many atoms as rows in a minibatch.
    ("dqn", "discrete", ("loss=c51", "actor=distributional", "actor.atoms=4", "minibatches.n_steps=3")),
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
    if isinstance(network, DistributionalQValueActor):
        atoms = len(network.support)
        net = nn.Sequential(Known(2 * atoms), nn.Unflatten(-1, (atoms, 2)))
        return DistributionalQValueActor(
            net, network.support, in_keys=network.in_keys[:1], spec=network.spec["action"]
        )
    if isinstance(network, QValueActor):
        return QValueActor(Known(2), in_keys=network.in_keys[:1], spec=network.spec)
    *_, last = network.parameters()
    values = last.numel()  # one, a choice's each, or quantiles
    return TensorDictModule(Known(values), in_keys=network.in_keys, out_keys=network.out_keys)


@pytest.fixture
def known_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network that judges is of known values, drawn at random and others in the target network."""
    make_loss = hydrl.training.learner.make_loss

    def make(module, parts, action_spec, networks, *args):
        known_ones = [networks[argument] for argument in judges(networks)]
        parts = {part: known(each) if part in known_ones else each for part, each in parts.items()}
        loss = make_loss(module, parts, action_spec, networks, *args)
        for argument in judges(networks):
            for parameters in (f"{argument}_params", f"target_{argument}_params"):
                for key, each in getattr(loss, parameters).items(True, True):
                    if key[-1] in ("weight", "bias"):
                        each.data.normal_()
        return loss

    monkeypatch.setattr(hydrl.training.learner, "make_loss", make)


def values(parameters: TensorDictBase, observation: Tensor) -> Tensor:
    """``[critics, rows, outputs]`` of observations ``[rows, 2]``."""
    leaves = {key[-1]: each.detach() for key, each in parameters.items(True, True) if "support" not in key}
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


def returns(observation: Tensor, n_steps: int) -> tuple[Tensor, Tensor, Tensor, set[str]]:
    """The discounted rewards of so many steps, and what is bootstrapped where no end was reached.

    Returns:
        ``[rows]`` rewards, ``[rows]`` discounts of what follows, 0 after an end, ``[rows, 2]`` the
        observations that follow, and which kinds of rows there are.
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
    return rewards, ~ended * GAMMA**steps, observation, {kind for kind, rows in kinds.items() if rows.any()}


def squared(
    loss: LossModule, chosen: Loss, minibatch: TensorDictBase, n_steps: int
) -> tuple[Tensor, set[str]]:
    """The squared distance of values to their targets, summed over critics, ``[rows]``; the kinds of rows.

    Of quantiles, it is what :func:`quantile_error` makes of them.
    """
    first, *_ = judges(chosen.networks)
    rewards, discounts, after, kinds = returns(minibatch["observation"], n_steps)
    target = rewards + discounts * worth(loss, chosen, after)
    said = values(getattr(loss, f"{first}_params"), minibatch["observation"])
    if isinstance(loss, TQCLoss):
        return quantile_error(said, target), kinds
    said = (said * minibatch["action"]).sum(-1) if said.shape[-1] > 1 else said.squeeze(-1)
    errors = (said - target).square() / (2 if isinstance(loss, DiscreteCQLLoss) else 1)
    return errors.mean(0) if isinstance(loss, REDQLoss) else errors.sum(0), kinds


def crossed(
    loss: LossModule, chosen: Loss, minibatch: TensorDictBase, n_steps: int
) -> tuple[Tensor, set[str]]:
    """The cross-entropy of C51's projected target to what is said, ``[rows]``; the kinds of rows."""
    support = loss.value_network_params["support"]

    def said(parameters: TensorDictBase, observation: Tensor) -> Tensor:
        scores = values(parameters, observation).reshape(len(observation), -1, 2)
        return scores.log_softmax(1).movedim(1, -1)  # [rows, actions, atoms]

    def of(action: Tensor, distributions: Tensor) -> Tensor:
        return distributions[torch.arange(len(action)), action]

    rewards, discounts, after, kinds = returns(minibatch["observation"], n_steps)
    greedy = (said(loss.value_network_params, after).exp() @ support).argmax(-1)
    following = of(greedy, said(loss.target_value_network_params, after)).exp()
    reached = (rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * support).clamp(support[0], support[-1])
    # What lies between two atoms falls to both, to the nearer one more.
    near = (1 - (reached.unsqueeze(-1) - support).abs() / support.diff()[0]).clamp(0)
    target = (following.unsqueeze(-1) * near).sum(1)
    now = of(minibatch["action"].argmax(-1), said(loss.value_network_params, minibatch["observation"]))
    return -(target * now).sum(-1), kinds


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
    overrides = [*overrides_of(algo, actions, "Clockwork-v0"), *changes]
    overrides = supplied(small(overrides, all=NUMBERS, data=DATA), run)
    chosen, kinds, errors = settings(*overrides), set(), []
    n_steps = chosen.minibatches.get("n_steps", 1)
    by_hand = crossed if "DistributionalDQNLoss" in chosen.loss.module["_target_"] else squared

    def before(loss, minibatch):
        error, found = by_hand(loss, chosen.loss, minibatch, n_steps)
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
