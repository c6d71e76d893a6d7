"""Cart-pole with continuous forces, the environment on which mbrl-lib reports PETS."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box

MAX_FORCE = 10.0  # newtons
RIGHT = 1  # the action of Gymnasium's cart-pole that pushes by `force_mag`


class ContinuousForce(gymnasium.Wrapper):
    """Wrapper of Gymnasium's cart-pole whose action, from -1 to 1, is a share of the force to the right.

    Dynamics, rewards and ends are those of mbrl-lib's environment.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Pushes the cart; 1 for each step."""
        self.unwrapped.force_mag = MAX_FORCE * float(np.clip(action[0], -1, 1))
        return self.env.step(RIGHT)


def make_cartpole(render_mode: str | None = None) -> gymnasium.Env:
    """Makes the environment, without a limit of steps."""
    return ContinuousForce(CartPoleEnv(render_mode=render_mode))


gymnasium.register("ContinuousCartPole-v0", make_cartpole, max_episode_steps=200)
