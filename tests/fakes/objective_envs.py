"""Gymnasium environments with several objectives, whose rewards are known."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 5


class Harvest(gymnasium.Env):
    """Episodes of five steps; step `n` gives `n` for action 0 and `2 n` for action 1, and costs 1.

    The rewards are one array of the environment's own, written anew at each step.

    Args:
        rewards: how many rewards a step gives; the third is the action.
        declared: how many numbers its `reward_space` has; ``None``: it has none.
    """

    def __init__(self, rewards: int = 2, declared: int | None = 2) -> None:
        self.observation_space, self.action_space = Box(0.0, 10.0, (1,)), Discrete(2)
        self.rewards = np.zeros(rewards, np.float32)
        if declared is not None:
            self.reward_space = Box(-np.inf, np.inf, (declared,) if declared else ())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.rewards[:] = [self.steps * (1 + action), -1.0, action][: len(self.rewards)]
        reward = self.rewards if len(self.rewards) > 1 else float(self.rewards[0])
        return np.full(1, self.steps, np.float32), reward, self.steps == LENGTH, False, {"objective_9": 1.0}


class HalveFirst(gymnasium.RewardWrapper):
    """Halves the first objective."""

    def reward(self, reward):
        return reward * np.array([0.5, 1.0], np.float32)


gymnasium.register("toys/Harvest-v0", Harvest)
