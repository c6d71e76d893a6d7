"""Environment `Shown-v0` of multi-discrete actions, whose best action is the observation."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatten, flatten_space

SPACES = {
    "unequal": MultiDiscrete([2, 4], start=[5, -1]),
    "equal": MultiDiscrete([3, 3]),
    "grid": MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32, start=[[1, 0], [-2, 3]]),
    "bits": MultiBinary(3),
    "grid of bits": MultiBinary((2, 2)),
    "one": MultiDiscrete([3], start=[1]),
    "one bit": MultiBinary(1),
    "nested": Dict(a=Discrete(2, start=1), b=Tuple((MultiDiscrete([3, 1]), MultiBinary(2)))),
    "tuple": Tuple((Discrete(2), Discrete(3))),
    "boxes": Dict(a=Box(-1, 1, (2, 2)), b=Tuple((Box(0, 3, (), np.float64),))),
}


class MultiDiscreteEnv(gymnasium.Env):
    """Environment that observes a random target action and pays the share of it that the action matches.

    Args:
        space: a key of ``SPACES``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's way

    def __init__(self, space: str, render_mode: str | None = None) -> None:
        self.action_space, self.render_mode = deepcopy(SPACES[space]), render_mode
        self.target_space = deepcopy(self.action_space)
        flat = flatten_space(self.target_space)
        self.observation_space = Box(flat.low.astype(np.float32), flat.high.astype(np.float32))

    def draw_target(self) -> np.ndarray:
        """Draws a target and returns it as an observation."""
        self.target = self.target_space.sample()
        return flatten(self.target_space, self.target).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins five steps."""
        super().reset(seed=seed)
        if seed is not None:
            self.target_space.seed(seed)
        self.left = 5
        return self.draw_target(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Pays 1 for the target, less for a partial match."""
        assert self.action_space.contains(action), action
        missed = np.minimum(1, np.abs(to_vector(action) - to_vector(self.target))).mean()
        self.left -= 1
        return self.draw_target(), 1 - float(missed), self.left == 0, False, {}

    def render(self) -> np.ndarray:
        """A black or white image, by the target's first number."""
        return np.full((16, 16, 3), 255 * bool(to_vector(self.target)[0] > 0), np.uint8)


def to_vector(value: Any) -> np.ndarray:
    """An action as a vector of floats, ``[n]``."""
    if isinstance(value, dict | tuple):
        return np.concatenate(
            [to_vector(part) for part in (value.values() if isinstance(value, dict) else value)]
        )
    return np.ravel(value).astype(float)


gymnasium.register("Shown-v0", MultiDiscreteEnv)
