"""Gymnasium's own tasks: classic control, MuJoCo, and one with an action mask."""

from functools import cache, partial

import gymnasium
import numpy as np

from tests.envs.families.case import Case, Entries


@cache
def taxi_moves() -> np.ndarray:
    """The best action in each of Taxi's states, by value iteration over its own table."""
    table = gymnasium.make("Taxi-v4").unwrapped.P
    values = np.zeros(500)
    for _ in range(40):
        outcomes = np.array([[table[state][action][0][1:] for action in range(6)] for state in range(500)])
        after, reward, ended = outcomes[..., 0].astype(int), outcomes[..., 1], outcomes[..., 2]
        action_values = reward + 0.9 * values[after] * (1 - ended)
        values = action_values.max(-1)
    return action_values.argmax(-1)


def drive(entries: Entries) -> int | None:
    """The best action; to the first of the four places hydrl's actor drives."""
    state = int(entries["observation"].argmax())
    return None if state % 4 == 0 else int(taxi_moves()[state])


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
        fast_num_envs=(3,),
    ),
    Case(
        "hopper",
        ["env=hopper", "+env.max_episode_steps=25"],
        partial(gymnasium.make, "Hopper-v4", max_episode_steps=25),
        fast_num_envs=(3,),
    ),
    Case(
        "taxi",
        ["env=gym", "env.id=Taxi-v4", "+env.max_episode_steps=25"],
        partial(gymnasium.make, "Taxi-v4", max_episode_steps=25),
        read=lambda state: {"observation": np.eye(500)[state]},
        mask=lambda env: env.unwrapped.action_mask(env.unwrapped.s).astype(bool),
        plan=drive,
        fast_num_envs=(3,),
    ),
]
