"""Recurrent policies: what is acted, learned and judged is what stepping through each episode alone gives."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import StepCounter
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import A2CLoss, ClipPPOLoss

from hydrl import envs
from hydrl.errors import UserError
from hydrl.experience.minibatches import Epochs
from hydrl.losses.build import make_loss
from hydrl.networks import actors, critics
from hydrl.networks.rnn import RecurrentLayer
from hydrl.training.evaluator import PolicyEvaluator
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
GAMMA, LAMBDA, SEQUENCE = 0.9, 0.7, 5


def recurrent(kind="lstm", num_envs=3, time=40):
    """What acts and judges with a memory, and a batch ``[envs, time]`` with ends of both kinds in it."""
    torch.manual_seed(0)
    toy = partial(CountingEnv, short=2, long=9, actions="one_hot")
    make_env = partial(envs.make_env, toy, [partial(StepCounter, max_steps=6)])
    memory = partial(RecurrentLayer, cell=kind, hidden_size=7)
    actor = actors.stochastic(make_env(num_envs=num_envs, seed=0), **NETWORK, rnn=memory)
    env = make_env(num_envs=num_envs, seed=0, policy=actor)
    critic = critics.state_value(env, actor, **{**NETWORK, "in_keys": ["memory"]})
    with torch.no_grad():
        batch = env.rollout(time, actor, break_when_any_done=False)
    batch["frame"] = torch.arange(batch.numel()).reshape(batch.shape)
    inside = batch.reshape(-1, SEQUENCE)["is_init"][:, 1:]
    assert inside.any()
    assert not batch.reshape(-1, SEQUENCE)["is_init"][:, 0].all()
    assert batch["next", "terminated"].any()
    assert batch["next", "truncated"].any()
    return actor, critic, batch


def remembered(actor, batch):
    """By hand, with PyTorch's own module: the memory at each step and at the observation that follows it."""
    (cell,) = (each for each in actor.modules() if isinstance(each, nn.LSTM | nn.GRU))
    now, following = torch.empty(2, *batch.shape, 7)
    for env in range(batch.shape[0]):
        for t in range(batch.shape[1]):
            if batch["is_init"][env, t]:
                state = None
            now[env, t], state = cell(batch["observation"][env, t, None], state)
            following[env, t], _ = cell(batch["next", "observation"][env, t, None], state)
    return now, following


def minibatches(loss, **changes):
    numbers = {"epochs": 1, "size": 4 * SEQUENCE, "advantage": "once", "draw": "epoch", "sequence": SEQUENCE}
    buffer = ReplayBuffer(storage=LazyTensorStorage(120), sampler=SamplerWithoutReplacement())
    return Epochs(buffer, loss, **numbers | changes)


def ppo(actor, critic):
    estimator = {"gamma": GAMMA, "lmbda": LAMBDA, "average_gae": False, "deactivate_vmap": True}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    module, parts = partial(ClipPPOLoss, functional=False), {"actor": actor, "critic": critic}
    return make_loss(module, parts, actor.spec["action"], networks, {}, estimator)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@torch.no_grad()
def test_a_memory_begins_anew_with_each_episode_in_acting_and_in_learning(kind):
    actor, critic, batch = recurrent(kind)
    memory, _ = remembered(actor, batch)
    assert torch.allclose(batch["memory"], memory, atol=1e-6)
    with set_recurrent_mode(True):
        again = actor(batch.reshape(-1, SEQUENCE).exclude("memory", "action"))
    assert torch.allclose(again["memory"].reshape(memory.shape), memory, atol=1e-6)

    loss = ppo(actor, critic)
    for draw in ("epoch", "minibatch"):
        for minibatch in minibatches(loss, draw=draw)(batch.clone()):
            assert minibatch.shape == (4, SEQUENCE)
            assert (minibatch["frame"].diff() == 1).all()
            ratios = loss(minibatch).select("max_ratio", "mean_ratio", "kl_approx")
            assert torch.allclose(torch.stack([*ratios.values()]), torch.tensor([1.0, 1.0, 0.0]), atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@torch.no_grad()
def test_values_are_of_each_episode_alone_and_a_time_limit_bootstraps(kind):
    actor, critic, batch = recurrent(kind)
    value, following = (critic[-1].module(each)[..., 0] for each in remembered(actor, batch))
    (dealt,) = minibatches(ppo(actor, critic), size=120)(batch)
    assert torch.allclose(batch["state_value"][..., 0], value, atol=1e-6)
    assert torch.allclose(batch["next", "state_value"][..., 0], following, atol=1e-6)

    reward, done, ended = (batch["next", key][..., 0].float() for key in ("reward", "done", "terminated"))
    expected, carried = torch.empty_like(value), 0.0
    for t in reversed(range(value.shape[1])):
        delta = reward[:, t] + GAMMA * following[:, t] * (1 - ended[:, t]) - value[:, t]
        expected[:, t] = carried = delta + GAMMA * LAMBDA * (1 - done[:, t]) * carried
    order = dealt["frame"].reshape(-1).argsort()
    assert torch.allclose(dealt["advantage"].reshape(-1)[order], expected.reshape(-1), atol=1e-5)


def test_actor_and_critic_learn_one_memory_together():
    actor, critic, batch = recurrent()
    loss = ppo(actor, critic)
    (minibatch,) = minibatches(loss, size=120)(batch)
    cells = {id(each) for each in (*actor.modules(), *critic.modules()) if isinstance(each, nn.LSTM)}
    assert len(cells) == 1
    names = [name for name, _ in loss.named_parameters()]
    assert sum("weight_hh" in name for name in names) == 1
    parameters = dict(actor.named_parameters())
    (memory,) = (each for name, each in parameters.items() if "weight_hh" in name)
    for term in ("loss_objective", "loss_critic"):
        (gradient,) = torch.autograd.grad(loss(minibatch)[term], memory)
        assert gradient.norm() > 0, term


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_shared_memory_runs_once_and_its_gradient_is_that_of_both(kind):
    actor, critic, batch = recurrent(kind)
    loss = ppo(actor, critic)
    (minibatch,) = minibatches(loss, size=120)(batch)
    (memory,) = {each for each in [*actor.modules(), *critic.modules()] if isinstance(each, RecurrentLayer)}
    runs = []
    memory.module[-1].register_forward_hook(lambda *_: runs.append(1))

    def learned() -> list[torch.Tensor]:
        losses = loss(minibatch.clone())
        total = losses["loss_objective"] + losses["loss_critic"]
        return torch.autograd.grad(total, [*memory.parameters()])

    once = learned()
    assert len(runs) == 1
    memory.shared = False  # by which the critic remembers by itself
    twice = learned()
    assert len(runs) == 3
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
        assert one.abs().max() > 1e-4


def test_evaluation_remembers():
    actor, *_ = recurrent()
    (cell,) = (each for each in actor.modules() if isinstance(each, nn.LSTM))
    given, returned = [], []

    def look(_, arguments, result):
        given.append(arguments[1][0][0])
        returned.append(result[1][0][0])

    cell.register_forward_hook(look)
    make_env = partial(envs.make_env, partial(CountingEnv, short=6, long=6, actions="one_hot"), [StepCounter])
    PolicyEvaluator(make_env, actor, dict, seed=0, max_steps=4)(0, episodes=2)
    assert not given[0].any()
    for before, now in zip(returned[:-1], given[1:], strict=True):
        assert before.abs().sum() > 0
        assert torch.equal(now, before)


@pytest.mark.parametrize("builder", ["tanh_normal", "categorical"])
def test_actors_that_draw_take_a_memory_over_several_entries(builder):
    kind = "continuous" if builder == "tanh_normal" else "integer"
    make_env = partial(envs.make_env, partial(CountingEnv, actions=kind), [StepCounter], num_envs=2)
    network = {**NETWORK, "num_cells": [8, 6], "in_keys": ["observation", "observation"]}
    actor = getattr(actors, builder)(
        make_env(seed=0), **network, rnn=partial(RecurrentLayer, cell="gru", hidden_size=5)
    )
    (cell,) = (each for each in actor.modules() if isinstance(each, nn.GRU))
    assert (cell.input_size, cell.hidden_size) == (6, 5)
    env = make_env(seed=0, policy=actor)
    rollout = env.rollout(5, actor, break_when_any_done=False)
    assert rollout["next", "recurrent_state"].shape == (2, 5, 1, 5)
    spec = env.action_spec_unbatched
    assert spec.expand(2, 5, *spec.shape).is_in(rollout["action"])


def test_what_has_no_memory_costs_its_environments_nothing():
    make_env = partial(envs.make_env, CountingEnv, [StepCounter])
    actor = actors.stochastic(make_env(seed=0), **NETWORK)
    env = make_env(seed=0, policy=actor)
    assert [type(each).__name__ for each in env.transform] == ["RewardSum", "StepCounter", "CopyTensors"]
    assert isinstance(actor[0], TensorDictModule)
    with pytest.raises(
        UserError, match=r"in_keys=\['memory'\]: no such entry as memory. Entries are observation"
    ):
        critics.state_value(env, actor, **{**NETWORK, "in_keys": ["memory"]})


@torch.no_grad()
def test_v_trace_weighs_what_was_acted_by_a_memory_as_acted():
    actor, critic, batch = recurrent()
    networks = {"actor_network": "actor", "critic_network": "critic"}
    parts, estimator = {"actor": actor, "critic": critic}, {"value_type": "vtrace", "gamma": GAMMA}
    loss = make_loss(A2CLoss, parts, actor.spec["action"], networks, {}, estimator)
    asked = loss.value_estimator.actor_network
    with set_recurrent_mode(True):
        again = asked.get_dist(batch.copy()).log_prob(batch["action"])
    assert torch.allclose(again, batch["action_log_prob"], atol=1e-5)
    (dealt,) = minibatches(loss, size=120)(batch)
    value, following = (critic[-1].module(each)[..., 0] for each in remembered(actor, batch))
    assert torch.allclose(batch["state_value"][..., 0], value, atol=1e-6)
    reward, done, ended = (batch["next", key][..., 0].float() for key in ("reward", "done", "terminated"))
    target = torch.empty_like(value)  # all weights are one: as V-trace has it, the return of the batch
    for t in reversed(range(value.shape[1])):
        delta = reward[:, t] + GAMMA * following[:, t] * (1 - ended[:, t]) - value[:, t]
        more = 0.0 if t + 1 == value.shape[1] else GAMMA * (1 - done[:, t]) * (target - value)[:, t + 1]
        target[:, t] = value[:, t] + delta + more
    order = dealt["frame"].reshape(-1).argsort()
    assert torch.allclose(dealt["value_target"].reshape(-1)[order], target.reshape(-1), atol=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_with_a_span_an_error_reaches_what_was_seen_a_hundred_steps_before(kind):
    def reached(**span):
        torch.manual_seed(0)
        cell = getattr(RecurrentLayer(["observation"], 3, cell=kind, hidden_size=32, **span)[-1], kind)
        seen = torch.zeros(1, 100, 3, requires_grad=True)
        out, _ = cell(seen + torch.eye(100)[0].reshape(1, 100, 1))
        out[0, -1].sum().backward()
        return cell, seen.grad[0, 0].norm().item()

    cell, far = reached(span=400)
    assert far > 1e-3
    assert reached()[1] < 1e-6 * far
    gate = slice(32, 64)  # by which an LSTM keeps, and a GRU, too
    kept = (cell.bias_ih_l0 + cell.bias_hh_l0)[gate].exp()  # of a unit that keeps for as many steps
    assert kept.min() >= 1
    assert 300 < kept.max() < 399
