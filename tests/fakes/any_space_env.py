"""Environment `Any-v0` with spaces of any kind, which records its transitions."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

VECTOR = Box(-1, 1, (2,), np.float32)
# Two channels of colour and one of depth.
DEPTH = Box(np.tile(np.float32([0, 0, -10]), (12, 16, 1)), np.tile(np.float32([255, 255, 10]), (12, 16, 1)))
KINDS: dict[str, tuple[gymnasium.Space, gymnasium.Space]] = {  # observation and action space
    "start": (VECTOR, Discrete(3, start=5)),
    "choices": (Discrete(4, start=2), MultiDiscrete([2, 3], start=[1, -1])),
    "one choice": (MultiDiscrete([2, 3], start=[1, 4]), MultiDiscrete([3], start=[1])),
    "bits": (MultiBinary(3), MultiBinary(2)),
    "matrix": (Box(-2, 2, (2, 2), np.float64), Box(-1, 3, (2, 2), np.float64)),
    "doubles": (Box(-1, 1, (3,), np.float64), Box(-1, 3, (2,), np.float64)),
    "integers": (Box(-5, 5, (2, 2), np.int16), Box(-1, 3, (2,), np.float32)),
    "picture": (Box(0, 255, (12, 16, 3), np.uint8), Discrete(2)),
    "square": (Box(0, 255, (6, 6, 6), np.uint8), Discrete(2, start=-1)),
    "deep": (Box(0, 65_535, (12, 16, 1), np.uint16), Discrete(2)),
    "signed": (Box(-128, 127, (3, 12, 16), np.int8), MultiDiscrete([3], start=[1])),
    "floats": (DEPTH, Box(-1, 3, (2, 2), np.float64)),
    "dictionary": (
        Dict(state=VECTOR, goal=Discrete(3, start=1), camera=Box(0, 255, (12, 12, 3), np.uint8)),
        Dict(a=Box(-1, 1, (2, 2), np.float32), b=Tuple((Box(0, 3, (1,), np.float32),))),
    ),
    "tuple": (Tuple((Discrete(3, start=1), Box(-1, 1, (2,), np.float32))), Box(-1, 1, (1,), np.float32)),
}


class AnySpaceEnv(gymnasium.Env):
    """Environment of four random observations; an action outside its space fails.

    Args:
        kind: a key of ``KINDS``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's way
    record: list[tuple[Any, Any, Any]] | None = None  # of all: observation, action, next observation

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = deepcopy(KINDS[kind])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        super().reset(seed=seed)
        self.left, self.now = 4, self.observation_space.sample()
        return self.now, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Draws another observation."""
        assert self.action_space.contains(action), action
        before, self.now, self.left = self.now, self.observation_space.sample(), self.left - 1
        if self.record is not None:
            self.record.append((before, deepcopy(action), self.now))
        return self.now, 1.0, self.left == 0, False, {}

    def render(self) -> np.ndarray:
        """A small black image."""
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("Any-v0", AnySpaceEnv)
