"""Gymnasium's own tasks: classic control."""

from functools import partial

import gymnasium

from tests.envs.families.case import Case

CASES = [
    Case(
        "cartpole",
        ["env=cartpole", "+env.max_episode_steps=30"],
        partial(gymnasium.make, "CartPole-v1", max_episode_steps=30),
        script=lambda episode, step: (0, 1, 1, 0)[step % 4] if episode % 2 else None,
    ),
    Case(
        "pendulum",
        ["env=pendulum", "+env.max_episode_steps=60"],
        partial(gymnasium.make, "Pendulum-v1", max_episode_steps=60),
        ends={"truncated"},
        script=lambda episode, step: ([-2.0], [2.0], None)[step % 3],
    ),
]
