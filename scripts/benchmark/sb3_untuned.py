"""Stable-Baselines3's PPO as it comes, with ``VecNormalize``, on a task nobody tuned it for.

python scripts/benchmark/sb3_untuned.py Pendulum-v1 --seed 100 --frames 300000 --episodes 20

One line of JSON comes out: the closing evaluation of the last policy, deterministic and with the statistics
of training, from the starts that a run of train.py with the same seed is evaluated from after as many frames.
"""

import argparse
import json

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from hydrl.training.evaluator import SeedStream, episode_seed


def main(arguments: argparse.Namespace) -> None:
    """Trains, plays one episode in each of as many environments, and prints the returns' mean and spread."""
    torch.set_num_threads(1)
    env = VecNormalize(make_vec_env(arguments.id, seed=arguments.seed))
    model = PPO("MlpPolicy", env, seed=arguments.seed, device="cpu")
    model.learn(arguments.frames)
    starts = episode_seed(arguments.seed, model.num_timesteps, SeedStream.FINAL)
    played = make_vec_env(arguments.id, n_envs=arguments.episodes, seed=starts)
    played.reset()  # as TorchRL does where it seeds; the evaluation's own reset then draws the same starts
    evaluation = VecNormalize(played, training=False, norm_reward=False)
    evaluation.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(model, evaluation, n_eval_episodes=arguments.episodes, deterministic=True)
    print(json.dumps({"return_mean": float(np.mean(returns)), "frames": model.num_timesteps}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id", help="of Gymnasium")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    main(parser.parse_args())
