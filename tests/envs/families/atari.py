"""Atari games by Gymnasium's preprocessing, with a training episode for each life."""

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, StickyAction

from tests.envs.families.case import Case


class Lives(gymnasium.Wrapper):
    """An episode ends with a life, and the next one begins by an action that does nothing."""

    lives, is_next_life = 0, False

    def reset(self, *, seed=None, options=None):
        is_over = not self.is_next_life or seed is not None
        if not is_over:
            observation, _, terminated, truncated, info = self.env.step(0)
            is_over = terminated or truncated
        observation, info = self.env.reset(seed=seed) if is_over else (observation, info)
        self.lives, self.is_next_life = info["lives"], False
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_next_life = 0 < info["lives"] < self.lives and not (terminated or truncated)
        self.lives = info["lives"]
        return observation, reward, terminated or self.is_next_life, truncated, info


def make_breakout():
    import ale_py

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = gymnasium.make(
        "ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, max_episode_steps=600
    )
    game = AtariPreprocessing(StickyAction(console, 0.25), noop_max=30, frame_skip=4)
    return FrameStackObservation(Lives(game), 4)


CASES = [
    Case(
        "atari",
        [
            "env=atari",
            "env.id=ALE/Breakout-v5",
            "env.sticky=0.25",
            "+env.max_episode_steps=600",
            "~transforms.reward_sign",
        ],
        make_breakout,
        read=lambda frames: {"pixels": frames},
        package="ale_py",
        random_starts=False,  # no-op frames change the emulator, not its first image
        fast_num_envs=(1,),
    ),
]
