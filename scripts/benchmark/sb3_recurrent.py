"""sb3-contrib's RecurrentPPO with hydrl's numbers: the same networks, batches and updates."""

from collections.abc import Iterator

import gymnasium
from gymnasium.wrappers import TransformObservation
from sb3 import batches
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv


def masked() -> gymnasium.Env:
    """CartPole without its velocities."""
    env = gymnasium.make("CartPole-v1")
    space = gymnasium.spaces.Box(env.observation_space.low[[0, 2]], env.observation_space.high[[0, 2]])
    return TransformObservation(env, lambda observation: observation[[0, 2]], space)


def recurrent_ppo() -> Iterator[tuple[int, int]]:
    """8 environments, 1,024 frames and 40 updates of 256 a batch; an LSTM of 64 for actor and critic both.

    It learns from whole episodes of up to 128 steps, hydrl from pieces of 32.
    """
    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([masked] * 8),
        n_steps=128,
        batch_size=256,
        n_epochs=10,
        ent_coef=1e-4,
        max_grad_norm=1.0,
        policy_kwargs={
            "lstm_hidden_size": 64,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": {"pi": [64], "vf": [64]},
            "optimizer_kwargs": {"fused": True},
        },
        seed=0,
        device="cpu",
    )
    return batches(model, 1_024, model.policy.optimizer)
