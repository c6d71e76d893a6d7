"""MinAtar: five games of ten by ten cells that a small network learns in minutes (Young and Tian 2019)."""

from contextlib import suppress
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random

from hydrl.envs.optional import check_id, check_probability, require_package
from hydrl.errors import UserError

CELL_PIXELS = 32  # pixels of a cell's side in a film
FPS = 20  # steps a second there, as in MinAtar's own window


def make(
    id: str,
    sticky: float = 0.1,
    difficulty_ramping: bool = True,
    max_episode_steps: int = 5_000,
    **kwargs: Any,
) -> gymnasium.Env:
    """A game, which shows ``[10, 10, channels]`` of truth values.

    Args:
        id: as ``MinAtar/Breakout-v1``, of the actions that do something in it; of ``-v0`` all games have the
            same six.
        sticky: the probability that the action before is taken once more in place of the one that is given.
        difficulty_ramping: whether opponents become faster and more as an episode goes on, in the games that
            have it.
        max_episode_steps: after which an episode is truncated, for some games end only where one plays badly.
        **kwargs: others of ``gymnasium.make``.

    Raises:
        UserError: for a game that there is not, for episodes of no steps, or where MinAtar is not installed.
    """
    for module in ("matplotlib.pyplot", "seaborn"):  # which MinAtar imports where Ctrl-C would be swallowed
        with suppress(ImportError):
            import_module(module)
    package = require_package("minatar.gym", "minatar")
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        package.register_envs()
    check_id(id, [env_id for env_id in gymnasium.registry if env_id.startswith("MinAtar/")])
    check_probability("env.sticky", sticky)
    if max_episode_steps < 1:
        raise UserError(f"env.max_episode_steps={max_episode_steps}: should be 1 or more")
    kwargs |= {"sticky_action_prob": sticky, "difficulty_ramping": difficulty_ramping}
    return MinAtarWrapper(gymnasium.make(id, max_episode_steps=max_episode_steps, **kwargs))


class MinAtarWrapper(gymnasium.Wrapper):
    """Begins each episode as the first one, and draws pictures of 8 bits.

    The game remembers the last action of the episode before, which a sticky first step would take once more:
    an episode would not be its seed's alone. And it leaves wrappers' ``np_random`` unseeded.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "render_fps": FPS}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begins an episode."""
        if seed is not None:
            self.unwrapped.np_random = np_random(seed)[0]
        self.unwrapped.game.last_action = 0
        return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        """``[10 * CELL, 10 * CELL, 3]``, or what the game itself draws."""
        drawn = self.env.render()
        if self.render_mode != "rgb_array":
            return drawn
        return np.kron((255 * drawn).astype(np.uint8), np.ones((CELL_PIXELS, CELL_PIXELS, 1), np.uint8))
