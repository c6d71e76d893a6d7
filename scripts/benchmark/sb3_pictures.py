"""Stable-Baselines3 on pictures with hydrl's numbers: the same games, networks, batches and updates.

Every generator yields frames and updates after each batch, as those of ``sb3.py`` do.
"""

from collections.abc import Iterator
from typing import Any

import ale_py
import gymnasium
import minatar.gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation
from sb3 import batches
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from torch import Tensor, nn

SHARED = {"net_arch": [], "optimizer_kwargs": {"fused": True}}  # one encoder for actor and critic


class Small(BaseFeaturesExtractor):
    """One convolution of 16 and a layer of 128, as ``hydrl.networks.encoders.minatar``."""

    def __init__(self, observation_space: Box) -> None:
        super().__init__(observation_space, 128)
        net = nn.Sequential(nn.Conv2d(observation_space.shape[0], 16, 3), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            size = net(torch.zeros(1, *observation_space.shape)).shape[-1]
        self.net = nn.Sequential(net, nn.Linear(size, 128), nn.ReLU())

    def forward(self, pictures: Tensor) -> Tensor:
        """``[batch, C, H, W]`` to ``[batch, 128]``."""
        return self.net(pictures)


def game() -> gymnasium.Env:
    """MinAtar's Breakout, channels first, as floats of 0 and 1."""
    env = gymnasium.make("MinAtar/Breakout-v1")
    height, width, channels = env.observation_space.shape
    space = Box(0, 1, (channels, height, width), np.float32)
    return TransformObservation(
        env, lambda observation: np.moveaxis(observation, -1, 0).astype(np.float32), space
    )


def minatar_games() -> DummyVecEnv:
    """64 of them."""
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.gym.register_envs()
    return DummyVecEnv([game] * 64)


def atari() -> VecFrameStack:
    """Eight Breakouts by the published protocol, stacks of four."""
    gymnasium.register_envs(ale_py)
    games = [lambda: AtariWrapper(gymnasium.make("BreakoutNoFrameskip-v4"))] * 8
    return VecFrameStack(DummyVecEnv(games), 4)


def ppo_minatar() -> Iterator[tuple[int, int]]:
    """PPO on MinAtar's Breakout: 64 games, 2,048 frames and 64 updates of 256 a batch."""
    policy = {**SHARED, "features_extractor_class": Small}
    numbers = {"clip_range": 0.2, "learning_rate": 1e-3, "n_epochs": 8, "vf_coef": 0.25}
    return ppo("MlpPolicy", minatar_games(), 32, policy, numbers)


def ppo_atari() -> Iterator[tuple[int, int]]:
    """PPO on Atari's Breakout with Nature's network: 8 games, 1,024 frames and 16 updates of 256 a batch."""
    numbers = {"clip_range": 0.1, "learning_rate": 2.5e-4, "n_epochs": 4, "vf_coef": 0.5}
    return ppo("CnnPolicy", atari(), 128, SHARED, numbers)


def ppo(
    policy: str, games: Any, steps: int, options: dict[str, Any], numbers: dict[str, float]
) -> Iterator[tuple[int, int]]:
    """PPO with a bonus for entropy of 0.01, in minibatches of 256."""
    model = PPO(
        policy,
        games,
        n_steps=steps,
        batch_size=256,
        ent_coef=0.01,
        policy_kwargs=options,
        seed=0,
        device="cpu",
        **numbers,
    )
    return batches(model, games.num_envs * steps, model.policy.optimizer)


def dqn_atari() -> Iterator[tuple[int, int]]:
    """DQN on Atari's Breakout with Nature's network: 8 games, 32 frames and 8 updates of 32 a batch."""
    model = DQN(
        "CnnPolicy",
        atari(),
        train_freq=(4, "step"),
        gradient_steps=8,
        batch_size=32,
        buffer_size=20_000,
        learning_starts=1_000,
        learning_rate=1e-4,
        max_grad_norm=10.0,
        target_update_interval=1_000,
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        policy_kwargs=SHARED,
        seed=0,
        device="cpu",
    )
    return batches(model, 32, model.policy.optimizer)
