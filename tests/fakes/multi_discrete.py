"""A task of several choices at once, `Shown-v0`, whose best actions are what it shows."""

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


class Shown(gymnasium.Env):
    """Shows what is to be chosen, anew at each of five steps, and pays the share that is chosen so.

    Args:
        space: a key of ``SPACES``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's way

    def __init__(self, space: str, render_mode: str | None = None) -> None:
        self.action_space, self.render_mode = deepcopy(SPACES[space]), render_mode
        self.wishes = deepcopy(self.action_space)
        flat = flatten_space(self.wishes)
        self.observation_space = Box(flat.low.astype(np.float32), flat.high.astype(np.float32))

    def show(self) -> np.ndarray:
        """Another wish."""
        self.wish = self.wishes.sample()
        return flatten(self.wishes, self.wish).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins five steps."""
        super().reset(seed=seed)
        if seed is not None:
            self.wishes.seed(seed)
        self.left = 5
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Pays 1 for what was shown, less for what is partly so."""
        assert self.action_space.contains(action), action
        missed = np.minimum(1, np.abs(row(action) - row(self.wish))).mean()
        self.left -= 1
        return self.show(), 1 - float(missed), self.left == 0, False, {}

    def render(self) -> np.ndarray:
        """Black or white, as the first number that is shown."""
        return np.full((16, 16, 3), 255 * bool(row(self.wish)[0] > 0), np.uint8)


def row(value: Any) -> np.ndarray:
    """The numbers of an action, ``[n]``."""
    if isinstance(value, dict | tuple):
        return np.concatenate([row(each) for each in (value.values() if isinstance(value, dict) else value)])
    return np.ravel(value).astype(float)


gymnasium.register("Shown-v0", Shown)
