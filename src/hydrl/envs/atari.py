"""Atari 2600 games on the Arcade Learning Environment, by the protocol of Mnih et al. (2015)."""

from contextlib import closing
from typing import Any

import gymnasium
from gymnasium.wrappers import StickyAction

from hydrl.envs.optional import check_id, check_probability, require_package
from hydrl.errors import UserError

OTHER_KEYS = {"frameskip": "env.wrappers.preprocessing.frame_skip", "repeat_action_probability": "env.sticky"}
FPS = 60  # frames a second of the console; its package says 30
# Variants of a game, by the emulator's method that lists them.
VARIANTS = {"mode": "getAvailableModes", "difficulty": "getAvailableDifficulties"}


def make(id: str, sticky: float = 0.0, **kwargs: Any) -> gymnasium.Env:
    """Makes an Atari game without frame skipping, which a wrapper does.

    Args:
        id: as ``ALE/Pong-v5``.
        sticky: the probability, at each frame, that the last action is repeated. Machado et al. use 0.25;
            Mnih et al. (2015) and most published tables use 0.
        **kwargs: passed to ``gymnasium.make``, such as ``mode`` and ``difficulty``.

    Raises:
        UserError: for an unknown game or variant, a keyword with another name here, or a missing package.
    """
    require_package("cv2", "atari")  # for Gymnasium's AtariPreprocessing
    package = require_package("ale_py", "atari")
    check_id(id, [env_id for env_id in gymnasium.registry if env_id.startswith("ALE/")])
    for key in kwargs.keys() & OTHER_KEYS:
        raise UserError(
            f"env.{key}={kwargs[key]}: another key sets this. Write {OTHER_KEYS[key]}={kwargs[key]}."
        )
    check_probability("env.sticky", sticky)
    package.ALEInterface.setLoggerMode(package.LoggerMode.Error)  # else it prints a banner
    check_variant(id, kwargs)
    env = gymnasium.make(id, frameskip=1, repeat_action_probability=0.0, **kwargs)
    env.metadata = {**env.metadata, "render_fps": FPS}
    # The emulator's own sticky actions are not in its state: a resumed run would repeat another action.
    return StickyAction(env, sticky) if sticky else env


def check_variant(id: str, kwargs: dict[str, Any]) -> None:
    """Refuses a mode or difficulty that a game does not have.

    Raises:
        UserError: naming those it has.
    """
    if not kwargs.keys() & VARIANTS:
        return
    with closing(gymnasium.make(id)) as env:
        game = env.unwrapped.ale
        for key, method in VARIANTS.items():
            variants = getattr(game, method)()
            if kwargs.get(key) is not None and kwargs[key] not in variants:
                options = ", ".join(map(str, variants))
                raise UserError(f"env.{key}={kwargs[key]}: {id} has no such {key}. Write one of {options}.")


class EpisodicLife(gymnasium.Wrapper):
    """Gymnasium wrapper that ends an episode with each lost life; the next one continues the game.

    Gymnasium's ``terminal_on_life_loss`` restarts the whole game instead, so that the agent rarely plays
    after the first life.

    Args:
        env: an Atari game, in any wrappers.

    Raises:
        TypeError: for another environment.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        if not hasattr(env.unwrapped, "ale"):
            raise TypeError("EpisodicLife needs an Atari game")
        self.lives, self.goes_on = 0, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step; a lost life is *terminated*."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self.unwrapped.ale.lives()
        # Near its end a game may report no lives for some frames.
        self.goes_on = 0 < lives < self.lives and not (terminated or truncated)
        self.lives = lives
        return observation, reward, terminated or self.goes_on, truncated, info

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Continues after a lost life by a no-op; otherwise, and with a seed, begins a game."""
        is_over = True
        if self.goes_on and seed is None:
            observation, _, *done_flags, info = self.env.step(0)
            is_over = any(done_flags)
        if is_over:
            observation, info = self.env.reset(seed=seed, options=options)
        self.lives, self.goes_on = self.unwrapped.ale.lives(), False
        return observation, info
