"""Environments: Gymnasium classes, one with an action mask, a wrapper, a TorchRL class and a function."""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv


class Corridor(gymnasium.Env):
    """Each step costs 0.1 until the right end is reached."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)  # left, right

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.length))
        return self.observation(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        info = {"distance": self.length - self.place, "cost": float(action == 0)}  # of a step to the left
        return self.observation(), -0.1, self.place >= self.length, False, info

    def observation(self):
        return np.array([self.place / self.length], np.float32)


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=50)


class Stairs(gymnasium.Env):
    """Reach the top in few steps. Invalid: down from the bottom, a jump from every third stair."""

    observation_space = Box(0.0, 2.0, (1,), np.float32)
    action_space = Discrete(3)  # down, up, jump two

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stair = 0
        return self.observation(), {"action_mask": self.valid_actions()}

    def step(self, action):
        self.stair += (-1, 1, 2)[action]
        return self.observation(), -1.0, self.stair >= 12, False, {"action_mask": self.valid_actions()}

    def observation(self):
        return np.array([self.stair / 12], np.float32)

    def valid_actions(self):
        return np.array([self.stair > 0, True, self.stair % 3 != 0], np.int8)


gymnasium.register("Stairs-v0", Stairs, max_episode_steps=50)


class Slippery(gymnasium.ActionWrapper):
    """Takes the other action with probability `share`."""

    def __init__(self, env: gymnasium.Env, share: float) -> None:
        super().__init__(env)
        self.share = share

    def action(self, action):
        return 1 - action if self.np_random.random() < self.share else action


class Line(EnvBase):
    """Stay near 0: an action moves by at most 1, and the reward is minus the distance."""

    def __init__(self, width: float = 3.0, device: str = "cpu") -> None:
        super().__init__(device=device)
        self.width, self.generator = width, torch.Generator()
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Bounded(-1.0, 1.0, shape=(1,))
        self.reward_spec = Unbounded(1)

    def _reset(self, tensordict=None, **kwargs):
        self.place = self.width * (2 * torch.rand(1, generator=self.generator) - 1)
        return TensorDict({"observation": self.place.clone()})

    def _step(self, tensordict):
        self.place = (self.place + tensordict["action"]).clamp(-self.width, self.width)
        ended = torch.zeros(1, dtype=torch.bool)
        entries = {"observation": self.place.clone(), "reward": -self.place.abs()}
        return TensorDict(entries | {"terminated": ended, "done": ended.clone()})

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)


def corridor(length: int, device: str) -> EnvBase:
    """A function that returns a TorchRL environment."""
    return GymEnv("Corridor-v0", length=length, device=device)
