"""The DeepMind Control Suite."""

from functools import partial

import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils.seeding import np_random

from tests.envs.families.case import Case


class Suite:
    """A Control Suite task with Gymnasium's methods; only a discount of 0 terminates."""

    def __init__(self, domain, task, repeat):
        from dm_control import suite

        self.env, self.repeat = suite.load(domain, task, task_kwargs={"random": 0}), repeat
        bounds = self.env.action_spec()
        self.action_space = Box(bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32))

    def reset(self, seed=None):
        if seed is not None:
            self.env.task.random.seed(np_random(seed)[0].integers(2**32, dtype=np.uint32))
        return self.env.reset().observation, {}

    def step(self, action):
        reward = 0.0
        for _ in range(self.repeat):
            time_step = self.env.step(action)
            reward += time_step.reward
            if time_step.last():
                break
        is_terminal = time_step.last() and time_step.discount == 0
        return time_step.observation, reward, is_terminal, time_step.last() and not is_terminal, {}

    def close(self):
        self.env.physics.free()


def read_state(observation):
    return {"observation": np.concatenate([np.ravel(part) for part in observation.values()])}


CASES = [
    Case(
        "dm-control",
        ["env=dm_control", "env.id=cartpole-swingup", "env.repeat=8"],
        partial(Suite, "cartpole", "swingup", 8),
        read=read_state,
        ends={"truncated"},  # one task terminates, LQR after 5,000 steps of its best controller
        package="dm_control",
    ),
]
