"""SAC with distributions of returns against the same by hand: targets, batches, modes and scales."""

import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal

from hydrl.errors import UserError
from hydrl.experience.scaled_rewards import ReturnStatistics
from hydrl.losses.categorical_sac import CategoricalSACLoss, project
from hydrl.networks.blocks import BatchNorm
from hydrl.networks.heads import ReturnDistribution

GAMMA, ALPHA = 0.5, 0.2


class Pairs(nn.Module):
    """Logits ``[..., atoms]`` of observation and action, through ``norm``."""

    def __init__(self, atoms: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.linear = norm or nn.Identity(), nn.Linear(3, atoms)
        self.returns = ReturnDistribution(1.0, atoms, None)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.returns(self.linear(self.norm(torch.cat([observation, action], -1))))


def make(atoms: int = 5, norm: nn.Module | None = None, **options) -> CategoricalSACLoss:
    """A loss over an actor of one action and two critics of random weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2), NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    spec = Bounded(-1.0, 1.0, (1,))
    actor = ProbabilisticActor(
        module, ["loc", "scale"], spec=spec, distribution_class=TanhNormal, return_log_prob=True
    )
    critic = TensorDictModule(
        Pairs(atoms, norm),
        in_keys=["observation", "action"],
        out_keys=["state_action_log_prob", "state_action_value"],
    )
    loss = CategoricalSACLoss(actor, critic, action_spec=spec, alpha_init=ALPHA, **options)
    loss.make_value_estimator(gamma=GAMMA)
    for params in (loss.qvalue_network_params, loss.target_qvalue_network_params):
        for key, value in params.items(True, True):
            if "linear" in key:
                value.data.normal_()
    return loss


def rows(count: int = 4) -> TensorDict:
    """Transitions: one terminated, one whose reward puts all returns beyond the support."""
    torch.manual_seed(1)
    reward, terminated = torch.full((count, 1), 0.25), torch.zeros(count, 1, dtype=torch.bool)
    terminated[0], reward[1] = True, 9.0
    following = {"observation": torch.randn(count, 2), "reward": reward, "terminated": terminated}
    following |= {"done": terminated}
    return TensorDict(
        {"observation": torch.randn(count, 2), "action": torch.rand(count, 1), "next": following}, [count]
    )


def distributions(loss: CategoricalSACLoss, which: str, observation: Tensor, action: Tensor) -> list[Tensor]:
    """Probabilities ``[rows, atoms]`` of both critics, by their weights."""
    params = getattr(loss, f"{which}qvalue_network_params")["module", "linear"]
    pairs = torch.cat([observation, action], -1)
    critics = zip(params["weight"].detach(), params["bias"].detach(), strict=True)
    return [(pairs @ weight.T + bias).softmax(-1) for weight, bias in critics]


def test_the_loss_is_the_cross_entropy_to_the_projected_target_of_the_smaller_critic(monkeypatch):
    loss, minibatch = make(), rows()
    drawn = torch.tensor([[0.3], [-0.2], [0.9], [0.1]])
    log_prob = torch.tensor([0.7, -0.4, 1.5, -2.0])
    monkeypatch.setattr(
        "hydrl.losses.categorical_sac.compute_rsample_log_prob", lambda distribution: (drawn, log_prob)
    )
    value, metadata = loss.qvalue_v2_loss(minibatch)

    support, following = [-1.0, -0.5, 0.0, 0.5, 1.0], minibatch["next"]
    now = distributions(loss, "", minibatch["observation"], minibatch["action"])
    then = distributions(loss, "target_", following["observation"], drawn)
    by_hand = []
    for row in range(4):
        means = [sum(p * z for p, z in zip(critic[row].tolist(), support, strict=True)) for critic in then]
        target = [0.0] * 5
        for probability, z in zip(then[means.index(min(means))][row].tolist(), support, strict=True):
            goes_on = 0.0 if following["terminated"][row] else GAMMA
            reached = following["reward"][row].item() + goes_on * (z - ALPHA * log_prob[row].item())
            position = (min(max(reached, -1.0), 1.0) + 1) / 0.5
            below = min(math.floor(position), 3)
            target[below] += probability * (below + 1 - position)
            target[below + 1] += probability * (position - below)
        assert sum(target) == pytest.approx(1, abs=1e-5)
        if row == 0:  # terminated: the reward alone, half way between 0 and 0.5
            assert target == pytest.approx([0, 0, 0.5, 0.5, 0], abs=1e-6)
        if row == 1:  # beyond the support
            assert target == pytest.approx([0, 0, 0, 0, 1], abs=1e-6)
        crossed = [-sum(t * math.log(p) for t, p in zip(target, q[row].tolist(), strict=True)) for q in now]
        by_hand.append(crossed)
    assert value.item() == pytest.approx(np.sum(by_hand, -1).mean(), rel=1e-5)
    torch.testing.assert_close(metadata["td_error"], torch.tensor(by_hand).mean(-1))


def test_after_several_steps_the_discount_is_its_power():
    loss, minibatch = make(), rows().set("steps_to_next_obs", torch.tensor([[1], [2], [3], [1]]))
    minibatch["next", "reward"][:] = 0.0
    reached = loss.reach_returns(minibatch, torch.zeros(4))
    torch.testing.assert_close(reached[2], GAMMA**3 * loss.support)
    assert reached[0].tolist() == [0.0] * 5


def test_returns_on_an_atom_stay_there():
    support = torch.linspace(-1, 1, 5)
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.15, 0.25]])
    torch.testing.assert_close(project(support.unsqueeze(0), probabilities, support), probabilities)


@pytest.mark.parametrize("joint", [False, True])
def test_a_joint_batch_is_normalised_as_one_and_a_batch_of_its_own_alone(joint, monkeypatch):
    """The statistics after a pass tell which rows it read: both kinds together, or one alone."""
    loss, minibatch = make(norm=BatchNorm(3, momentum=1.0), joint_batch=joint), rows()
    drawn = torch.full((4, 1), 0.5)
    monkeypatch.setattr(
        "hydrl.losses.categorical_sac.compute_rsample_log_prob", lambda dist: (drawn, torch.zeros(4))
    )
    loss.train()
    loss.qvalue_network.train()
    loss.qvalue_v2_loss(minibatch)
    now = torch.cat([minibatch["observation"], minibatch["action"]], -1)
    then = torch.cat([minibatch["next", "observation"], drawn], -1)
    mean = loss.qvalue_network_params["module", "norm", "running_mean"]
    target_mean = loss.target_qvalue_network_params["module", "norm", "running_mean"]
    expected = torch.cat([now, then]).mean(0) if joint else now.mean(0)
    torch.testing.assert_close(mean, expected.expand(2, 3))
    expected = torch.cat([now, then]).mean(0) if joint else then.mean(0)
    torch.testing.assert_close(target_mean, expected.expand(2, 3))


def test_the_actor_reads_the_critics_running_statistics_and_changes_none():
    loss, minibatch = make(norm=BatchNorm(3), joint_batch=True), rows()
    loss.qvalue_network.train()
    before = loss.qvalue_network_params["module", "norm", "running_mean"].clone()
    values = []
    hook = loss.qvalue_network.register_forward_hook(lambda module, *_: values.append(module.training))
    loss.actor_loss(minibatch)
    hook.remove()
    assert set(values) == {False}
    assert loss.qvalue_network.training
    assert torch.equal(loss.qvalue_network_params["module", "norm", "running_mean"], before)


@pytest.mark.parametrize("joint", [False, True])
def test_the_actor_s_batch_is_of_current_observations_or_of_next_ones_too(joint, monkeypatch):
    """The policy improves on current observations alone; the temperature is learned on all that were read."""
    loss, minibatch = make(joint_actor_batch=joint), rows()
    read = []
    sample = torch.tensor([[0.3], [-0.2], [0.9], [0.1], [0.5], [0.6], [0.7], [0.8]])
    log_prob = torch.tensor([0.7, -0.4, 1.5, -2.0, 3.0, 3.0, 3.0, 3.0])

    def drawn(dist: TanhNormal) -> tuple[Tensor, Tensor]:
        read.append(len(dist.loc))
        return sample[: len(dist.loc)], log_prob[: len(dist.loc)]

    for module in ("hydrl.losses.categorical_sac", "torchrl.objectives.sac"):
        monkeypatch.setattr(f"{module}.compute_rsample_log_prob", drawn)
    value, metadata = loss.actor_loss(minibatch)
    assert read == [8 if joint else 4]
    torch.testing.assert_close(metadata["log_prob"], log_prob[: read[0]])
    probabilities = distributions(loss, "", minibatch["observation"], sample[:4])
    means = torch.stack([critic @ loss.support for critic in probabilities])
    torch.testing.assert_close(value, (ALPHA * log_prob[:4] - means.min(0).values).mean())


def test_the_target_entropy_is_a_number_for_each_dimension():
    assert make(entropy_per_dimension=-0.48).target_entropy.item() == pytest.approx(-0.48)


def test_a_critic_without_a_support_is_refused():
    loss = make()
    plain = TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["state_action_value"])
    with pytest.raises(UserError, match=r"^critic: it has no support .* critic=categorical\."):
        CategoricalSACLoss(loss.actor_network, plain, action_spec=Bounded(-1.0, 1.0, (1,)))


def test_a_narrow_start_is_narrow_and_an_even_one_even():
    even, narrow = ReturnDistribution(5.0, 101, None), ReturnDistribution(5.0, 101, 0.5)
    log_prob, mean = even(torch.zeros(1, 101))
    torch.testing.assert_close(log_prob.exp(), torch.full((1, 101), 1 / 101))
    probability = narrow(torch.zeros(1, 101))[0].exp()[0]
    deviation = (probability * narrow.support.square()).sum().sqrt().item()
    assert deviation == pytest.approx(0.5, abs=0.2)
    assert mean.abs().item() < 1e-6


def test_the_scale_is_that_of_all_discounted_returns_and_bounds_the_largest():
    """Two environments; the first ends after two steps. Returns start anew after an end, not before it."""
    statistics = ReturnStatistics(0.5)
    reward = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 8.0]]).unsqueeze(-1)
    done = torch.tensor([[0, 1, 0], [0, 0, 0]], dtype=torch.bool).unsqueeze(-1)
    statistics.add(TensorDict({"next": {"reward": reward, "done": done}}, [2, 3]))
    statistics.add(TensorDict({"next": {"reward": reward[:, :1], "done": done[:, :1]}}, [2, 1]))
    returns = [1.0, 2.5, 4.0, 3.0, 0.0, 0.0, 8.0, 4.0]
    assert statistics.scale(None) == pytest.approx(np.std(returns), rel=1e-6)
    assert statistics.scale(2.0) == 4.0
    restored = ReturnStatistics(0.5)
    restored.load_state_dict(statistics.state_dict())
    assert (restored.scale(None), restored.returns.tolist()) == (statistics.scale(None), [3.0, 4.0])
