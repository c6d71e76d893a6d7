"""Goals relabelled in hindsight: what was reached by chance teaches how it is reached.

Hindsight experience replay (Andrychowicz et al. 2017), for tasks that keep to Gymnasium's convention of
goals: they observe ``observation``, ``achieved_goal`` and ``desired_goal`` and have
``compute_reward(achieved_goal, desired_goal, info)``, which judges many goals at once.
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
from hydrl.specs import is_vector, observation_keys

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
PLACE = "hindsight"  # entry of a row below which its number stands, and that of its episode's first row
ALIKE = 0.99  # the least share of rewards that compute_reward has to find again; a limit may be rounded
SCALING = (
    RewardScaling,
    RewardClipping,
    SignTransform,
    BinarizeReward,
)  # which know nothing of other rewards


def hindsight(storage: TensorStorage, her_ratio: float, strategy: Literal["future", "final"]) -> ReplayBuffer:
    """A uniform replay memory whose goals are relabelled as they are drawn.

    Args:
        storage: of the rows.
        her_ratio: the share of rows that are relabelled.
        strategy: by a state that is reached later in the same episode, this step's among them, each as
            likely; or by the ``final`` one of those that are in memory.
    """
    return ReplayBuffer(storage=storage, transform=Hindsight(her_ratio, strategy))


class Hindsight(Transform):
    """Puts what was reached later in the place of a row's goal, and judges its reward anew.

    Rows are written batch by batch, environment by environment, so that the number of a row says which step
    of which environment it is. With its episode's first row's number beside it, the last row of the episode
    is found in memory itself, whatever has been written over: there is nothing else to keep.

    Args:
        ratio: the share of rows that are relabelled.
        strategy: see :func:`hindsight`.
    """

    buffer: ReplayBuffer
    reward: Callable[[Tensor, Tensor], Tensor]
    ends: Callable[[Tensor, Tensor], Tensor | None]

    def __init__(self, ratio: float, strategy: Literal["future", "final"]) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.ratio, self.strategy = ratio, strategy
        self.envs = self.steps = 1

    def of_task(self, buffer: ReplayBuffer, env: TransformedEnv) -> None:
        """Learns which buffer it is of, and what judges its goals.

        Raises:
            UserError: for a task without goals, or transforms after which they cannot be judged.
        """
        task = goal_task(env)
        check_transforms(env)
        self.buffer, self.keys = buffer, [*observation_keys(env), "step_count"]
        scaling = [each for each in env.transform if isinstance(each, SCALING)]
        self.reward = partial(rewards, task, scaling)
        self.ends = partial(ended, task)

    def numbered(self, batch: TensorDictBase) -> TensorDictBase:
        """A fresh batch, ``[time]`` or ``[..., time]``, whose rows have their numbers and their episodes'.

        Raises:
            UserError: where ``compute_reward`` does not find the rewards that the task gave.
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
        self.hold(after[ACHIEVED].flatten(0, 1), rows[DESIRED].flatten(0, 1), after["reward"].flatten(0, 1))
        place = TensorDict({"row": numbers, "episode": episodes}, rows.shape, device=batch.device)
        return batch.copy().set(PLACE, place.reshape(batch.shape))

    def running(self, first: TensorDictBase, numbers: Tensor) -> Tensor:
        """The episodes of a batch's first rows, ``[envs]``: the running ones, where what is seen is seen on.

        Another worker's environments begin anew here: nothing is known of what was before.
        """
        if not len(self.buffer):
            return numbers
        envs = torch.arange(self.envs)
        last = self.buffer.storage.get(slots(self.buffer, self.number(envs, self.times - 1)))
        last = last.to(numbers.device)
        goes_on = ~last["next", "done"][:, 0]
        for key in (key for key in self.keys if key in first.keys(True)):
            goes_on &= (first[key] == last["next"][key]).flatten(1).all(-1)
        return last[PLACE, "episode"].where(goes_on, numbers)

    def hold(self, achieved: Tensor, desired: Tensor, given: Tensor) -> None:
        """Holds ``compute_reward`` against the rewards of a task.

        Raises:
            UserError: where these are others.
        """
        found = self.reward(achieved, desired)
        same = torch.isclose(found, given, rtol=1e-3, atol=1e-4)
        if same.float().mean() < ALIKE:
            odd = int((~same).flatten().nonzero()[0])
            raise UserError(
                f"buffer=hindsight: the task gave the reward {given[odd].item():g} where its compute_reward "
                f"of the goal that was reached says {found[odd].item():g}; no wrapper may change it, and it "
                "has to judge the state that a step leads to"
            )

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Rows as they are drawn, ``[rows]``, of which a share are relabelled."""
        number, episode = rows[PLACE, "row"], rows[PLACE, "episode"]
        chosen = torch.rand(number.shape, device=number.device) < self.ratio
        env, time = self.place(number)
        ahead = self.left(env, time, episode)
        if self.strategy == "future":
            ahead = (torch.rand(ahead.shape, device=ahead.device) * (ahead + 1)).long()
        goal = self.entry(("next", ACHIEVED), self.number(env, time + ahead))
        chosen = chosen.unsqueeze(-1)
        goal = goal.where(chosen, rows[DESIRED])
        after = rows["next"]
        achieved = after[ACHIEVED]
        reward = self.reward(achieved, goal).where(chosen, after["reward"])
        changed = {DESIRED: goal, "reward": reward} | self.terminated(rows, goal, chosen)
        return rows.exclude(PLACE).set(DESIRED, goal).set("next", after.copy().update(changed))

    def terminated(self, rows: TensorDictBase, goal: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        """How relabelled rows end, where the task says so; nothing where it does not."""
        after = rows["next"]
        given, reached = after["terminated"], after[ACHIEVED]
        then, now = self.ends(reached, rows[DESIRED]), self.ends(reached, goal)
        if then is None or now is None:
            return {}
        terminated = ((given & ~then) | now).where(chosen, given)
        return {"terminated": terminated, "done": terminated | after["truncated"]}

    @property
    def times(self) -> int:
        """Steps of each environment that were written so far."""
        return self.buffer.write_count // self.envs

    def place(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """The environment and the time of a row."""
        batch = self.envs * self.steps
        return number // self.steps % self.envs, number // batch * self.steps + number % self.steps

    def number(self, env: Tensor, time: Tensor | int) -> Tensor:
        """The number of the row of an environment at a time."""
        return time // self.steps * self.envs * self.steps + env * self.steps + time % self.steps

    def left(self, env: Tensor, time: Tensor, episode: Tensor) -> Tensor:
        """Steps that follow in the same episode; its rows come one after another, so halving finds them."""
        least, most = torch.zeros_like(time), self.times - 1 - time
        for _ in range(int(most.max()).bit_length()):
            middle = (least + most + 1) // 2
            same = self.entry((PLACE, "episode"), self.number(env, time + middle)) == episode
            least, most = middle.where(same, least), most.where(same, middle - 1)
        return least

    def entry(self, key: Any, numbers: Tensor) -> Tensor:
        """An entry of the rows of these numbers."""
        kept = self.buffer.storage.get(slice(None)).get(key)
        return kept.index_select(0, slots(self.buffer, numbers).to(kept.device)).to(numbers.device)


def goals_of(buffer: ReplayBuffer | None) -> Hindsight | None:
    """What relabels a buffer's goals; ``None`` where nothing does."""
    transforms = () if buffer is None else buffer.transform
    return next((each for each in transforms if isinstance(each, Hindsight)), None)


def goal_task(env: TransformedEnv) -> gymnasium.Env:
    """The task, of several environments the first, which says what a goal is worth.

    Raises:
        UserError: where it has no goals that can be relabelled.
    """
    task = env.base_env._env if isinstance(env.base_env, GymWrapper) else None
    task = getattr(task, "envs", [task])[0]
    leaves = task.get_wrapper_attr("leaves") if task and task.has_wrapper_attr("leaves") else {}
    if {"observation", ACHIEVED, DESIRED} - leaves.keys() or not task.has_wrapper_attr("compute_reward"):
        raise UserError(
            "buffer=hindsight relabels goals of Gymnasium tasks that observe observation, achieved_goal and "
            "desired_goal and have compute_reward(achieved_goal, desired_goal, info), and this one does not; "
            "use buffer=replay"
        )
    (_, achieved), (_, desired) = leaves[ACHIEVED], leaves[DESIRED]
    vectors = all(is_vector(env.observation_spec, key) for key in (ACHIEVED, DESIRED))
    if not (vectors and isinstance(desired, Box | MultiBinary) and achieved.shape == desired.shape):
        raise UserError(
            f"buffer=hindsight: achieved_goal is {achieved} and desired_goal {desired}; both have to be "
            "a Box or MultiBinary of one shape, and no pictures; use buffer=replay"
        )
    return task


def check_transforms(env: TransformedEnv) -> None:
    """Refuses what changes goals, or changes rewards by more than themselves.

    Raises:
        UserError: naming the transform.
    """
    for each in env.transform:
        keys, name = {*each.in_keys, *each.out_keys}, type(each).__name__
        if keys & {ACHIEVED, DESIRED} and not isinstance(each, DoubleToFloat):
            raise UserError(
                f"buffer=hindsight: {name} changes goals, and the task judges them as it gave them; use "
                "transforms=plain, or transforms.normalize.in_keys=[observation]"
            )
        if "reward" in keys and not isinstance(each, (DoubleToFloat, RewardSum, *SCALING)):
            raise UserError(
                f"buffer=hindsight: a relabelled reward cannot be changed as by {name}; leave that out, or "
                "scale rewards by torchrl.envs.RewardScaling"
            )


class Unread:
    """The ``info`` that ``compute_reward`` is given: there is none of a goal that nobody had."""

    def refuse(self, *_: Any) -> NoReturn:
        """Whatever is asked of it."""
        raise UserError(
            "buffer=hindsight: the task's compute_reward reads info, and there is none of a goal that nobody "
            "had; let it judge by achieved_goal and desired_goal alone, or use buffer=replay"
        )

    __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = refuse


def judged(task: gymnasium.Env, method: str, achieved: Tensor, desired: Tensor) -> np.ndarray:
    """What a method of a task says of goals, ``[rows, size]``, which it is given as its spaces have them."""
    space = task.get_wrapper_attr("leaves")[DESIRED][1]
    goals = [
        each.numpy(force=True).reshape(-1, *space.shape).astype(space.dtype) for each in (achieved, desired)
    ]
    return np.asarray(task.get_wrapper_attr(method)(*goals, Unread()))


def rewards(task: gymnasium.Env, scaling: list[Transform], achieved: Tensor, desired: Tensor) -> Tensor:
    """Rewards ``[rows, 1]``, scaled as those of the run.

    Args:
        task: judges.
        scaling: transforms of rewards, in order.
        achieved: goals that are reached, ``[rows, size]``.
        desired: goals that were to be.

    Raises:
        UserError: if the task does not judge each row.
    """
    found = judged(task, "compute_reward", achieved, desired)
    if found.size != len(achieved):
        raise UserError(
            f"buffer=hindsight: compute_reward gave {list(found.shape)} numbers for goals of shape "
            f"{list(achieved.shape)}; it has to give one for each row, as by np.linalg.norm(..., axis=-1)"
        )
    given = torch.as_tensor(found, dtype=torch.float32).reshape(-1, 1).to(achieved.device)
    for each in scaling:
        given = each(TensorDict({"reward": given}, given.shape[:1]))["reward"]
    return given


def ended(task: gymnasium.Env, achieved: Tensor, desired: Tensor) -> Tensor | None:
    """Where goals end an episode, ``[rows, 1]``; ``None`` where the task does not say it row by row."""
    if not task.has_wrapper_attr("compute_terminated"):
        return None
    found = judged(task, "compute_terminated", achieved, desired)
    if found.size != len(achieved):
        return None
    return torch.as_tensor(found, dtype=torch.bool).reshape(-1, 1).to(achieved.device)
