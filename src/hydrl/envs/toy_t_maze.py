"""T-maze: a signal at the start decides the turn at the end (Bakker 2001), a test of recurrent policies."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

CELL_PIXELS = 16  # pixels of a cell's side in a video
SIDES = (-1.0, 1.0)


class TMaze(gymnasium.Env):
    """T-maze environment: the agent walks a corridor, and a turn to the side shown at the start pays 1.

    The mean return is the share of right turns; without an RNN it is one half. The observation is the side,
    -1 or 1, at the start and 0 later, and 1 at the turn.

    Args:
        corridor: steps from the start to the turn.
        render_mode: ``rgb_array`` or ``None``.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, corridor: int = 10, render_mode: str | None = None) -> None:
        self.corridor, self.render_mode = corridor, render_mode
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Draws a side and shows it."""
        super().reset(seed=seed)
        self.side, self.steps = int(self.np_random.integers(2)), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """A step forward, whatever the action; at the turn 0 is left and 1 right."""
        ended = self.steps == self.corridor
        self.steps += 1
        return self.observe(), float(ended and int(action) == self.side), ended, False, {}

    def observe(self) -> np.ndarray:
        """The side at the start, and whether the turn is here."""
        signal = SIDES[self.side] if self.steps == 0 else 0.0
        return np.array([signal, self.steps == self.corridor], np.float32)

    def render(self) -> Any:
        """An image of the maze, the paying side and the agent, ``[3 * CELL_PIXELS, ..., 3]``."""
        cells = np.zeros((3, self.corridor + 1, 3), np.uint8)
        cells[1], cells[:, -1] = 200, 200
        cells[2 * self.side, -1] = (0, 160, 0)
        cells[1, min(self.steps, self.corridor)] = (200, 0, 0)
        return np.kron(cells, np.ones((CELL_PIXELS, CELL_PIXELS, 1), np.uint8))


gymnasium.register("TMaze-v0", entry_point=TMaze)
