"""Sequences of a replay memory: what networks find in a piece is what they find stepping through it all."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import StepCounter
from torchrl.modules import set_recurrent_mode

from hydrl import envs
from hydrl.experience.buffers import PrioritizedSampler
from hydrl.experience.sequences import LOSS_MASK, SequenceReplay, prepare_sequences
from hydrl.losses.build import make_loss
from hydrl.losses.recurrent_dqn import RecurrentDQNLoss
from hydrl.networks import actors
from hydrl.networks.rnn import RecurrentLayer
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
NUMBERS = {"updates": 1, "size": 8, "warmup_frames": 0, "n_steps": 1, "draw": "batch"}
NUMBERS |= {"sequence": 8, "burn_in": 3, "eta": 0.9}
GAMMA, READ = 0.9, ["observation", "is_init", "recurrent_state_h", "recurrent_state_c", "recurrent_state"]


def acted(kind="lstm", num_envs=3, time=90):
    """A Q-network with a memory, and what it did, ``[envs, time]``, with ends of both kinds in it."""
    torch.manual_seed(0)
    make_env = partial(
        envs.make_env,
        partial(CountingEnv, short=2, long=9, actions="one_hot"),
        [partial(StepCounter, max_steps=5)],
    )
    actor = actors.q_value(
        make_env(num_envs=num_envs, seed=0), **NETWORK, rnn=partial(RecurrentLayer, cell=kind, hidden_size=7)
    )
    for parameter in actor.parameters():
        parameter.data.mul_(3)  # a memory that counts
    env = make_env(num_envs=num_envs, seed=0, policy=actor)
    with torch.no_grad():
        batch = env.rollout(time, actor, break_when_any_done=False)
    assert batch["next", "terminated"].any()
    assert (batch["next", "truncated"] & ~batch["next", "terminated"]).any()
    return actor, batch.set("frame", torch.arange(batch.numel()).reshape(batch.shape))


@torch.no_grad()
def stepped(actor, batch):
    """By hand, with PyTorch's own module: the values at each step and at the observation that follows it."""
    (cell,) = (module for module in actor.modules() if isinstance(module, nn.LSTM | nn.GRU))
    head = actor[0][-1].module
    now, following = [], []
    for env in range(batch.shape[0]):
        for t in range(batch.shape[1]):
            if batch["is_init"][env, t]:
                state = None
            output, state = cell(batch["observation"][env, t, None], state)
            after, _ = cell(batch["next", "observation"][env, t, None], state)
            now.append(head(output)[0]), following.append(head(after)[0])
    return torch.stack(now), torch.stack(following)


def sequences(loss=None, sampler=None, **changes):
    kind = TensorDictReplayBuffer if sampler else ReplayBuffer
    buffer = kind(storage=LazyTensorStorage(200), sampler=sampler or SamplerWithoutReplacement())
    keys = SimpleNamespace(priority="td_error")
    loss = loss or SimpleNamespace(in_keys=READ, tensor_keys=keys)
    return SequenceReplay(buffer, loss, **NUMBERS | changes)


def all_of(cut):
    """All sequences that it keeps, as a loss is given them."""
    return prepare_sequences(cut.buffer[:], READ, cut.burn_in)


def in_pieces(batch):
    """What keeps it, batch by batch."""
    cut = sequences()
    for piece in batch.split((1, 30, 7, 52), 1):
        cut.store(piece)
    return cut


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@torch.no_grad()
def test_a_piece_is_worth_what_the_whole_is_wherever_episodes_begin_in_it(kind):
    actor, batch = acted(kind)
    now, following = stepped(actor, batch)
    assert torch.allclose(batch["action_value"].flatten(0, 1), now, atol=1e-5)
    cut = in_pieces(batch)
    rows = all_of(cut)
    assert rows.shape == (3 * 21, 8)
    assert rows["is_init"].any(0).all()  # at every place, the first and the one after burn-in among them
    with set_recurrent_mode(True):
        again, after = (actor(steps.copy())["action_value"] for steps in (rows, rows["next"]))
    frames = rows["frame"]
    assert (frames.diff() == 1).all()
    assert torch.allclose(again, now[frames], atol=1e-5)
    goes_on = ~rows["next", "done"][..., 0]
    goes_on[:, -1] |= ~rows["next", "terminated"][:, -1, 0]  # nothing comes after it that would be in the way
    assert torch.allclose(after[goes_on], following[frames][goes_on], atol=1e-5)


@torch.no_grad()
def test_burn_in_and_what_an_end_cut_short_are_not_learned_from():
    _, batch = acted()
    cut = in_pieces(batch)
    rows = all_of(cut)
    learned = rows[LOSS_MASK][..., 0]
    for row, is_learned in zip(rows, learned, strict=True):
        known = row["is_init"][:, 0].cumsum(0) > 0
        for t in range(8):
            truncated = row["next", "done"][t] & ~row["next", "terminated"][t]
            assert is_learned[t] == ((t >= 3 or known[t]) and not (truncated and t < 7))
    assert set(rows["frame"][learned].tolist()) > {0}  # an episode's first step, though it is burn-in's place


@torch.no_grad()
def test_sequences_are_of_one_environment_each_begins_in_the_middle_of_the_one_before_and_none_is_lost():
    _, batch = acted()
    cut = in_pieces(batch)
    whole = sequences()
    whole.store(batch)
    begins = cut.buffer[:]["frame"][:, 0]
    assert sorted(begins.tolist()) == sorted(whole.buffer[:]["frame"][:, 0].tolist())
    assert sorted(begins.tolist()) == [90 * env + 4 * k for env in range(3) for k in range(21)]
    assert cut.pending_steps["frame"].tolist() == batch["frame"][:, 84:].tolist()


def test_what_waits_is_in_the_state():
    _, batch = acted()
    whole, first, second = sequences(), sequences(), sequences()
    one, other = batch.split([33, 57], 1)
    whole.store(one), whole.store(other)
    first.store(one)
    second.load_state_dict(first.state_dict())
    second.store(other)
    assert torch.equal(second.buffer[:]["frame"], whole.buffer[:]["frame"][len(first.buffer) :])
    assert sequences().state_dict() == {}


def test_a_sequence_has_one_priority():
    _, batch = acted()
    sampler = PrioritizedSampler(max_capacity=200, alpha=1.0, beta=1.0)
    cut = sequences(sampler=sampler, size=4 * 8)
    errors = torch.rand(200, 8, 1)  # of each sequence, which may be drawn twice
    for drawn in cut(batch):
        minibatch = drawn.set("td_error", errors[drawn["index"][:, 0]])  # as a loss does
    index = minibatch["index"][:, 0]
    rows = zip(index, errors[index][..., 0], minibatch[LOSS_MASK][..., 0], strict=True)
    for index, error, learned in rows:
        counted = error[learned]
        priority = 0.9 * counted.max() + 0.1 * counted.mean()
        assert sampler._sum_tree[int(index)] == pytest.approx(priority.item(), rel=1e-4)


def by_hand(rows, now, later, n_steps):
    """Targets of double Q-learning, ``[rows, time]``, step by step.

    Args:
        rows: with ends and rewards.
        now: values of what is observed at each step and after the last, ``[rows, time + 1, actions]``.
        later: the same of the target network.
    """
    worth = later.gather(-1, now.argmax(-1, keepdim=True))[..., 0]
    reward, ended, done = (rows["next", key][..., 0] for key in ("reward", "terminated", "done"))
    targets = torch.zeros(rows.shape)
    for row in range(rows.shape[0]):
        for t in range(rows.shape[1]):
            total, k = 0.0, 0
            while k < n_steps and t + k < rows.shape[1]:
                last = t + k == rows.shape[1] - 1
                if done[row, t + k] and not ended[row, t + k] and not last:
                    break  # cut short: bootstraps before it
                total += GAMMA**k * reward[row, t + k]
                k += 1
                if ended[row, t + k - 1]:
                    break
            bootstraps = k == 0 or not ended[row, t + k - 1]
            targets[row, t] = total + (GAMMA**k * worth[row, t + k] if bootstraps else 0.0)
    return targets


@pytest.mark.parametrize("n_steps", [1, 3])
def test_r2d2_regresses_on_what_is_worked_out_by_hand(n_steps):
    actor, batch = acted()
    module = partial(RecurrentDQNLoss, n_steps=n_steps, loss_function="l2")
    networks = {"value_network": "actor"}
    loss = make_loss(module, {"actor": actor}, actor.spec["action"], networks, {}, {"gamma": GAMMA})
    for parameter in loss.target_value_network_params.values(True, True):
        parameter.data.mul_(0.8)
    batch["next", "reward"] = torch.randn_like(batch["next", "reward"])
    cut = sequences(loss, n_steps=n_steps)
    cut.store(batch)
    rows = all_of(cut)

    values = []
    for scale in (1.0, 0.8):
        for parameter in actor.parameters():
            parameter.data.mul_(scale)
        now, following = (outputs[rows["frame"]] for outputs in stepped(actor, batch))
        values.append(torch.cat([now, following[:, -1:]], 1))
    for parameter in actor.parameters():
        parameter.data.div_(0.8)
    targets = by_hand(rows, *values, n_steps)
    chosen_values = (values[0][:, :-1] * rows["action"]).sum(-1)
    learned = rows[LOSS_MASK][..., 0]
    rows["priority_weight"] = torch.rand(rows.shape)
    weight = rows["priority_weight"] * learned
    expected = ((chosen_values - targets).square() * weight).sum() / weight.sum()
    assert loss(rows)["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    errors = (chosen_values - targets).abs()
    assert torch.allclose(rows["td_error"][..., 0][learned], errors[learned], atol=1e-4)


def test_rescaling_undoes_itself_and_leaves_ends_alone():
    actor, _ = acted()
    values = torch.tensor([[-300.0, -1.0, 0.0, 0.5, 40.0]])
    loss = RecurrentDQNLoss(actor, n_steps=1, rescale=True)
    loss.make_value_estimator(gamma=1.0)
    scaled = values.sign() * ((values.abs() + 1).sqrt() - 1) + 1e-3 * values
    zeros = torch.zeros(1, 4, 1, dtype=torch.bool)
    following = {"reward": torch.zeros(1, 4, 1), "terminated": zeros, "is_init": zeros}
    rows = TensorDict({"next": TensorDict(following, [1, 4])}, [1, 4])
    assert torch.allclose(loss.compute_targets(rows, scaled), scaled[:, 1:], rtol=1e-3, atol=1e-4)
