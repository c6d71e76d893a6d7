"""Tasks that forbid actions and raise where one is taken, as `Allows-v0`; some end badly."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

STEPS = 20


class ForbiddenError(Exception):
    """A forbidden action was taken."""


class Allows(gymnasium.Env):
    """Some of its actions are allowed at each step, drawn anew, and of these one pays 1.

    It observes which one pays, one-hot, and the step.

    Args:
        says: where it says what is allowed: ``entry`` of its dictionary, ``info`` or by a ``method``.
        actions: how many there are.
        allowed: how many of them at a step.
        start: the number of the first.
        pixels: whether it shows a picture beside.
        all_forbidden_at: a step at which none is allowed, though the episode goes on.
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
        return self.now()

    def step(self, action):
        chosen = int(action) - int(self.action_space.start)
        if not self.mask[chosen]:
            raise ForbiddenError(f"{chosen} of {self.mask}")
        self.steps += 1
        reward = float(chosen == self.right)
        seen, info = self.now()
        return seen, reward, self.steps == STEPS, False, info

    def now(self):
        actions = int(self.action_space.n)
        able = self.np_random.permutation(actions)[: self.count]
        self.right = able[0]
        self.mask = np.zeros(actions, np.int8)
        if self.steps not in (self.bad, STEPS):  # at its end a game often has no move left
            self.mask[able] = 1
        seen = np.append(np.eye(actions)[self.right], self.steps / STEPS).astype(np.float32)
        space = self.observation_space
        shown = {"observation": seen, "action_mask": self.mask}
        shown["pixels"] = np.full((12, 12, 1), 12 * self.steps, np.uint8)
        whole = {key: shown[key] for key in space.spaces} if isinstance(space, Dict) else seen
        return whole, {"action_mask": self.mask.copy()} if self.says == "info" else {}


class Both(gymnasium.Env):
    """Two choices, of three options and of four, each with two that are allowed; the first of both pay 1.

    It observes these.

    Args:
        says: as :class:`Allows`; ``tuple`` says it in ``info``, of each choice by itself.
        all_forbidden_at: a step at which the second choice has none, though the episode goes on.
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
        return self.now()

    def step(self, action):
        row = np.asarray(action) - self.action_space.start
        if not all(mask[chosen] for mask, chosen in zip(self.masks, row, strict=True)):
            raise ForbiddenError(f"{row} of {self.masks}")
        self.steps += 1
        reward = float((row == self.right).all())
        seen, info = self.now()
        return seen, reward, self.steps == STEPS, False, info

    def now(self):
        able = [self.np_random.permutation(size)[:2] for size in (3, 4)]
        self.right = np.array([each[0] for each in able])
        self.masks = tuple(np.zeros(size, np.int8) for size in (3, 4))
        for mask, each in zip(self.masks, able, strict=True):
            mask[each] = 1
        if self.steps == self.bad:
            self.masks[1][:] = 0
        seen = np.concatenate([np.eye(3)[self.right[0]], np.eye(4)[self.right[1]]]).astype(np.float32)
        flat = np.concatenate(self.masks)
        told = {"info": {"action_mask": flat}, "tuple": {"action_mask": self.masks}}.get(self.says, {})
        return {"observation": seen, "action_mask": flat} if self.says == "entry" else seen, told


class Walls(gymnasium.Env):
    """A way through rooms of ``size`` by ``size``, from a corner to the opposite one, a step costs 1.

    A wall has gaps at its ends by turns. What leads into a wall is forbidden or, with ``heeds=False``, does
    nothing.
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
        return self.now()

    def step(self, action):
        row, column = (here + by for here, by in zip(self.place, self.MOVES[action], strict=True))
        if self.free(row, column):
            self.place = (row, column)
        elif self.heeds:
            raise ForbiddenError(f"{action} at {self.place}")
        seen, info = self.now()
        return seen, -1.0, self.place == (self.size - 1, self.size - 1), False, info

    def now(self):
        seen = np.zeros((2, self.size), np.float32)
        seen[[0, 1], self.place] = 1
        row, column = self.place
        mask = np.array([self.free(row + by, column + along) for by, along in self.MOVES], np.int8)
        return seen.ravel(), {"action_mask": mask} if self.heeds else {}


gymnasium.register("Allows-v0", Allows)
gymnasium.register("Both-v0", Both)
gymnasium.register("Walls-v0", Walls, max_episode_steps=200)
