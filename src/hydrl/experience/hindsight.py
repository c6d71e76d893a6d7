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
    GymWrapper,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SignTransform,
    Transform,
    TransformedEnv,
)

from hydrl.errors import UserError
from hydrl.experience.frame_dedup import slots
from hydrl.limits import Fraction
from hydrl.specs import is_vector, observation_keys

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
ROW_IDS = "hindsight"  # nested entry of a row: its number ("row") and that of its episode's first row
MIN_EQUAL_REWARDS = 0.99  # share of rewards that compute_reward has to reproduce; thresholds may round
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
        self.envs = self.steps = 1

    def attach(self, buffer: ReplayBuffer, env: TransformedEnv) -> None:
        """Connects the transform to its buffer and to the environment's reward function.

        Raises:
            UserError: for an environment without goals, or transforms that change goals.
        """
        task = goal_env(env)
        check_transforms(env)
        self.buffer, self.keys = buffer, [*observation_keys(env), "step_count"]
        scaling = [transform for transform in env.transform if isinstance(transform, SCALING)]
        self.compute_rewards = partial(compute_rewards, task, scaling)
        self.compute_terminated = partial(compute_terminated, task)

    def add_row_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """Copy of a fresh batch, ``[time]`` or ``[..., time]``, with row and episode numbers.

        Raises:
            UserError: if ``compute_reward`` does not reproduce the environment's rewards.
        """
        rows = batch.reshape(-1, batch.shape[-1])
        self.envs, self.steps = rows.shape
        written = self.buffer.write_count
        numbers = torch.arange(written, written + rows.numel(), device=batch.device).view(rows.shape)
        begins = torch.ones_like(numbers, dtype=torch.bool)
        begins[:, 1:] = rows["next", "done"][:, :-1, 0]
        episodes = numbers.where(begins, -1)
        episodes[:, 0] = self.running(rows[:, 0], numbers[:, 0])
        episodes = episodes.cummax(-1).values
        after = rows["next"]
        self.check_rewards(
            after[ACHIEVED].flatten(0, 1), rows[DESIRED].flatten(0, 1), after["reward"].flatten(0, 1)
        )
        place = TensorDict({"row": numbers, "episode": episodes}, rows.shape, device=batch.device)
        return batch.copy().set(ROW_IDS, place.reshape(batch.shape))

    def running(self, first: TensorDictBase, numbers: Tensor) -> Tensor:
        """Episode numbers of a batch's first rows, ``[envs]``: the running episode's if observations go on.

        For another worker's environments, new episodes begin.
        """
        if not len(self.buffer):
            return numbers
        envs = torch.arange(self.envs)
        last = self.buffer.storage.get(slots(self.buffer, self.row_id(envs, self.steps_per_env - 1)))
        last = last.to(numbers.device)
        goes_on = ~last["next", "done"][:, 0]
        for key in (key for key in self.keys if key in first.keys(True)):
            goes_on &= (first[key] == last["next"][key]).flatten(1).all(-1)
        return last[ROW_IDS, "episode"].where(goes_on, numbers)

    def check_rewards(self, achieved: Tensor, desired: Tensor, rewards: Tensor) -> None:
        """Compares ``compute_reward`` with the environment's rewards, ``[rows, 1]``.

        Raises:
            UserError: if too many differ.
        """
        recomputed = self.compute_rewards(achieved, desired)
        same = torch.isclose(recomputed, rewards, rtol=1e-3, atol=1e-4)
        if same.float().mean() < MIN_EQUAL_REWARDS:
            odd = int((~same).flatten().nonzero()[0])
            raise UserError(
                f"buffer=hindsight: step returned the reward {rewards[odd].item():g}, but compute_reward of "
                f"the achieved goal returns {recomputed[odd].item():g}. Remove wrappers that change rewards, "
                "and score the state that a step leads to."
            )

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Sampled rows, ``[rows]``, a share of them relabelled."""
        number, episode = rows[ROW_IDS, "row"], rows[ROW_IDS, "episode"]
        chosen = torch.rand(number.shape, device=number.device) < self.ratio
        env, time = self.env_and_time(number)
        ahead = self.steps_to_end(env, time, episode)
        if self.strategy == "future":
            ahead = (torch.rand(ahead.shape, device=ahead.device) * (ahead + 1)).long()
        goal = self.entry(("next", ACHIEVED), self.row_id(env, time + ahead))
        chosen = chosen.unsqueeze(-1)
        goal = goal.where(chosen, rows[DESIRED])
        after = rows["next"]
        achieved = after[ACHIEVED]
        reward = self.compute_rewards(achieved, goal).where(chosen, after["reward"])
        changed = {DESIRED: goal, "reward": reward} | self.terminated(rows, goal, chosen)
        return rows.exclude(ROW_IDS).set(DESIRED, goal).set("next", after.copy().update(changed))

    def terminated(self, rows: TensorDictBase, goal: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        """``terminated`` and ``done`` of relabelled rows; empty without ``compute_terminated``."""
        after = rows["next"]
        terminated_before, reached = after["terminated"], after[ACHIEVED]
        then, now = self.compute_terminated(reached, rows[DESIRED]), self.compute_terminated(reached, goal)
        if then is None or now is None:
            return {}
        terminated = ((terminated_before & ~then) | now).where(chosen, terminated_before)
        return {"terminated": terminated, "done": terminated | after["truncated"]}

    @property
    def steps_per_env(self) -> int:
        """Steps written so far for each environment."""
        return self.buffer.write_count // self.envs

    def env_and_time(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Environment and time step of a row number."""
        batch = self.envs * self.steps
        return number // self.steps % self.envs, number // batch * self.steps + number % self.steps

    def row_id(self, env: Tensor, time: Tensor | int) -> Tensor:
        """Row number of an environment's time step."""
        return time // self.steps * self.envs * self.steps + env * self.steps + time % self.steps

    def steps_to_end(self, env: Tensor, time: Tensor, episode: Tensor) -> Tensor:
        """Steps left in the same episode, by binary search over its consecutive rows."""
        least, most = torch.zeros_like(time), self.steps_per_env - 1 - time
        for _ in range(int(most.max()).bit_length()):
            middle = (least + most + 1) // 2
            same = self.entry((ROW_IDS, "episode"), self.row_id(env, time + middle)) == episode
            least, most = middle.where(same, least), most.where(same, middle - 1)
        return least

    def entry(self, key: Any, numbers: Tensor) -> Tensor:
        """An entry of the rows with these numbers."""
        column = self.buffer.storage.get(slice(None)).get(key)
        return column.index_select(0, slots(self.buffer, numbers).to(column.device)).to(numbers.device)


def find_hindsight(buffer: ReplayBuffer | None) -> Hindsight | None:
    """The buffer's goal relabelling; ``None`` if it has none."""
    transforms = () if buffer is None else buffer.transform
    return next((transform for transform in transforms if isinstance(transform, Hindsight)), None)


def goal_env(env: TransformedEnv) -> gymnasium.Env:
    """The (first) Gymnasium environment, whose methods score goals.

    Raises:
        UserError: if it has no goals that can be relabelled.
    """
    task = env.base_env._env if isinstance(env.base_env, GymWrapper) else None
    task = getattr(task, "envs", [task])[0]
    leaves = task.get_wrapper_attr("leaves") if task and task.has_wrapper_attr("leaves") else {}
    if {"observation", ACHIEVED, DESIRED} - leaves.keys() or not task.has_wrapper_attr("compute_reward"):
        raise UserError(
            "buffer=hindsight: it needs a Gymnasium environment that observes observation, achieved_goal and "
            "desired_goal and has compute_reward(achieved_goal, desired_goal, info). Write buffer=replay."
        )
    (_, achieved), (_, desired) = leaves[ACHIEVED], leaves[DESIRED]
    vectors = all(is_vector(env.observation_spec, key) for key in (ACHIEVED, DESIRED))
    if not (vectors and isinstance(desired, Box | MultiBinary) and achieved.shape == desired.shape):
        raise UserError(
            f"buffer=hindsight: achieved_goal is {achieved} and desired_goal {desired}, but both must be a "
            "Box or MultiBinary of one shape, and not images. Write buffer=replay."
        )
    return task


def check_transforms(env: TransformedEnv) -> None:
    """Checks that no transform changes goals, or rewards by anything but their value.

    Raises:
        UserError: naming the transform.
    """
    for transform in env.transform:
        keys, name = {*transform.in_keys, *transform.out_keys}, type(transform).__name__
        if keys & {ACHIEVED, DESIRED} and not isinstance(transform, DoubleToFloat):
            raise UserError(
                f"buffer=hindsight: {name} changes goals, and compute_reward needs them unchanged. Write "
                "transforms=plain, or transforms.normalize.in_keys=[observation]."
            )
        if "reward" in keys and not isinstance(transform, (DoubleToFloat, RewardSum, *SCALING)):
            raise UserError(
                f"buffer=hindsight: {name} cannot be applied to relabelled rewards. Leave it out, or scale "
                "rewards by torchrl.envs.RewardScaling."
            )


class UnavailableInfo:
    """The ``info`` passed to ``compute_reward``: any use raises, for relabelled goals have no info."""

    def refuse(self, *_: Any) -> NoReturn:
        """Raises on every access."""
        raise UserError(
            "buffer=hindsight: compute_reward reads info, which a relabelled goal does not have. Compute it "
            "from achieved_goal and desired_goal alone, or write buffer=replay."
        )

    __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = refuse


def call_goal_method(task: gymnasium.Env, method: str, achieved: Tensor, desired: Tensor) -> np.ndarray:
    """Result of an environment's method for goals ``[rows, size]``, converted to its goal space."""
    space = task.get_wrapper_attr("leaves")[DESIRED][1]
    goals = [
        goal.numpy(force=True).reshape(-1, *space.shape).astype(space.dtype) for goal in (achieved, desired)
    ]
    return np.asarray(task.get_wrapper_attr(method)(*goals, UnavailableInfo()))


def compute_rewards(
    task: gymnasium.Env, scaling: list[Transform], achieved: Tensor, desired: Tensor
) -> Tensor:
    """Rewards ``[rows, 1]`` by the environment's ``compute_reward``, scaled as the run's rewards.

    Args:
        task: the Gymnasium environment.
        scaling: reward transforms, in order.
        achieved: achieved goals, ``[rows, size]``.
        desired: desired goals, ``[rows, size]``.

    Raises:
        UserError: if ``compute_reward`` does not return one reward a row.
    """
    task_rewards = call_goal_method(task, "compute_reward", achieved, desired)
    if task_rewards.size != len(achieved):
        raise UserError(
            f"buffer=hindsight: compute_reward returned shape {list(task_rewards.shape)} for goals of shape "
            f"{list(achieved.shape)}. Return one reward for each row, as by np.linalg.norm(..., axis=-1)."
        )
    reward = torch.as_tensor(task_rewards, dtype=torch.float32).reshape(-1, 1).to(achieved.device)
    for transform in scaling:
        reward = transform(TensorDict({"reward": reward}, reward.shape[:1]))["reward"]
    return reward


def compute_terminated(task: gymnasium.Env, achieved: Tensor, desired: Tensor) -> Tensor | None:
    """Whether goals end an episode, ``[rows, 1]``; ``None`` without a vectorised ``compute_terminated``."""
    if not task.has_wrapper_attr("compute_terminated"):
        return None
    flags = call_goal_method(task, "compute_terminated", achieved, desired)
    if flags.size != len(achieved):
        return None
    return torch.as_tensor(flags, dtype=torch.bool).reshape(-1, 1).to(achieved.device)
