"""Stable-Baselines3 until it solves a task, with RL Baselines3 Zoo's published numbers.

python scripts/benchmark/sb3_solve.py dqn-cartpole --seed 100 --solved-at 475 --every-frames 2048 \\
    --episodes 20

The numbers are those of https://github.com/DLR-RM/rl-baselines3-zoo: ``hyperparams/dqn.yml`` (commit ce95481)
and ``hyperparams/ppo.yml`` (commit 208b6fd). For the double pendulum the Zoo has no entry of version 4; taken
is its tuned one of ``InvertedDoublePendulum-v2``, the same task under an older MuJoCo binding. One line of
JSON comes out; its seconds count from the start of the process.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import psutil
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

# The Zoo's own keys: `normalize` standardises observations and rewards, `n_timesteps` are the run's frames.
ZOO: dict[str, dict[str, Any]] = {
    "ppo-inverted_double_pendulum": {
        "env": "InvertedDoublePendulum-v4",
        "normalize": True,
        "n_envs": 1,
        "n_timesteps": 1_000_000,
        "batch_size": 512,
        "n_steps": 128,
        "gamma": 0.98,
        "learning_rate": 0.000155454,
        "ent_coef": 1.05057e-06,
        "clip_range": 0.4,
        "n_epochs": 10,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
        "vf_coef": 0.695929,
    },
    "ppo-cartpole": {
        "env": "CartPole-v1",
        "n_envs": 8,
        "n_timesteps": 100_000,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": LinearSchedule(0.001, 0.0, 1.0),
        "clip_range": LinearSchedule(0.2, 0.0, 1.0),
    },
    "dqn-cartpole": {
        "env": "CartPole-v1",
        "n_timesteps": 50_000,
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
}


class UntilSolved(BaseCallback):
    """Evaluates at every multiple of ``every_frames`` and stops once the mean return reaches a threshold.

    Args:
        envs: one environment an episode; each evaluation plays the first whole episode of each.
        solved_at: mean return that counts as solved.
        every_frames: training frames between evaluations.
    """

    def __init__(self, envs: VecEnv, *, solved_at: float, every_frames: int) -> None:
        super().__init__()
        self.envs, self.solved_at, self.every_frames = envs, solved_at, every_frames
        self.solved_at_frames: int | None = None
        self.best = -np.inf

    def _on_step(self) -> bool:
        before = self.num_timesteps - self.training_env.num_envs
        if self.num_timesteps // self.every_frames == before // self.every_frames:
            return True
        returns, _ = evaluate_policy(
            self.model, self.envs, n_eval_episodes=self.envs.num_envs, deterministic=True
        )
        self.best = max(self.best, float(np.mean(returns)))
        if np.mean(returns) < self.solved_at:
            return True
        self.solved_at_frames = self.num_timesteps
        return False


def make_model(name: str, seed: int, episodes: int) -> tuple[BaseAlgorithm, VecEnv, int]:
    """The Zoo's model, evaluation environments with its training statistics, and the frames to train for."""
    numbers = dict(ZOO[name])
    id, frames = numbers.pop("env"), numbers.pop("n_timesteps")
    env = make_vec_env(id, n_envs=numbers.pop("n_envs", 1), seed=seed)
    evaluation = make_vec_env(id, n_envs=episodes, seed=seed + 1_000)
    if numbers.pop("normalize", False):
        env = VecNormalize(env, gamma=numbers["gamma"])
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = env.obs_rms
    algorithm = DQN if name.startswith("dqn") else PPO
    return algorithm("MlpPolicy", env, seed=seed, device="cpu", **numbers), evaluation, frames


def main(arguments: argparse.Namespace) -> None:
    """Trains until solved or to the end of the Zoo's budget, and prints what it took."""
    started = psutil.Process().create_time()
    torch.set_num_threads(1)
    model, evaluation, frames = make_model(arguments.task, arguments.seed, arguments.episodes)
    until = UntilSolved(evaluation, solved_at=arguments.solved_at, every_frames=arguments.every_frames)
    model.learn(frames, callback=until)
    seconds = time.time() - started
    solved = until.solved_at_frames is not None
    result = {
        "solved_at_seconds": seconds if solved else None,
        "solved_at_frames": until.solved_at_frames,
        "wall_seconds": seconds,
        "frames": model.num_timesteps,
        "best_eval/return_mean": until.best,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=ZOO)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--solved-at", type=float, required=True, help="mean return")
    parser.add_argument("--every-frames", type=int, required=True, help="frames between evaluations")
    parser.add_argument("--episodes", type=int, required=True, help="episodes an evaluation")
    main(parser.parse_args())
