"""Hindsight experience replay (Andrychowicz et al. 2017): goals are relabelled with achieved ones.

For environments that follow Gymnasium's goal convention: observations ``observation``, ``achieved_goal`` and
``desired_goal``, and a vectorised ``compute_reward(achieved_goal, desired_goal, info)``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiBinary
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.envs import (
    BinarizeReward,
    DoubleToFloat,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SignTransform,
    Transform,
    TransformedEnv,
)

from hydrl.envs.transforms import FixedNorm
from hydrl.errors import UserError
from hydrl.experience.frame_dedup import slots
from hydrl.limits import Fraction
from hydrl.specs import first_gym_env, is_vector, observation_keys

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
ROW_IDS = "hindsight"  # nested entry of a row: its number ("row") and that of its episode's first row
MIN_EQUAL_REWARDS = 0.99  # share of rewards that compute_reward must reproduce; thresholds may round
SCALING = (RewardScaling, RewardClipping, SignTransform, BinarizeReward)  # act on one reward at a time


def hindsight(
    storage: TensorStorage, her_ratio: Fraction, strategy: Literal["future", "final"]
) -> ReplayBuffer:
    """Uniform replay buffer that relabels goals when it samples.

    Args:
        storage: storage of the rows.
        her_ratio: share of sampled rows that are relabelled.
        strategy: ``future`` takes a goal achieved at this or a later step of the episode, uniformly;
            ``final`` takes the last one of the episode in the buffer.
    """
    return ReplayBuffer(storage=storage, transform=Hindsight(her_ratio, strategy))


class Hindsight(Transform):
    """Replay-buffer transform that replaces goals by later achieved ones and recomputes rewards.

    Rows are written batch by batch, environment by environment, so a row's number gives its environment and
    step. Together with the number of its episode's first row, that finds the episode's last row in the
    buffer, whatever has been overwritten; no other bookkeeping is needed.

    Args:
        ratio: share of sampled rows that are relabelled.
        strategy: see :func:`hindsight`.
    """

    buffer: ReplayBuffer
    compute_rewards: Callable[[Tensor, Tensor], Tensor]
    compute_terminated: Callable[[Tensor, Tensor], Tensor | None]

    def __init__(self, ratio: float, strategy: Literal["future", "final"]) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.ratio, self.strategy = ratio, strategy
        self.num_envs = self.batch_steps = 1

    def attach(self, buffer: ReplayBuffer, env: TransformedEnv) -> None:
        """Connects the transform to its buffer and to the environment's reward function.

        Raises:
            UserError: for an environment without goals, or transforms that change goals.
        """
        gym_env = goal_env(env)
        check_transforms(env)
        self.buffer, self.keys = buffer, [*observation_keys(env), "step_count"]
        scaling = [transform for transform in env.transform if isinstance(transform, SCALING)]
        self.compute_rewards = partial(compute_rewards, gym_env, scaling)
        self.compute_terminated = partial(compute_terminated, gym_env)
        norms = [transform for transform in env.transform if is_goal_norm(transform)]
        self.goal_norms = {key: norm for norm in norms for key in norm.in_keys}

    def raw_goals(self, key: str, goals: Tensor) -> Tensor:
        """Goals of an entry, ``[rows, size]``, without normalization, as the environment scores them."""
        if (norm := self.goal_norms.get(key)) is None:
            return goals
        return (goals - norm.loc.to(goals)) / norm.scale.to(goals)

    def as_desired(self, achieved: Tensor) -> Tensor:
        """Achieved goals, ``[rows, size]``, as the environment's transforms would give desired ones."""
        goals, norm = self.raw_goals(ACHIEVED, achieved), self.goal_norms.get(DESIRED)
        return goals if norm is None else goals * norm.scale.to(goals) + norm.loc.to(goals)

    def add_row_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """Copy of a fresh batch, ``[time]`` or ``[..., time]``, with row and episode numbers.

        Raises:
            UserError: if ``compute_reward`` does not reproduce the environment's rewards.
        """
        rows = batch.reshape(-1, batch.shape[-1])
        self.num_envs, self.batch_steps = rows.shape
        first_id = self.buffer.write_count
        row_ids = torch.arange(first_id, first_id + rows.numel(), device=batch.device).view(rows.shape)
        is_first = torch.ones_like(row_ids, dtype=torch.bool)
        is_first[:, 1:] = rows["next", "done"][:, :-1, 0]
        episode_ids = row_ids.where(is_first, -1)
        episode_ids[:, 0] = self.running(rows[:, 0], row_ids[:, 0])
        episode_ids = episode_ids.cummax(-1).values
        next_rows = rows["next"]
        achieved, desired = next_rows[ACHIEVED].flatten(0, 1), rows[DESIRED].flatten(0, 1)
        self.check_rewards(
            self.raw_goals(ACHIEVED, achieved),
            self.raw_goals(DESIRED, desired),
            next_rows["reward"].flatten(0, 1),
        )
        ids = TensorDict({"row": row_ids, "episode": episode_ids}, rows.shape, device=batch.device)
        return batch.copy().set(ROW_IDS, ids.reshape(batch.shape))

    def running(self, first_rows: TensorDictBase, row_ids: Tensor) -> Tensor:
        """Episode numbers of a batch's first rows, ``[envs]``: the running episode's if it continues.

        For another worker's environments, new episodes begin.
        """
        if not len(self.buffer):
            return row_ids
        envs = torch.arange(self.num_envs)
        last_rows = self.buffer.storage.get(slots(self.buffer, self.row_id(envs, self.steps_per_env - 1)))
        last_rows = last_rows.to(row_ids.device)
        continues = ~last_rows["next", "done"][:, 0]
        for key in (key for key in self.keys if key in first_rows.keys(True)):
            continues &= (first_rows[key] == last_rows["next"][key]).flatten(1).all(-1)
        return last_rows[ROW_IDS, "episode"].where(continues, row_ids)

    def check_rewards(self, achieved: Tensor, desired: Tensor, rewards: Tensor) -> None:
        """Compares ``compute_reward`` with the environment's rewards, ``[rows, 1]``.

        Raises:
            UserError: if too many differ.
        """
        recomputed = self.compute_rewards(achieved, desired)
        is_equal = torch.isclose(recomputed, rewards, rtol=1e-3, atol=1e-4)
        if is_equal.float().mean() < MIN_EQUAL_REWARDS:
            index = int((~is_equal).flatten().nonzero()[0])
            raise UserError(
                f"buffer=hindsight: step returned the reward {rewards[index].item():g}, but compute_reward "
                f"of the achieved goal returns {recomputed[index].item():g}. Remove wrappers that change "
                "rewards, and score the state that a step leads to."
            )

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Sampled rows, ``[rows]``, a share of them relabelled."""
        row_ids, episode_ids = rows[ROW_IDS, "row"], rows[ROW_IDS, "episode"]
        is_relabelled = torch.rand(row_ids.shape, device=row_ids.device) < self.ratio
        env, time = self.env_and_time(row_ids)
        steps_ahead = self.steps_to_end(env, time, episode_ids)
        if self.strategy == "future":
            share = torch.rand(steps_ahead.shape, device=steps_ahead.device)
            steps_ahead = (share * (steps_ahead + 1)).long()
        goal = self.as_desired(self.entry(("next", ACHIEVED), self.row_id(env, time + steps_ahead)))
        is_relabelled = is_relabelled.unsqueeze(-1)
        goal = goal.where(is_relabelled, rows[DESIRED])
        next_rows = rows["next"]
        achieved = self.raw_goals(ACHIEVED, next_rows[ACHIEVED])
        new_rewards = self.compute_rewards(achieved, self.raw_goals(DESIRED, goal))
        reward = new_rewards.where(is_relabelled, next_rows["reward"])
        relabelled = {DESIRED: goal, "reward": reward} | self.terminated(rows, goal, is_relabelled)
        return rows.exclude(ROW_IDS).set(DESIRED, goal).set("next", next_rows.copy().update(relabelled))

    def terminated(self, rows: TensorDictBase, goal: Tensor, is_relabelled: Tensor) -> dict[str, Tensor]:
        """``terminated`` and ``done`` of relabelled rows; empty without ``compute_terminated``."""
        next_rows = rows["next"]
        terminated_before, achieved = next_rows["terminated"], self.raw_goals(ACHIEVED, next_rows[ACHIEVED])
        terminated_then = self.compute_terminated(achieved, self.raw_goals(DESIRED, rows[DESIRED]))
        terminated_now = self.compute_terminated(achieved, self.raw_goals(DESIRED, goal))
        if terminated_then is None or terminated_now is None:
            return {}
        terminated = ((terminated_before & ~terminated_then) | terminated_now).where(
            is_relabelled, terminated_before
        )
        return {"terminated": terminated, "done": terminated | next_rows["truncated"]}

    @property
    def steps_per_env(self) -> int:
        """Steps written so far for each environment."""
        return self.buffer.write_count // self.num_envs

    def env_and_time(self, row_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Environment and time step of a row number."""
        batch = self.num_envs * self.batch_steps
        return (
            row_ids // self.batch_steps % self.num_envs,
            row_ids // batch * self.batch_steps + row_ids % self.batch_steps,
        )

    def row_id(self, env: Tensor, time: Tensor | int) -> Tensor:
        """Row number of an environment's time step."""
        return (
            time // self.batch_steps * self.num_envs * self.batch_steps
            + env * self.batch_steps
            + time % self.batch_steps
        )

    def steps_to_end(self, env: Tensor, time: Tensor, episode: Tensor) -> Tensor:
        """Steps left in the same episode, by binary search over its consecutive rows."""
        low, high = torch.zeros_like(time), self.steps_per_env - 1 - time
        for _ in range(int(high.max()).bit_length()):
            middle = (low + high + 1) // 2
            is_same = self.entry((ROW_IDS, "episode"), self.row_id(env, time + middle)) == episode
            low, high = middle.where(is_same, low), high.where(is_same, middle - 1)
        return low

    def entry(self, key: Any, row_ids: Tensor) -> Tensor:
        """An entry of the rows with these numbers."""
        column = self.buffer.storage.get(slice(None)).get(key)
        return column.index_select(0, slots(self.buffer, row_ids).to(column.device)).to(row_ids.device)


def find_hindsight(buffer: ReplayBuffer | None) -> Hindsight | None:
    """The buffer's goal relabelling; ``None`` if it has none."""
    transforms = () if buffer is None else buffer.transform
    return next((transform for transform in transforms if isinstance(transform, Hindsight)), None)


def goal_env(env: TransformedEnv) -> gymnasium.Env:
    """The (first) Gymnasium environment, whose methods score goals.

    Raises:
        UserError: if it has no goals that can be relabelled.
    """
    gym_env = first_gym_env(env)
    leaves = gym_env.get_wrapper_attr("leaves") if gym_env and gym_env.has_wrapper_attr("leaves") else {}
    if {"observation", ACHIEVED, DESIRED} - leaves.keys() or not gym_env.has_wrapper_attr("compute_reward"):
        raise UserError(
            "buffer=hindsight: it needs a Gymnasium environment that observes observation, achieved_goal and "
            "desired_goal and has compute_reward(achieved_goal, desired_goal, info), as env=robotics has. "
            "Write buffer=replay."
        )
    (_, achieved), (_, desired) = leaves[ACHIEVED], leaves[DESIRED]
    are_vectors = all(is_vector(env.observation_spec, key) for key in (ACHIEVED, DESIRED))
    if not (are_vectors and isinstance(desired, Box | MultiBinary) and achieved.shape == desired.shape):
        raise UserError(
            f"buffer=hindsight: achieved_goal is {achieved} and desired_goal {desired}, but both must be a "
            "Box or MultiBinary of one shape, and not images. Write buffer=replay."
        )
    return gym_env


def is_goal_norm(transform: Transform) -> bool:
    """Whether a transform normalizes goals with fixed statistics, which relabelling can undo."""
    keys = {ACHIEVED, DESIRED} & {*transform.in_keys}
    return bool(keys) and isinstance(transform, FixedNorm) and not transform.standard_normal


def check_transforms(env: TransformedEnv) -> None:
    """Checks that no transform changes goals but by fixed statistics, or rewards but by their value.

    Raises:
        UserError: naming the transform.
    """
    for transform in env.transform:
        keys, name = {*transform.in_keys, *transform.out_keys}, type(transform).__name__
        changes_goals = keys & {ACHIEVED, DESIRED} and not isinstance(transform, DoubleToFloat)
        if changes_goals and not is_goal_norm(transform):
            raise UserError(
                f"buffer=hindsight: {name} changes goals, and compute_reward needs them unchanged. Write "
                "transforms=plain, or transforms=normalized with init_stats_frames=1_000."
            )
        if "reward" in keys and not isinstance(transform, (DoubleToFloat, RewardSum, *SCALING)):
            raise UserError(
                f"buffer=hindsight: {name} cannot be applied to relabelled rewards. Leave it out, or scale "
                "rewards by torchrl.envs.RewardScaling."
            )


class UnavailableInfo:
    """Placeholder of ``info`` for ``compute_reward``: any use raises, as relabelled goals have no info."""

    def refuse(self, *_: Any) -> NoReturn:
        """Raises on every access."""
        raise UserError(
            "buffer=hindsight: compute_reward reads info, which a relabelled goal does not have. Compute it "
            "from achieved_goal and desired_goal alone, or write buffer=replay."
        )

    __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = refuse


def call_goal_method(gym_env: gymnasium.Env, method: str, achieved: Tensor, desired: Tensor) -> np.ndarray:
    """Result of an environment's method for goals ``[rows, size]``, converted to its goal space."""
    space = gym_env.get_wrapper_attr("leaves")[DESIRED][1]
    goals = [goal.numpy(force=True).reshape(-1, *space.shape) for goal in (achieved, desired)]
    if space.dtype.kind != "f":
        goals = [goal.round() for goal in goals]  # normalization is undone up to rounding
    goals = [goal.astype(space.dtype) for goal in goals]
    return np.asarray(gym_env.get_wrapper_attr(method)(*goals, UnavailableInfo()))


def compute_rewards(
    gym_env: gymnasium.Env, scaling: list[Transform], achieved: Tensor, desired: Tensor
) -> Tensor:
    """Rewards ``[rows, 1]`` by the environment's ``compute_reward``, scaled as the run's rewards.

    Args:
        gym_env: the Gymnasium environment.
        scaling: reward transforms, in order.
        achieved: achieved goals, ``[rows, size]``.
        desired: desired goals, ``[rows, size]``.

    Raises:
        UserError: if ``compute_reward`` does not return one reward a row.
    """
    env_rewards = call_goal_method(gym_env, "compute_reward", achieved, desired)
    if env_rewards.size != len(achieved):
        raise UserError(
            f"buffer=hindsight: compute_reward returned shape {list(env_rewards.shape)} for goals of shape "
            f"{list(achieved.shape)}. Return one reward for each row, as by np.linalg.norm(..., axis=-1)."
        )
    reward = torch.as_tensor(env_rewards, dtype=torch.float32).reshape(-1, 1).to(achieved.device)
    for transform in scaling:
        reward = transform(TensorDict({"reward": reward}, reward.shape[:1]))["reward"]
    return reward


def compute_terminated(gym_env: gymnasium.Env, achieved: Tensor, desired: Tensor) -> Tensor | None:
    """Whether goals end an episode, ``[rows, 1]``; ``None`` without a vectorised ``compute_terminated``."""
    if not gym_env.has_wrapper_attr("compute_terminated"):
        return None
    flags = call_goal_method(gym_env, "compute_terminated", achieved, desired)
    if flags.size != len(achieved):
        return None
    return torch.as_tensor(flags, dtype=torch.bool).reshape(-1, 1).to(achieved.device)
