"""A functional simulator in JAX that compiles fast: a counter that random numbers push."""

from typing import NamedTuple

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torchrl.data import OneHot

from hydrl.envs.jax_env import FunctionalSimulator, JaxEnv, JaxFamily, Outcome

LIMIT = 9


class State(NamedTuple):
    """Where the counter is, the steps so far, the key of further pushes, and the last reward."""

    position: jax.Array
    steps: jax.Array
    key: jax.Array
    reward: jax.Array


class Pushed(FunctionalSimulator):
    """Two actions, down and up; terminates at 2 or more from zero, is truncated after ``LIMIT`` steps.

    Down is invalid below -1. It observes a vector, a nested count and a board of 6 x 5 x 2 cells.
    """

    id, max_episode_steps, action_spec = "pushed", LIMIT, OneHot(2, dtype=torch.int64)

    def reset(self, key):
        key, push_key = jax.random.split(key)
        return State(jax.random.uniform(push_key, (), minval=-1, maxval=1), jnp.int32(0), key, jnp.float32(0))

    def step(self, state, action):
        key, push_key = jax.random.split(state.key)
        position = state.position + action - 0.5 + jax.random.uniform(push_key, (), minval=-1, maxval=1)
        return State(position, state.steps + 1, key, position * 2)

    def observe(self, state):
        position, steps = np.asarray(state.position), np.asarray(state.steps)
        board = np.zeros((len(steps), 6, 5, 2), np.float32) + position[:, None, None, None]
        entries = {"place": {"now": position}, "step_count": steps, "board": board}
        return entries, np.stack([position >= -1, np.ones_like(position, bool)], 1)

    def outcome(self, state):
        terminated = np.abs(np.asarray(state.position)) >= 2
        return Outcome(state.reward, terminated, (np.asarray(state.steps) >= LIMIT) & ~terminated)


PUSHED = Pushed()


def make_pushed(num_envs=1, device="cpu"):
    return JaxEnv(PUSHED, num_envs, device)


make_pushed.env_family = JaxFamily()
