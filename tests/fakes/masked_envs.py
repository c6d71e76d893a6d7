"""Environments with action masks, which raise if an invalid action is taken."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

STEPS = 20


class InvalidActionError(Exception):
    """An invalid action was taken."""


class MaskedEnv(gymnasium.Env):
    """Environment with random valid actions at each step, one of which pays 1.

    It observes which one pays, one-hot, and the step.

    Args:
        says: source of the mask: ``entry`` of the observation, ``info`` or ``method``.
        actions: number of actions.
        allowed: number of valid ones at a step.
        start: the number of the first.
        pixels: whether it observes an image, too.
        all_forbidden_at: a step without a valid action, though the episode continues.
    """

    def __init__(
        self,
        says: str = "info",
        actions: int = 8,
        allowed: int = 3,
        start: int = 0,
        pixels: bool = False,
        all_forbidden_at: int = -1,
        **_: Any,
    ) -> None:
        self.says, self.count, self.bad = says, allowed, all_forbidden_at
        self.action_space = Discrete(actions, start=start)
        shown = {"observation": Box(0, 1, (actions + 1,), np.float32)}
        shown |= {"action_mask": MultiBinary(actions)} if says == "entry" else {}
        shown |= {"pixels": Box(0, 255, (12, 12, 1), np.uint8)} if pixels else {}
        self.observation_space = Dict(shown) if len(shown) > 1 else shown["observation"]
        if says == "method":
            self.action_masks = lambda: self.mask.astype(bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe()

    def step(self, action):
        chosen = int(action) - int(self.action_space.start)
        if not self.mask[chosen]:
            raise InvalidActionError(f"{chosen} of {self.mask}")
        self.steps += 1
        reward = float(chosen == self.right)
        observation, info = self.observe()
        return observation, reward, self.steps == STEPS, False, info

    def observe(self):
        actions = int(self.action_space.n)
        valid = self.np_random.permutation(actions)[: self.count]
        self.right = valid[0]
        self.mask = np.zeros(actions, np.int8)
        if self.steps not in (self.bad, STEPS):  # at its end a game often has no valid move
            self.mask[valid] = 1
        observation = np.append(np.eye(actions)[self.right], self.steps / STEPS).astype(np.float32)
        space = self.observation_space
        shown = {"observation": observation, "action_mask": self.mask}
        shown["pixels"] = np.full((12, 12, 1), 12 * self.steps, np.uint8)
        whole = {key: shown[key] for key in space.spaces} if isinstance(space, Dict) else observation
        return whole, {"action_mask": self.mask.copy()} if self.says == "info" else {}


class MaskedMultiDiscreteEnv(gymnasium.Env):
    """Environment of two choices, of three and four options, with two valid ones each; the first two pay 1.

    It observes these.

    Args:
        says: as :class:`MaskedEnv`; ``tuple``: in ``info``, a mask for each choice.
        all_forbidden_at: a step without a valid second choice, though the episode continues.
    """

    action_space = MultiDiscrete([3, 4], start=[0, 5])

    def __init__(self, says: str = "info", all_forbidden_at: int = -1, **_: Any) -> None:
        self.says, self.bad = says, all_forbidden_at
        shown = Box(0, 1, (7,), np.float32)
        self.observation_space = shown
        if says == "entry":
            self.observation_space = Dict(observation=shown, action_mask=MultiBinary(7))
        if says == "method":
            self.action_masks = lambda: np.concatenate(self.masks).astype(bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe()

    def step(self, action):
        row = np.asarray(action) - self.action_space.start
        if not all(mask[chosen] for mask, chosen in zip(self.masks, row, strict=True)):
            raise InvalidActionError(f"{row} of {self.masks}")
        self.steps += 1
        reward = float((row == self.right).all())
        observation, info = self.observe()
        return observation, reward, self.steps == STEPS, False, info

    def observe(self):
        valid = [self.np_random.permutation(size)[:2] for size in (3, 4)]
        self.right = np.array([options[0] for options in valid])
        self.masks = tuple(np.zeros(size, np.int8) for size in (3, 4))
        for mask, options in zip(self.masks, valid, strict=True):
            mask[options] = 1
        if self.steps == self.bad:
            self.masks[1][:] = 0
        observation = np.concatenate([np.eye(3)[self.right[0]], np.eye(4)[self.right[1]]]).astype(np.float32)
        flat = np.concatenate(self.masks)
        info = {"info": {"action_mask": flat}, "tuple": {"action_mask": self.masks}}.get(self.says, {})
        return {
            "observation": observation,
            "action_mask": flat,
        } if self.says == "entry" else observation, info


class MaskedMazeEnv(gymnasium.Env):
    """Maze of ``size`` x ``size`` cells, from one corner to the opposite one; each step costs 1.

    Walls have gaps at alternate ends. A move into a wall is invalid or, with ``heeds=False``, has no effect.
    """

    MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))

    def __init__(self, size: int = 5, heeds: bool = True, **_: Any) -> None:
        self.size, self.heeds = size, heeds
        self.action_space = Discrete(4)
        self.observation_space = Box(0, 1, (2 * size,), np.float32)

    def free(self, row: int, column: int) -> bool:
        if not (0 <= row < self.size and 0 <= column < self.size):
            return False
        gap = self.size - 1 if row % 4 == 1 else 0
        return row % 2 == 0 or column == gap

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = (0, 0)
        return self.observe()

    def step(self, action):
        row, column = (here + by for here, by in zip(self.place, self.MOVES[action], strict=True))
        if self.free(row, column):
            self.place = (row, column)
        elif self.heeds:
            raise InvalidActionError(f"{action} at {self.place}")
        observation, info = self.observe()
        return observation, -1.0, self.place == (self.size - 1, self.size - 1), False, info

    def observe(self):
        observation = np.zeros((2, self.size), np.float32)
        observation[[0, 1], self.place] = 1
        row, column = self.place
        mask = np.array([self.free(row + by, column + along) for by, along in self.MOVES], np.int8)
        return observation.ravel(), {"action_mask": mask} if self.heeds else {}


gymnasium.register("Allows-v0", MaskedEnv)
gymnasium.register("Both-v0", MaskedMultiDiscreteEnv)
gymnasium.register("Walls-v0", MaskedMazeEnv, max_episode_steps=200)
