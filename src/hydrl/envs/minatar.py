"""MinAtar: five games of 10 x 10 cells for small networks (Young and Tian 2019)."""

from contextlib import suppress
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random

from hydrl.envs.optional import check_id, check_probability, require_package
from hydrl.errors import UserError

CELL_PIXELS = 32  # pixels of a cell's side in a video
FPS = 20  # steps a second in a video, as in MinAtar's window


def make(
    id: str,
    sticky: float = 0.1,
    difficulty_ramping: bool = True,
    max_episode_steps: int = 5_000,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes a MinAtar game that observes ``[10, 10, channels]`` booleans.

    Args:
        id: as ``MinAtar/Breakout-v1``, with the actions that have an effect; ``-v0`` has the same six in
            all games.
        sticky: the probability that the last action is repeated.
        difficulty_ramping: whether opponents become faster and more numerous during an episode, in games that
            have it.
        max_episode_steps: steps after which an episode is truncated; a good player may never end some games.
        **kwargs: passed to ``gymnasium.make``.

    Raises:
        UserError: for an unknown game, a limit below 1, or if MinAtar is not installed.
    """
    for module in ("matplotlib.pyplot", "seaborn"):  # MinAtar's own import would swallow Ctrl-C
        with suppress(ImportError):
            import_module(module)
    package = require_package("minatar.gym", "minatar")
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        package.register_envs()
    check_id(id, [env_id for env_id in gymnasium.registry if env_id.startswith("MinAtar/")])
    check_probability("env.sticky", sticky)
    if max_episode_steps < 1:
        raise UserError(f"env.max_episode_steps={max_episode_steps}: should be 1 or more.")
    kwargs |= {"sticky_action_prob": sticky, "difficulty_ramping": difficulty_ramping}
    return MinAtarWrapper(gymnasium.make(id, max_episode_steps=max_episode_steps, **kwargs))


class MinAtarWrapper(gymnasium.Wrapper):
    """Gymnasium wrapper that makes each episode depend on its seed alone, and renders uint8 images.

    MinAtar remembers the last action of the episode before, which a sticky first step would repeat, and
    leaves the wrappers' ``np_random`` unseeded.
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
        """An image, ``[10 * CELL_PIXELS, 10 * CELL_PIXELS, 3]``, or the game's own rendering."""
        cells = self.env.render()
        if self.render_mode != "rgb_array":
            return cells
        return np.kron((255 * cells).astype(np.uint8), np.ones((CELL_PIXELS, CELL_PIXELS, 1), np.uint8))
