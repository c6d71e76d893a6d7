"""Goals are relabelled by states of the same episode that come later, and by no others."""

from functools import cache, partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torchrl.data import LazyMemmapStorage, LazyTensorStorage
from torchrl.envs import CatTensors, DoubleToFloat, RewardScaling, RewardSum, SignTransform, StepCounter

from hydrl.envs import gymnasium_env, init_normalizers, make_env
from hydrl.envs.toy_goals import BitFlip, PointReach
from hydrl.envs.transforms import FixedNorm, RunningRewardScaling
from hydrl.errors import UserError
from hydrl.experience.buffers import prepare_buffer
from hydrl.experience.hindsight import find_hindsight, hindsight
from tests.conftest import settings

ENVS, TIME = 3, 7


class Numbered(gymnasium.Env):
    """Achieves (a mark of its own, the number of the episode, steps so far), and asks for zeros.

    Episodes are of 1 to 19 steps by chance; every third is truncated. ``judge`` is the flaw of what judges.
    """

    def __init__(self, judge: str = "good") -> None:
        numbers = Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = Dict(
            dict.fromkeys(("observation", "achieved_goal", "desired_goal"), numbers)
        )
        self.action_space, self.judge, self.mark, self.episode = Discrete(2), judge, None, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.mark = self.mark or int(self.np_random.integers(1, 1_000_000))
        self.length, self.steps, self.episode = self.np_random.integers(1, 20), 0, self.episode + 1
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.length
        cut = bool(ended and self.episode % 3 == 0)
        return self.observation(), -1.0, bool(ended and not cut), cut, {}

    def observation(self):
        now = np.float32([self.mark, self.episode, self.steps])
        return {"observation": now, "achieved_goal": now, "desired_goal": np.zeros(3, np.float32)}

    def compute_reward(self, achieved_goal, desired_goal, info):
        if self.judge == "reads info":
            return info["reward"]
        if self.judge == "one by one":
            return -float((achieved_goal != desired_goal).any())
        return (achieved_goal == desired_goal).all(-1) - (2.0 if self.judge == "other" else 1.0)


gymnasium.register("Numbered-v0", Numbered)


def make_goal_env(*transforms, id="Numbered-v0", envs=ENVS, seed=0, **kwargs):
    stack = [*transforms, DoubleToFloat, StepCounter]
    return make_env(partial(gymnasium_env, id, **kwargs), stack, num_envs=envs, seed=seed)


def configured(*words):
    """The environment of a run on bits, of whose normaliser nothing is asked."""
    chosen = settings("algo=dqn", "env=bit_flip", "~tuned", "buffer=hindsight", *words)
    env = make_env(chosen.build("env"), chosen.transform_builders, seed=0)
    init_normalizers(env, 64)
    return env


def batches(env, count, time=TIME):
    """Batches ``[envs, time]`` or ``[time]``, acted at random, whose episodes go on from one to the next."""
    now = env.reset()
    for _ in range(count):
        rows = []
        for _ in range(time):
            row, now = env.step_and_maybe_reset(env.rand_action(now))
            rows.append(row)
        yield torch.stack(rows, -1)


def filled(env, fresh, size=10_000, ratio=0.8, strategy="future", storage=LazyTensorStorage):
    """A memory in which batches were stored as ``minibatches=replay`` does."""
    buffer = prepare_buffer(hindsight(storage(size), ratio, strategy), env)
    for batch in fresh:
        buffer.extend(find_hindsight(buffer).add_row_ids(batch).reshape(-1))
    return buffer


@cache
def collected(envs):
    """Some 400 rows, and the environment that they are of."""
    torch.manual_seed(0)
    env = make_goal_env(envs=envs)
    return env, [*batches(env, 60 // envs)]


def last_steps(buffer):
    """Of each episode in memory, (mark, episode), the last step there."""
    achieved = buffer.storage.get(slice(None))["next", "achieved_goal"].int().tolist()
    return {(mark, episode): step for mark, episode, step in sorted(achieved)}


@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize("size", [10_000, 50, 21])  # of 420 rows; two are full and were written over
@pytest.mark.parametrize(
    ("envs", "storage"), [(1, LazyTensorStorage), (3, LazyTensorStorage), (3, LazyMemmapStorage)]
)
def test_no_goal_is_of_another_environment_or_episode_or_of_the_past(envs, size, strategy, storage):
    torch.manual_seed(0)
    buffer = filled(*collected(envs), size, strategy=strategy, storage=storage)
    rows, ends = buffer.sample(12_000), last_steps(buffer)
    achieved, goal = rows["next", "achieved_goal"], rows["desired_goal"]
    chosen = goal.any(-1)
    assert chosen.float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert chosen.view(-1, 100).float().mean(-1).std() < 0.1  # in every part of a draw alike
    own, goal = achieved[chosen].int(), goal[chosen].int()
    assert (own[:, :2] != goal[:, :2]).sum() == 0
    assert (goal[:, 2] < own[:, 2]).sum() == 0
    reached = dict.fromkeys(ends, 0)
    for mark, episode, step in goal.tolist():
        reached[mark, episode] = max(reached[mark, episode], step)
    assert reached == ends  # and none further away is left out
    if strategy == "final":
        assert goal[:, 2].tolist() == [ends[mark, episode] for mark, episode, _ in goal.tolist()]
    if size == 10_000:  # over more than a batch
        assert len(ends) > 20
        assert (goal[:, 2] - own[:, 2]).max() > TIME


def test_what_is_drawn_is_judged_anew_and_all_else_is_as_it_was():
    torch.manual_seed(0)
    buffer = filled(*collected(ENVS))
    rows, stored = buffer.sample(1_000), buffer.storage.get(slice(None))
    reached = (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1, keepdim=True)
    assert 0.1 < reached.float().mean() < 0.7
    assert torch.equal(rows["next", "reward"], reached.float() - 1)
    assert torch.equal(rows["next", "desired_goal"], rows["desired_goal"])
    assert not stored["desired_goal"].any()
    assert (stored["next", "reward"] == -1).all()
    assert "hindsight" not in rows
    place = {tuple(goal): number for number, goal in enumerate(stored["next", "achieved_goal"].tolist())}
    own = stored[[place[tuple(value)] for value in rows["next", "achieved_goal"].tolist()]]
    for key in ("observation", "action", ("next", "observation"), ("next", "terminated"), ("next", "done")):
        assert torch.equal(rows[key], own[key])


def test_later_states_are_drawn_alike_and_the_one_that_a_step_leads_to_with_them():
    """By hand: an episode of four steps, the last two of them in another batch."""
    torch.manual_seed(0)
    env = make_goal_env(envs=1)
    (episode,) = batches(env, 1, time=4)
    steps = torch.tensor([[1.0, 1.0, step] for step in range(5)])
    for key in ("observation", "achieved_goal"):
        episode[key], episode["next"][key] = steps[:4], steps[1:]
    episode["next"]["done"] = torch.tensor([[False], [False], [False], [True]])
    episode["step_count"] = torch.arange(4).unsqueeze(-1)
    episode["next"]["step_count"] = episode["step_count"] + 1
    buffer = filled(env, [episode[:2], episode[2:]], ratio=1.0)
    rows = buffer.sample(8_000)
    counts = torch.zeros(5, 5)
    for own, goal in zip(rows["next", "achieved_goal"][:, 2], rows["desired_goal"][:, 2], strict=True):
        counts[int(own), int(goal)] += 1
    shares = (counts / counts.sum(-1, keepdim=True))[1:, 1:]
    expected = torch.tensor([[1 / 4] * 4, [0, *[1 / 3] * 3], [0, 0, 1 / 2, 1 / 2], [0, 0, 0, 1]])
    assert (shares - expected).abs().max() < 0.04


def test_of_two_workers_whose_batches_take_turns_no_goal_is_the_other_s():
    torch.manual_seed(0)
    one, other = make_goal_env(seed=0), make_goal_env(seed=1_000)
    turns = zip(batches(one, 8), batches(other, 8), strict=True)
    buffer = filled(one, [batch for both in turns for batch in both])
    rows = buffer.sample(2_000)
    chosen = rows["desired_goal"].any(-1)
    assert torch.equal(rows["next", "achieved_goal"][chosen, :2], rows["desired_goal"][chosen, :2])


def test_batches_of_workers_joined_have_their_environments_apart():
    torch.manual_seed(0)
    one, other = make_goal_env(seed=0), make_goal_env(seed=1_000)
    joined = [torch.stack(both) for both in zip(batches(one, 8), batches(other, 8), strict=True)]
    buffer = filled(one, joined)
    rows, ends = buffer.sample(4_000), last_steps(buffer)
    goal = rows["desired_goal"][rows["desired_goal"].any(-1)].int()
    assert len({mark for mark, _ in ends}) == 2 * ENVS
    assert {(mark, episode): step for mark, episode, step in sorted(goal.tolist())} == ends


@pytest.mark.parametrize(
    ("transforms", "reached", "missed"),
    [
        ((partial(RewardScaling, loc=0.5, scale=0.1),), 0.5, 0.4),
        ((partial(RewardScaling, loc=0.0, scale=0.1), partial(SignTransform, in_keys=["reward"])), 0, -1),
    ],
)
def test_a_reward_that_is_judged_anew_is_scaled_as_others_are(transforms, reached, missed):
    torch.manual_seed(0)
    env = make_goal_env(RewardSum, *transforms)
    rows = filled(env, batches(env, 4)).sample(500)
    success = (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1, keepdim=True)
    wanted = torch.where(success, float(reached), float(missed))
    assert success.any()
    torch.testing.assert_close(rows["next", "reward"], wanted)


def test_an_episode_that_a_goal_ends_is_ended_by_the_relabelled_one():
    """Bits that are equal end an episode; with three bits it happens by chance, too."""
    torch.manual_seed(0)
    env = make_goal_env(id="hydrl.envs.toy_goals:BitFlip-v0", bits=3)
    buffer = filled(env, batches(env, 15))
    rows = buffer.sample(2_000)["next"]
    success = (rows["achieved_goal"] == rows["desired_goal"]).all(-1, keepdim=True)
    assert 0.3 < success.float().mean() < 0.9
    assert torch.equal(rows["terminated"], success)
    assert torch.equal(rows["done"], success | rows["truncated"])
    assert (rows["truncated"] & ~success).any()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (partial(make_goal_env, judge="reads info"), "compute_reward reads info"),
        (partial(make_goal_env, judge="one by one"), r"returned shape \[\] for goals of shape \[21, 3\]"),
        (partial(make_goal_env, judge="other"), "returned the reward -1, but compute_reward .* returns -2"),
        (partial(make_goal_env, id="CartPole-v1"), "it needs a Gymnasium environment .* Write buffer=replay"),
        (
            partial(
                make_goal_env, partial(CatTensors, ["observation", "desired_goal"], "joined", del_keys=False)
            ),
            "CatTensors changes goals",
        ),
        (
            partial(configured, "transforms=running_norm"),
            r"RunningNorm changes goals.*Write transforms=plain, or transforms=normalized with init_stats_fr",
        ),
        (
            partial(make_goal_env, RunningRewardScaling),
            "RunningRewardScaling cannot be applied to relabelled rewards",
        ),
    ],
)
def test_what_cannot_be_relabelled_is_refused(env, message):
    env = env()
    with pytest.raises(UserError, match=f"^buffer=hindsight.*{message}"):
        filled(env, batches(env, 1))


@pytest.mark.parametrize("id", ["hydrl.envs.toy_goals:PointReach-v0", "hydrl.envs.toy_goals:BitFlip-v0"])
def test_normalized_goals_are_relabelled_as_raw_ones(id):
    """Of equal draws, the rows are those of raw goals, normalized."""

    def rows(*transforms):
        torch.manual_seed(0)
        env = make_goal_env(*transforms, id=id)
        buffer = filled(env, batches(env, 12))
        torch.manual_seed(1)
        return buffer.sample(300)

    norms = [partial(FixedNorm, 0.3, 2.0, in_keys=["achieved_goal"])]
    norms += [partial(FixedNorm, -0.7, 0.5, in_keys=["desired_goal"])]
    raw, normalized = rows(), rows(*norms)
    assert torch.equal(normalized["next", "reward"], raw["next", "reward"])
    assert torch.equal(normalized["next", "terminated"], raw["next", "terminated"])
    assert len(raw["next", "reward"].unique()) == 2
    torch.testing.assert_close(normalized["desired_goal"], raw["desired_goal"] * 0.5 - 0.7)
    torch.testing.assert_close(normalized["next", "achieved_goal"], raw["next", "achieved_goal"] * 2.0 + 0.3)


@pytest.mark.parametrize(("task", "message"), [({"bits": 1}, "env.bits=1"), ({"radius": 0}, "env.radius=0")])
def test_a_task_that_could_not_be_learned_is_refused(task, message):
    with pytest.raises(UserError, match=f"^{message}: should be"):
        (BitFlip if "bits" in task else PointReach)(**task)


def test_networks_read_the_goal_and_not_what_is_achieved_where_nobody_says_otherwise():
    task = ("algo=sac", "env=point_reach", "~tuned")
    plain, relabelled = settings(*task), settings(*task, "buffer=hindsight")
    own = settings(*task, "buffer=hindsight", "actor.in_keys=[desired_goal]")
    assert plain.actor["in_keys"] is plain.critic["in_keys"] is None
    assert relabelled.actor["in_keys"] == relabelled.critic["in_keys"] == ["observation", "desired_goal"]
    assert own.actor["in_keys"] == ["desired_goal"]


def test_bits_end_when_they_are_the_goal_s_and_a_point_goes_on():
    bits, point = BitFlip(4), PointReach()
    observation, _ = bits.reset(seed=0)
    wrong = np.flatnonzero(observation["achieved_goal"] != observation["desired_goal"])
    assert len(wrong) > 1
    steps = [bits.step(bit) for bit in wrong]
    assert [step[1] for step in steps] == [-1.0] * (len(wrong) - 1) + [0.0]
    assert [step[2] for step in steps] == [False] * (len(wrong) - 1) + [True]
    assert steps[-1][4] == {"is_success": True}
    bits.reset()
    bits.state, bits.goal = np.float32([0, 0, 0, 0]), np.float32([1, 1, 1, 1])
    assert [bits.step(0)[2:4] for _ in range(4)] == [*[(False, False)] * 3, (False, True)]

    observation, _ = point.reset(seed=0)
    for _ in range(40):
        way = np.clip((point.goal - point.state) / point.speed, -1, 1)
        observation, reward, *ends, info = point.step(way)
        assert not any(ends)
    assert (reward, info) == (0.0, {"is_success": True})
    assert np.abs(observation["achieved_goal"] - observation["desired_goal"]).max() < 1e-6
    many = point.compute_reward(np.float32([[0, 0], [0, 0]]), np.float32([[0.04, 0], [0.06, 0]]), {})
    assert many.tolist() == [0.0, -1.0]
