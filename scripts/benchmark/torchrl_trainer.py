"""TorchRL's own PPO trainer on Pendulum, evaluated until it is solved, beside ``algo=ppo env=pendulum``.

python scripts/benchmark/torchrl_trainer.py trainer.seed=0
python scripts/benchmark/torchrl_trainer.py trainer.seed=0 +resume=outputs/trainer.pt   # after kill -9

Prints the frames, the mean return of 20 deterministic episodes and the CPU seconds at each evaluation. The
configuration is ``torchrl_trainer.yaml``.
"""

import time

import hydra
import torch
import torchrl.trainers.algorithms.configs  # noqa: F401  # adds TorchRL's groups to Hydra
from omegaconf import DictConfig
from tensordict import TensorDictBase
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.trainers import Trainer

EPISODES, STEPS, EVERY, SOLVED = 20, 200, 10_240, -200


class UntilSolved:
    """Evaluates a trainer every so many frames, and ends it at the threshold."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.evaluated_at = trainer, 0

    @torch.no_grad()
    def __call__(self, batch: TensorDictBase) -> None:
        """Called by the trainer after each batch."""
        frames = self.trainer.collected_frames
        if frames // EVERY == self.evaluated_at // EVERY:
            return
        self.evaluated_at = frames
        env = TransformedEnv(SerialEnv(EPISODES, lambda: GymEnv("Pendulum-v1")), RewardSum())
        env.set_seed(1_000 + frames)
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            episodes = env.rollout(STEPS, self.trainer.loss_module.actor_network)
        mean = episodes["next", "episode_reward"][:, -1].mean().item()
        env.close()
        print(f"{frames:,} frames: {mean:.1f}, {time.process_time():.0f} CPU seconds", flush=True)
        if mean >= SOLVED:
            self.trainer._stop_training = True


@hydra.main(config_path=".", config_name="torchrl_trainer", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Trains until solved, or to the end."""
    torch.set_num_threads(1)
    torch.manual_seed(cfg.trainer.seed)
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.collector.set_seed(cfg.trainer.seed)
    if file := cfg.get("resume"):
        trainer.load_from_file(file)
        print(f"loaded {file} of {trainer.collected_frames:,} frames", flush=True)
    trainer.register_op("post_steps_log", UntilSolved(trainer))
    trainer.train()


if __name__ == "__main__":
    main()
