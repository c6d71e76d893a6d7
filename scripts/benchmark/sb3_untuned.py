"""Stable-Baselines3's PPO, DQN or SAC with its own defaults, and what the last policy scores.

python scripts/benchmark/sb3_untuned.py Pendulum-v1 --seed 100 --frames 300000 --episodes 20 --normalize
python scripts/benchmark/sb3_untuned.py CartPole-v1 --algo dqn --seed 100 --frames 50000 --episodes 100

Prints one line of JSON: the mean return of deterministic episodes, from the initial states of the final
evaluation of a train.py run with the same seed and frames. ``--normalize`` adds ``VecNormalize``.
"""

import argparse
import json

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from hydrl.training.evaluator import SeedStream, episode_seed


def main(arguments: argparse.Namespace) -> None:
    """Trains, plays one episode in each of as many environments, and prints their mean return."""
    torch.set_num_threads(1)
    env = make_vec_env(arguments.id, seed=arguments.seed)
    env = VecNormalize(env) if arguments.normalize else env
    algorithm = getattr(stable_baselines3, arguments.algo.upper())
    model = algorithm("MlpPolicy", env, seed=arguments.seed, device="cpu")
    model.learn(arguments.frames)
    first_seed = episode_seed(arguments.seed, model.num_timesteps, SeedStream.FINAL)
    evaluation = make_vec_env(arguments.id, n_envs=arguments.episodes, seed=first_seed)
    evaluation.reset()  # TorchRL resets where it seeds; the reset of the evaluation draws the same states
    if arguments.normalize:
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(model, evaluation, n_eval_episodes=arguments.episodes, deterministic=True)
    print(json.dumps({"return_mean": float(np.mean(returns)), "frames": model.num_timesteps}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id", help="of Gymnasium")
    parser.add_argument("--algo", choices=("ppo", "dqn", "sac"), default="ppo")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    parser.add_argument("--normalize", action="store_true", help="observations and rewards by VecNormalize")
    main(parser.parse_args())
