"""Environments with image and dictionary observations, which are learned in seconds."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class DotEnv(gymnasium.Env):
    """Environment that observes an image of a dot and pays for the action that names its side; five steps.

    Args:
        size: pixels of a side.
        channels: of the image; ``None``: grey, ``[H, W]``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's way

    def __init__(self, size: int = 12, channels: int | None = 3, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        shape = (size, size) if channels is None else (size, size, channels)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(2)
        self.picture = np.zeros(shape, np.uint8)  # changed in place, as environments do

    def show(self) -> np.ndarray:
        """Draws a new image, in the same array."""
        self.side, self.picture[:] = int(self.np_random.integers(2)), 0
        row, column = self.np_random.integers(self.size), self.np_random.integers(self.size // 2)
        self.picture[row, column + self.side * (self.size // 2)] = 255
        return self.picture

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins five steps."""
        super().reset(seed=seed)
        self.left = 5
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Pays 1 for the dot's side."""
        reward, self.left = float(action == self.side), self.left - 1
        return self.show(), reward, self.left == 0, False, {}

    def render(self) -> np.ndarray:
        """The image in colours."""
        picture = self.picture if self.picture.ndim == 3 else self.picture[..., None]
        return np.broadcast_to(picture[..., :1], (self.size, self.size, 3)).repeat(4, 0).repeat(4, 1)


class DotSceneEnv(gymnasium.ObservationWrapper):
    """Dictionary of the dot's image, a discrete entry that names the side, and a vector."""

    def __init__(self, size: int = 40, render_mode: str | None = None) -> None:
        super().__init__(DotEnv(size, render_mode=render_mode))
        entries = {"camera": self.env.observation_space, "goal": Discrete(2, start=1)}
        self.observation_space = Dict({**entries, "speed": Box(-1.0, 1.0, (2,), np.float64)})

    def observation(self, observation: Any) -> dict[str, Any]:
        """Adds the side and the vector."""
        return {"camera": observation, "goal": 1 + self.env.side, "speed": np.array([0.5, -0.5])}


class DotAimEnv(DotEnv):
    """The dot's image with a continuous action: the dot's column, from -1 to 1."""

    def __init__(self, size: int = 12, channels: int | None = 3, render_mode: str | None = None) -> None:
        super().__init__(size, channels, render_mode)
        self.action_space = Box(-2.0, 2.0, (1,))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Pays 1 minus the distance to the dot's column."""
        column = self.picture.reshape(*self.picture.shape[:2], -1).any((0, 2)).argmax()
        miss = abs(float(action[0]) - (2 * column / (self.size - 1) - 1))
        observation, _, *ends = super().step(0)
        return observation, 1 - miss, *ends


gymnasium.register("Dot-v0", DotEnv)
gymnasium.register("Aim-v0", DotAimEnv)
gymnasium.register("Scene-v0", DotSceneEnv)
