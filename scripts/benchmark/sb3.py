"""Stable-Baselines3 with hydrl's numbers: the same networks, batches, updates and optimizer.

What differs is in Stable-Baselines3's favour: it neither standardises observations nor scales rewards, as the
wrappers it has for that would cost it time. Each call of ``learn`` is one batch: it goes on where the last
stopped, and sets out in 0.06 ms. Every generator yields frames and updates after each batch.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.optim import Optimizer


class WholeMinibatches(RolloutBuffer):
    """Deals out whole minibatches only, as the others do, where Stable-Baselines3 adds a short last one."""

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """``frames // batch_size`` minibatches in a random order."""
        frames = self.buffer_size * self.n_envs
        yield from islice(super().get(batch_size), frames // (batch_size or frames))


def ppo(num_envs: int = 10, steps: int = 100) -> Iterator[tuple[int, int]]:
    """PPO on the inverted double pendulum: 10 environments, 1,000 frames and 150 updates of 64 a batch."""
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make("InvertedDoublePendulum-v4")] * num_envs),
        n_steps=steps,
        batch_size=64,
        n_epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        learning_rate=3e-4,
        ent_coef=1e-4,
        max_grad_norm=1.0,
        policy_kwargs={
            "net_arch": {"pi": [256] * 3, "vf": [256] * 3},
            "activation_fn": nn.Tanh,
            "optimizer_kwargs": {"fused": True},
        },
        rollout_buffer_class=WholeMinibatches,
        seed=0,
        device="cpu",
    )
    return batches(model, num_envs * steps, model.policy.optimizer)


def ppo_32() -> Iterator[tuple[int, int]]:
    """The same with 32 environments, 1,024 frames and 160 updates a batch."""
    return ppo(num_envs=32, steps=32)


def dqn() -> Iterator[tuple[int, int]]:
    """DQN on CartPole: 16 environments, 256 frames a batch, 64 updates of 128 from a memory of 10,000.

    Stable-Baselines3 copies the target while it collects: every 128 frames, twice a batch as the others.
    """
    model = DQN(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 16),
        train_freq=(16, "step"),
        gradient_steps=64,
        batch_size=128,
        buffer_size=10_000,
        learning_starts=1_000,
        gamma=0.98,
        learning_rate=2e-3,
        max_grad_norm=10.0,
        target_update_interval=128,
        exploration_initial_eps=0.05,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [128, 128], "optimizer_kwargs": {"fused": True}},
        seed=0,
        device="cpu",
    )
    return batches(model, 256, model.policy.optimizer)


def sac() -> Iterator[tuple[int, int]]:
    """SAC on HalfCheetah."""
    return off_policy(SAC)


def td3() -> Iterator[tuple[int, int]]:
    """TD3 on HalfCheetah, exploring with as much noise as hydrl."""
    return off_policy(TD3, action_noise=NormalActionNoise(np.zeros(6), np.full(6, 0.1)))


def off_policy(algorithm: type[SAC | TD3], **options: Any) -> Iterator[tuple[int, int]]:
    """One environment, 64 frames a batch and one update of 256 a frame; all else is the default."""
    model = algorithm(
        "MlpPolicy",
        gymnasium.make("HalfCheetah-v4"),
        batch_size=256,
        learning_starts=960,  # the batch after these learns, as hydrl's sixteenth does
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256], "optimizer_kwargs": {"fused": True}},
        seed=0,
        device="cpu",
        **options,
    )
    return batches(model, 64, model.critic.optimizer)


def batches(model: BaseAlgorithm, frames: int, optimizer: Optimizer) -> Iterator[tuple[int, int]]:
    """Learns batch by batch; the optimizer's own count says how many updates each held."""
    updates = 0
    while True:
        model.learn(frames, reset_num_timesteps=False)
        before, updates = updates, max((int(state["step"]) for state in optimizer.state.values()), default=0)
        yield frames, updates - before
