from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, StepCounter, set_exploration_type
from torchrl.objectives import A2CLoss, ClipPPOLoss, DQNLoss

from hydrl import envs
from hydrl.envs import gymnasium_env
from hydrl.errors import UserError
from hydrl.experience.minibatches import Epochs, Replay, SupportCheck
from hydrl.losses.build import make_loss
from hydrl.networks import actors, critics
from hydrl.networks.encoders import encoder
from tests.conftest import SMALL, settings
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
GAMMA, LAMBDA = 0.9, 0.7
PPO = partial(ClipPPOLoss, functional=False)


def ppo(num_envs=3, time=20, average_gae=False, module=PPO, **estimator):
    """A batch ``[envs, time]`` with episode ends of both kinds, and a PPO loss over networks that fit it."""
    torch.manual_seed(0)
    env = envs.make_env(
        partial(CountingEnv, short=2, long=9), [partial(StepCounter, max_steps=6)], num_envs=num_envs, seed=0
    )
    actor, critic = actors.tanh_normal(env, **NETWORK), critics.state_value(env, **NETWORK)
    estimator = estimator or {"gamma": GAMMA, "lmbda": LAMBDA, "average_gae": average_gae}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    parts = {"actor": actor, "critic": critic}
    loss = make_loss(module, parts, env.action_spec, networks, {}, estimator)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(time, actor, break_when_any_done=False)
    assert batch["next", "terminated"].any()
    assert batch["next", "truncated"].any()
    batch["frame"] = torch.arange(batch.numel()).reshape(batch.shape)
    return batch, loss, critic


def rollout_buffer() -> ReplayBuffer:
    sizes = ("collector.frames_per_batch=60", "collector.num_envs=3", "minibatches.size=20")
    return settings("env=pendulum", "algo=ppo", *sizes).build("buffer")()


@torch.no_grad()
def judged(batch, critic):
    """Values of states and of the next, rewards, where an episode is over or ended: ``[envs, time]`` each."""
    value = critic(batch.select("observation"))["state_value"][..., 0]
    following = critic(batch["next"].select("observation"))["state_value"][..., 0]
    return value, following, *(batch["next", key][..., 0].float() for key in ("reward", "done", "terminated"))


def hand_written_gae(batch, critic):
    """The recursion of Schulman et al. 2016: a time limit bootstraps, an end does not, both stop the sum."""
    value, following, reward, done, terminated = judged(batch, critic)
    advantage = torch.zeros_like(value)
    for env in range(value.shape[0]):
        carried = 0.0
        for t in reversed(range(value.shape[1])):
            delta = reward[env, t] + GAMMA * following[env, t] * (1 - terminated[env, t]) - value[env, t]
            carried = delta + GAMMA * LAMBDA * (1 - done[env, t]) * carried
            advantage[env, t] = carried
    return advantage, advantage + value


def hand_written_vtrace(batch, critic, ratio, rho_thresh, c_thresh):
    """The sum of Espeholt et al. 2018, equation 1, and the advantage of section 4.2, of the ratios given."""
    value, following, reward, done, terminated = judged(batch, critic)
    rho, c = ratio.clamp(max=rho_thresh), ratio.clamp(max=c_thresh)
    target, advantage = value.clone(), torch.zeros_like(value)
    for env, start in np.ndindex(*value.shape):
        weight = 1.0
        for t in range(start, value.shape[1]):
            bootstrapped = GAMMA * following[env, t] * (1 - terminated[env, t])
            target[env, start] += weight * rho[env, t] * (reward[env, t] + bootstrapped - value[env, t])
            weight *= GAMMA * c[env, t]
            if done[env, t]:
                break
    for env, t in np.ndindex(*value.shape):
        last = done[env, t] or t + 1 == value.shape[1]
        goes_on = following[env, t] if last else target[env, t + 1]
        goes_on = GAMMA * goes_on * (1 - terminated[env, t])
        advantage[env, t] = rho[env, t] * (reward[env, t] + goes_on - value[env, t])
    return advantage, target


def deal(epochs, size, advantage="once", draw="epoch", average_gae=False, on_minibatch=lambda critic: None):
    batch, loss, critic = ppo(average_gae=average_gae)
    dealt = []
    minibatches = Epochs(rollout_buffer(), loss, epochs=epochs, size=size, advantage=advantage, draw=draw)
    for minibatch in minibatches(batch):
        dealt.append(minibatch.clone())
        on_minibatch(critic)
    return batch, dealt


@pytest.mark.parametrize("draw", ["epoch", "minibatch"])
@pytest.mark.parametrize(("size", "an_epoch"), [(20, 3), (60, 1), (16, 3)])
def test_an_epoch_is_as_many_whole_minibatches_as_fit(size, an_epoch, draw):
    _, dealt = deal(epochs=4, size=size, draw=draw)
    assert len(dealt) == 4 * an_epoch


def test_drawing_by_epoch_leaves_nothing_over_for_the_next_and_by_minibatch_does():
    _, by_epoch = deal(epochs=3, size=16)
    assert [minibatch.numel() for minibatch in by_epoch] == [16] * 9
    for start in (0, 3, 6):
        assert (
            torch.cat([minibatch["frame"] for minibatch in by_epoch[start : start + 3]]).unique().numel()
            == 48
        )
    _, by_minibatch = deal(epochs=3, size=16, draw="minibatch")
    assert [minibatch.numel() for minibatch in by_minibatch] == [
        16,
        16,
        16,
        12,
        16,
        16,
        16,
        12,
        16,
    ]  # as the tutorial


@pytest.mark.parametrize("draw", ["epoch", "minibatch"])
@pytest.mark.parametrize("advantage", ["once", "each_epoch"])
def test_every_frame_is_seen_exactly_once_an_epoch_in_another_order(advantage, draw):
    _, dealt = deal(epochs=3, size=20, advantage=advantage, draw=draw)
    epochs = [
        torch.cat([minibatch["frame"] for minibatch in dealt[start : start + 3]]) for start in (0, 3, 6)
    ]
    for frames in epochs:
        assert torch.equal(frames.sort().values, torch.arange(60))
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], torch.arange(60))


class OwnPPOLoss(ClipPPOLoss):
    """Somebody's own, which may read anything."""


@pytest.mark.parametrize(("kind", "keeps_next"), [(ClipPPOLoss, False), (OwnPPOLoss, True)])
def test_pictures_that_come_next_are_not_dealt_once_they_are_judged(kind, keeps_next):
    env = envs.make_env(
        partial(gymnasium_env, "tests.fakes.pixel_envs:Dot-v0"), [StepCounter], num_envs=3, seed=0
    )
    net = {"num_cells": [8], "activation": "ReLU"}
    actor = actors.categorical(env, **net, encoder=encoder)
    parts = {"actor": actor, "critic": critics.state_value(env, actor, **net, encoder="shared")}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    estimator = {"gamma": GAMMA, "lmbda": LAMBDA}
    module = partial(kind, functional=False)
    loss = make_loss(module, parts, env.action_spec_unbatched, networks, {}, estimator)
    with torch.no_grad():
        batch = env.rollout(20, actor, break_when_any_done=False)
    batch["frame"] = torch.arange(60).reshape(3, 20)
    minibatches = Epochs(rollout_buffer(), loss, epochs=1, size=30, advantage="once", draw="epoch")
    for rows in minibatches(batch):
        whole = batch.reshape(-1)[rows["frame"]]
        left_out = {*whole.keys(True, True)} - {*rows.keys(True, True)}
        assert left_out == ({"features"} if keeps_next else {"features", ("next", "pixels")})
        learned, same = loss(rows), loss(whole)
        assert all(torch.equal(learned[key], same[key]) for key in same.keys())  # noqa: SIM118
    assert "features" in batch  # what is dealt is another
    assert ("next", "pixels") in batch.keys(True)


def test_a_second_batch_replaces_the_first():
    batch, loss, _ = ppo()
    minibatches = Epochs(rollout_buffer(), loss, epochs=1, size=20, advantage="once", draw="epoch")
    assert len(list(minibatches(batch))) == 3
    batch["frame"] += 1_000
    again = torch.cat([minibatch["frame"] for minibatch in minibatches(batch)])
    assert torch.equal(again.sort().values, torch.arange(1_000, 1_060))


@pytest.mark.parametrize("advantage", ["once", "each_epoch"])
def test_the_advantage_is_gae_s_recursion_in_each_environment_by_itself(advantage):
    batch, loss, critic = ppo()
    expected, target = hand_written_gae(batch.clone(), critic)
    minibatches = Epochs(rollout_buffer(), loss, epochs=1, size=60, advantage=advantage, draw="epoch")
    dealt = list(minibatches(batch))
    order = dealt[0]["frame"].argsort()
    assert torch.allclose(dealt[0]["advantage"][order, 0], expected.flatten(), atol=1e-5)
    assert torch.allclose(dealt[0]["value_target"][order, 0], target.flatten(), atol=1e-5)
    assert dealt[0]["advantage"].shape == (60, 1)


def test_average_gae_standardises_over_the_whole_batch():
    _, dealt = deal(epochs=1, size=60, average_gae=True)
    assert dealt[0]["advantage"].mean().abs() < 1e-5
    assert dealt[0]["advantage"].std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("advantage", "follows"), [("once", False), ("each_epoch", True)])
def test_only_each_epoch_sees_what_the_critic_learned_meanwhile(advantage, follows):
    def learn(critic):
        for parameter in critic.parameters():
            parameter.data += 0.1

    _, dealt = deal(epochs=2, size=60, advantage=advantage, on_minibatch=learn)
    first, second = (minibatch["value_target"][minibatch["frame"].argsort()] for minibatch in dealt)
    assert torch.equal(first, second) != follows


def reading(**more):
    """What minibatches ask of a loss of one agent."""
    keys = DQNLoss.default_keys()
    return SimpleNamespace(tensor_keys=replace(keys, **more.pop("keys", {})), **more)


replay = partial(Replay, loss=reading(), n_steps=1, draw="batch")


def numbered(start: int, frames: int) -> TensorDict:
    return TensorDict({"frame": torch.arange(start, start + frames).reshape(2, -1)}, [2, frames // 2])


def test_replay_draws_nothing_until_the_warmup_is_in_and_then_as_many_as_asked():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    drawn = [
        len(list(replay(buffer, updates=3, size=4, warmup_frames=25)(numbered(start, 10))))
        for start in (0, 10, 20, 30)
    ]
    assert drawn == [0, 0, 3, 3]


def test_replay_never_draws_a_minibatch_larger_than_what_is_there():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    drawn = [
        [
            minibatch.numel()
            for minibatch in replay(buffer, updates=1, size=16, warmup_frames=0)(numbered(start, 10))
        ]
        for start in (0, 10)
    ]
    assert drawn == [[], [16]]


def test_a_full_buffer_forgets_the_oldest_frames_first():
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    for start in (0, 10, 20, 30):
        drawn = list(replay(buffer, updates=40, size=8, warmup_frames=0)(numbered(start, 10)))
        assert len(buffer) == min(start + 10, 20)
    frames = torch.cat([minibatch["frame"] for minibatch in drawn])
    assert set(frames.tolist()) == set(range(20, 40))


def test_drawn_frames_are_flat_and_drawn_uniformly():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    drawn = list(replay(buffer, updates=500, size=10, warmup_frames=10)(numbered(0, 10)))
    assert drawn[0].batch_size == (10,)
    counts = torch.stack([minibatch["frame"] for minibatch in drawn]).flatten().bincount(minlength=10)
    assert counts.min() > 420  # 500 each
    assert counts.max() < 580


def test_one_draw_for_all_updates_takes_the_frames_that_a_draw_for_each_would_take():
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    torch.manual_seed(0)
    together = [
        minibatch["frame"]
        for minibatch in replay(buffer, updates=6, size=7, warmup_frames=0)(numbered(0, 50))
    ]
    torch.manual_seed(0)
    assert torch.equal(torch.stack(together), torch.stack([buffer.sample(7)["frame"] for _ in range(6)]))


def steps(rewards: list[list[float]], ends: list[list[str]], start: int) -> TensorDict:
    """A batch ``[envs, time]``; an end is ``t`` for terminated, ``T`` for truncated and ``.`` for neither."""
    reward = torch.tensor(rewards)[..., None]
    frame = torch.arange(start, start + reward.shape[1], dtype=torch.float32).expand(reward.shape[:2])[
        ..., None
    ]
    terminated, truncated = (
        torch.tensor([[e == kind for e in row] for row in ends])[..., None] for kind in "tT"
    )
    after = {"reward": reward, "observation": frame + 1, "terminated": terminated, "truncated": truncated}
    after["done"] = terminated | truncated
    return TensorDict({"observation": frame, "next": after}, batch_size=reward.shape[:2])


def summed(rewards: list[float], ends: str, first: int, gamma: float, n: int) -> tuple[float, int]:
    """The discounted sum from a step on until n are summed or the episode ends, and the last that counts."""
    total, last = 0.0, first
    for k in range(n):
        last = first + k
        total += gamma**k * rewards[last]
        if ends[last] != ".":
            break
    return total, last


@pytest.mark.parametrize("resumed", [False, True])
def test_n_step_rows_are_those_of_a_hand_computation_at_before_and_across_ends_in_each_environment(resumed):
    rewards = [[1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], [10.0, 20, 30, 40, 50, 60, 70, 80, 90, 100]]
    ends = ["...t..T...", ".....t...."]
    buffer, gamma, n = ReplayBuffer(storage=LazyTensorStorage(100)), 0.5, 3
    loss = reading(value_estimator=SimpleNamespace(gamma=torch.tensor(gamma)))
    make = partial(replay, buffer, loss=loss, updates=1, size=1, warmup_frames=0, n_steps=n)
    minibatches = make()
    for at in (0, 5):
        if resumed and at:  # in another process, as frames of both environments wait
            state, minibatches = minibatches.state_dict(), make()
            assert state["shape"] == (2, n)
            minibatches.load_state_dict(state)
        part = slice(at, at + 5)
        list(minibatches(steps([r[part] for r in rewards], [list(e[part]) for e in ends], at)))
    rows = buffer[:]
    assert len(rows) == 2 * (10 - n)  # those of which too few follow wait
    frames = set()
    for row in rows:
        first = int(row["observation"].item())
        (env,) = {
            e
            for e in (0, 1)
            if row["next", "reward"].item() == summed(rewards[e], ends[e], first, gamma, n)[0]
        }
        _, last = summed(rewards[env], ends[env], first, gamma, n)
        assert row["next", "observation"].item() == last + 1
        assert row["steps_to_next_obs"].item() == last - first + 1
        assert row["next", "terminated"].item() == (ends[env][last] == "t")
        assert row["next", "done"].item() == (ends[env][last] != ".")
        frames.add((env, first))
    assert frames == {(env, first) for env in (0, 1) for first in range(7)}


def test_what_waits_for_its_following_steps_goes_on_after_a_resume():
    rewards, ends = [[1.0, 2, 3, 4, 5, 6, 7, 8]], [list("........")]
    loss = reading(value_estimator=SimpleNamespace(gamma=torch.tensor(0.9)))
    buffers = [ReplayBuffer(storage=LazyTensorStorage(100)) for _ in range(2)]
    whole, other = (
        replay(buffer, loss=loss, updates=1, size=1, warmup_frames=0, n_steps=3) for buffer in buffers
    )
    list(whole(steps([rewards[0][:4]], [ends[0][:4]], 0)))
    other.load_state_dict(whole.state_dict())
    for kind in (whole, other):
        list(kind(steps([rewards[0][4:]], [ends[0][4:]], 4)))
    assert len(buffers[0]) == 5
    assert torch.equal(buffers[0][:]["next", "reward"][1:], buffers[1][:]["next", "reward"])


def prioritised(alpha: float = 1.0, beta: float = 1.0) -> TensorDictReplayBuffer:
    chosen = settings(
        "algo=dqn",
        "env=cartpole",
        "buffer=prioritized",
        "buffer.storage.max_size=256",
        f"buffer.sampler.alpha={alpha}",
        f"buffer.sampler.beta={beta}",
        "minibatches.warmup_frames=10",
    )
    return chosen.build("buffer")()


@pytest.mark.parametrize("name", ["td_error", "my_error"])
def test_errors_become_priorities_and_what_is_drawn_too_often_weighs_less(name):
    np.random.seed(0)
    buffer, loss = prioritised(), reading(keys={"priority": name})
    minibatches = replay(buffer, loss=loss, updates=60, size=10, warmup_frames=0, draw="minibatch")
    error = torch.tensor([8.0, *[1.0] * 9])
    drawn = []
    for minibatch in minibatches(numbered(0, 10)):
        minibatch[name] = error[minibatch["frame"]]
        drawn.append(minibatch.clone())
    assert torch.equal(drawn[0]["priority_weight"], torch.ones(10))  # all alike at first
    late = torch.cat(drawn[20:])
    share = (late["frame"] == 0).float().mean().item()
    assert share == pytest.approx(8 / 17, abs=0.06)
    assert late["priority_weight"][late["frame"] == 0].unique().item() == pytest.approx(1 / 8, rel=1e-4)
    assert late["priority_weight"][late["frame"] != 0].unique().item() == pytest.approx(1)


def test_a_loss_that_writes_no_priorities_is_refused():
    loss = reading()
    minibatches = replay(prioritised(), loss=loss, updates=2, size=5, warmup_frames=0, draw="minibatch")
    with pytest.raises(UserError, match=r"buffer\.sampler: SimpleNamespace writes no priorities"):
        list(minibatches(numbered(0, 10)))


def test_priorities_are_saved_as_tensors_and_draw_the_same_afterwards(tmp_path):
    one, other = prioritised(alpha=0.6, beta=0.4), prioritised(alpha=0.6, beta=0.4)
    for filled in (one, other):
        filled.extend(numbered(0, 100).reshape(-1))
    one.update_priority(torch.arange(100), torch.rand(100))
    torch.save(one.sampler.state_dict(), tmp_path / "sampler.pt")
    other.sampler.load_state_dict(torch.load(tmp_path / "sampler.pt", weights_only=True))
    samples = []
    for filled in (one, other):
        np.random.seed(1)
        samples.append(filled.sample(50))
    assert torch.equal(samples[0]["frame"], samples[1]["frame"])
    assert torch.equal(samples[0]["priority_weight"], samples[1]["priority_weight"])
    assert samples[0]["priority_weight"].unique().numel() > 10
    assert one.sampler.default_priority == other.sampler.default_priority


def vtrace(rho_thresh, c_thresh):
    clipped = {"rho_thresh": rho_thresh, "c_thresh": c_thresh}
    return ppo(module=A2CLoss, value_type="vtrace", gamma=GAMMA, **clipped)


def dealt_in_order(batch, loss):
    minibatches = Epochs(rollout_buffer(), loss, epochs=1, size=60, advantage="each_epoch", draw="epoch")
    (minibatch,) = minibatches(batch)
    minibatch = minibatch[minibatch["frame"].argsort()]
    return (minibatch[key].reshape(batch.shape) for key in ("advantage", "value_target"))


def test_v_trace_of_the_policy_that_acted_is_the_return_of_all_steps_there_are(monkeypatch):
    """All ratios are 1: TorchRL's own are those of an action that was drawn anew."""
    batch, loss, critic = vtrace(1.0, 1.0)
    advantage, target = dealt_in_order(batch, loss)
    monkeypatch.setitem(globals(), "LAMBDA", 1.0)
    expected, returns = hand_written_gae(batch, critic)
    assert torch.allclose(advantage, expected, atol=1e-5)
    assert torch.allclose(target, returns, atol=1e-5)


def test_v_trace_corrects_for_what_the_policy_learned_since():
    batch, loss, critic = vtrace(1.2, 0.9)
    with torch.no_grad():
        dealt_in_order(batch, loss)  # an epoch before must leave nothing
        for parameter in (*loss.actor_network_params.values(True, True), *critic.parameters()):
            parameter += 0.2 * torch.randn_like(parameter)
        with loss.actor_network_params.to_module(loss.actor_network):
            now = loss.actor_network.get_dist(batch.select("observation")).log_prob(batch["action"])
    ratio = (now - batch["action_log_prob"]).exp()
    assert (ratio > 1.2).any()
    assert (ratio < 0.9).any()
    expected, returns = hand_written_vtrace(batch, critic, ratio, 1.2, 0.9)
    advantage, target = dealt_in_order(batch, loss)
    assert torch.allclose(advantage, expected, atol=1e-5)
    assert torch.allclose(target, returns, atol=1e-5)


def paid(rewards, ends):
    """A batch ``[envs, time]`` of these rewards and ends."""
    shape = torch.tensor(rewards).shape
    entries = {
        "reward": torch.tensor(rewards)[..., None],
        "done": torch.tensor(ends, dtype=torch.bool)[..., None],
    }
    return TensorDict({"next": TensorDict(entries, shape)}, shape)


def test_a_return_outside_the_support_is_said_once(monkeypatch, capsys):
    check = SupportCheck(torch.linspace(-2.0, 2.0, 5), gamma=0.5)
    check(paid([[1.0, 1.0], [-1.0, -1.0]], [[0, 0], [0, 1]]))  # 1.5 goes on, -1.5 has ended
    check(paid([[1.0, 1.0], [-1.0, -1.0]], [[0, 0], [0, 0]]))  # 1.875 and a new -1.5
    assert capsys.readouterr().err == ""
    check(paid([[9.0, 0.0], [-1.0, -3.0]], [[0, 0], [0, 0]]))  # 1.875 + 9 / 16
    check(paid([[9.0, 0.0], [-1.0, -3.0]], [[0, 0], [0, 0]]))
    assert capsys.readouterr().err == (
        "warning: a discounted return of 2.438 is outside actor.v_min=-2 to actor.v_max=2, and is clipped to "
        "them. Set both around the returns, or scale the rewards.\n"
    )


def test_c51_is_told_of_the_returns_of_its_environment(run, monkeypatch, capsys):
    words = [*SMALL, "algo=dqn", "env=cartpole", "loss=c51", "actor=distributional", "total_frames=128"]
    run(*words, "actor.v_max=200", folder="wide")
    assert "actor.v_max" not in capsys.readouterr().err
    run(*words, "actor.v_max=5", folder="narrow")
    assert "outside actor.v_min=-10 to actor.v_max=5" in capsys.readouterr().err
