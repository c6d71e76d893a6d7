"""The DeepMind Control Suite."""

from functools import partial

import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils.seeding import np_random

from tests.envs.families.case import Case


def load_swingup():
    from dm_control import suite

    return suite.load("cartpole", "swingup", task_kwargs={"random": 0})


def load_track():
    """Balancing on a track of half a metre to each side, which terminates beyond it, for 1.28 s at most."""
    from dm_control.rl import control
    from dm_control.suite import cartpole

    class OnTrack(cartpole.Balance):
        def get_termination(self, physics):
            return 0.0 if abs(physics.cart_position()) > 0.5 else None

    physics = cartpole.Physics.from_xml_string(*cartpole.get_model_and_assets())
    return control.Environment(physics, OnTrack(swing_up=True, sparse=False, random=0), time_limit=1.28)


class Suite:
    """A Control Suite task with Gymnasium's methods; only a discount of 0 terminates."""

    def __init__(self, load, repeat):
        self.env, self.repeat = load(), repeat
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
        partial(Suite, load_swingup, 8),
        read=read_state,
        ends={"truncated"},  # one task terminates, LQR after 5,000 steps of its best controller
        package="dm_control",
    ),
    Case(
        "dm-control-terminates",
        [
            "env=dm_control",
            "env.id=cartpole-track",
            "env.repeat=8",
            "env.make._target_=tests.fakes.control_envs.make",
        ],
        partial(Suite, load_track, 8),
        read=read_state,
        script=lambda episode, step: [1.0 if episode % 2 else 0.05 * (-1) ** step],
        package="dm_control",
    ),
]
