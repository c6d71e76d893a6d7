"""Several choices at once, of unequal numbers of options: what is drawn, how likely, how far apart."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Categorical, kl_divergence
from torchrl.data import MultiCategorical
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.networks import actors, heads
from hydrl.networks.heads import independent_categoricals
from tests.conftest import loss_of, settings
from tests.fakes.envs import CountingEnv

SIZES = [2, 1, 5, 3]


@pytest.fixture
def table():
    """What the head knows of ``SIZES``."""
    made = heads.multi_categorical(MultiCategorical(SIZES)).wrap.keywords["distribution_kwargs"]
    assert made["logit_indices"].shape == (4, 5)
    return made


def by_hand(logits: torch.Tensor) -> list[Categorical]:
    """A distribution for each choice."""
    return [Categorical(logits=each) for each in logits.split(SIZES, -1)]


def drawn(*shape: int) -> torch.Tensor:
    return 3 * torch.randn(*shape, sum(SIZES), dtype=torch.float64, requires_grad=True)


def test_log_probability_entropy_and_divergence_are_the_sums_over_the_choices(table):
    torch.manual_seed(0)
    ours, theirs = drawn(6, 4), drawn(6, 4)
    dist, other = independent_categoricals(ours, **table), independent_categoricals(theirs, **table)
    action = dist.sample()
    assert action.shape == (6, 4, 4)
    pairs = [*zip(by_hand(ours), by_hand(theirs), strict=True)]
    log_prob = sum(one.log_prob(each) for (one, _), each in zip(pairs, action.unbind(-1), strict=True))
    assert torch.allclose(dist.log_prob(action), log_prob, atol=1e-6)
    assert torch.allclose(dist.entropy(), sum(one.entropy() for one, _ in pairs), atol=1e-6)
    assert torch.allclose(kl_divergence(dist, other), sum(kl_divergence(*pair) for pair in pairs), atol=1e-6)
    assert torch.equal(dist.mode, torch.stack([one.mode for one, _ in pairs], -1))


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_the_divergence_are_finite_and_those_by_hand_in_both_directions(turned, table):
    torch.manual_seed(0)
    logits = [drawn(8), drawn(8)]
    found, expected = [], []
    for made, into in ((partial(independent_categoricals, **table), found), (by_hand, expected)):
        one, other = map(made, reversed(logits) if turned else logits)
        pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
        into += torch.autograd.grad(sum(kl_divergence(*pair).sum() for pair in pairs), logits)
    for ours, hand in zip(found, expected, strict=True):
        assert ours.abs().sum() > 0
        assert torch.allclose(ours, hand, atol=1e-6)


def test_each_option_is_drawn_as_often_as_it_is_likely_and_none_that_is_not_there(table):
    torch.manual_seed(0)
    logits = torch.randn(sum(SIZES))
    action = independent_categoricals(logits, **table).sample((20_000,))
    for choice, (dist, size) in enumerate(zip(by_hand(logits), SIZES, strict=True)):
        often = action[:, choice].bincount(minlength=size) / len(action)
        assert torch.allclose(often, dist.probs, atol=0.02)


@pytest.mark.parametrize("builder", [actors.categorical, actors.stochastic])
@pytest.mark.parametrize(("actions", "logits"), [("several", 5), ("binary", 8)])
def test_an_actor_of_several_choices_has_a_logit_for_each_option(builder, actions, logits):
    env = envs.make_env(partial(CountingEnv, actions=actions), [], num_envs=2)
    actor = builder(env, num_cells=[16], activation="Tanh", init="orthogonal")
    assert sum(p.numel() for p in actor.parameters()) == (3 * 16 + 16) + (16 * logits + logits)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        out = actor(TensorDict({"observation": torch.randn(500, 3)}, [500]))
    assert out["logits"].shape == (500, logits)
    assert out["action_log_prob"].shape == (500,)
    assert MultiCategorical([2, 3] if logits == 5 else [2] * 4, (500, logits // 2)).is_in(out["action"])
    entropy = actor.get_dist(out).entropy()
    even = MultiCategorical([2, 3]).nvec if logits == 5 else torch.full((4,), 2)
    assert torch.allclose(entropy, even.log().sum(), atol=1e-2)  # at first all are as likely


def test_the_penalty_of_kl_penalty_is_the_divergence_from_the_policy_that_acted():
    """By the logits that a batch keeps."""
    chosen = settings(
        "algo=ppo", "env=custom", "env._target_=tests.fakes.envs.CountingEnv", "loss=kl_penalty"
    )
    env = envs.make_env(partial(CountingEnv, actions="several"), [], num_envs=2)
    actor = chosen.build("actor")(env)
    loss = loss_of(chosen, env, actor=actor, critic=chosen.build("critic")(env, actor))
    with torch.no_grad():
        batch = env.rollout(8, actor, break_when_any_done=False).reshape(-1)
        loss.value_estimator(batch)
        for parameter in actor.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        now = actor(batch.clone())["logits"]
        found = loss(batch.clone())["kl"]
    apart = [
        kl_divergence(Categorical(logits=one), Categorical(logits=other))
        for one, other in zip(batch["logits"].split([2, 3], -1), now.split([2, 3], -1), strict=True)
    ]
    assert min(each.min() for each in apart) > 1e-5
    assert found.mean() == pytest.approx(sum(apart).mean().item(), abs=1e-6)
