"""Tasks that show pictures and dictionaries, small enough to be learned in seconds.

Registered by ``env.id=tests.pictures:NAME-v0``.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Dot(gymnasium.Env):
    """A dot left or right in a picture; pays for the action that says where, five times.

    Args:
        size: of its sides.
        channels: colours; ``None`` is grey without a dimension of its own.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's way

    def __init__(self, size: int = 12, channels: int | None = 3, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        shape = (size, size) if channels is None else (size, size, channels)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(2)
        self.picture = np.zeros(shape, np.uint8)  # changed in place, as tasks do

    def show(self) -> np.ndarray:
        """A new picture, in the same array."""
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
        """Pays 1 for the side that was shown."""
        reward, self.left = float(action == self.side), self.left - 1
        return self.show(), reward, self.left == 0, False, {}

    def render(self) -> np.ndarray:
        """The picture in colours."""
        picture = self.picture if self.picture.ndim == 3 else self.picture[..., None]
        return np.broadcast_to(picture[..., :1], (self.size, self.size, 3)).repeat(4, 0).repeat(4, 1)


class Scene(gymnasium.ObservationWrapper):
    """The same with a choice and a vector beside, in a dictionary; the choice says which action pays."""

    def __init__(self, size: int = 40, render_mode: str | None = None) -> None:
        super().__init__(Dot(size, render_mode=render_mode))
        entries = {"camera": self.env.observation_space, "goal": Discrete(2, start=1)}
        self.observation_space = Dict({**entries, "speed": Box(-1.0, 1.0, (2,), np.float64)})

    def observation(self, observation: Any) -> dict[str, Any]:
        """With where the dot is as the choice."""
        return {"camera": observation, "goal": 1 + self.env.side, "speed": np.array([0.5, -0.5])}


class Aim(Dot):
    """Pays by how near a number is to the column of the dot, from -1 to 1."""

    def __init__(self, size: int = 12, channels: int | None = 3, render_mode: str | None = None) -> None:
        super().__init__(size, channels, render_mode)
        self.action_space = Box(-2.0, 2.0, (1,))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Pays 1 for what is right, less for what is further off."""
        column = self.picture.reshape(*self.picture.shape[:2], -1).any((0, 2)).argmax()
        miss = abs(float(action[0]) - (2 * column / (self.size - 1) - 1))
        observation, _, *ends = super().step(0)
        return observation, 1 - miss, *ends


gymnasium.register("Dot-v0", Dot)
gymnasium.register("Aim-v0", Aim)
gymnasium.register("Scene-v0", Scene)
