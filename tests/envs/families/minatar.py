"""MinAtar games."""

import gymnasium
import numpy as np

from tests.envs.families.case import Case


def make_breakout():
    from minatar.gym import register_envs

    register_envs()
    env = gymnasium.make(
        "MinAtar/Breakout-v1", max_episode_steps=12, sticky_action_prob=0.1, difficulty_ramping=True
    )
    return ForgetfulGame(env)


class ForgetfulGame(gymnasium.Wrapper):
    """The game itself lets a sticky first action repeat the last one of the episode before."""

    def reset(self, *, seed=None, options=None):
        self.unwrapped.game.last_action = 0
        return self.env.reset(seed=seed, options=options)


CASES = [
    Case(
        "minatar",
        ["env=minatar", "env.id=MinAtar/Breakout-v1", "env.max_episode_steps=12"],
        make_breakout,
        read=lambda cells: {"pixels": np.moveaxis(cells, -1, 0)},
        package="minatar",
        fast_num_envs=(3,),
    ),
]
