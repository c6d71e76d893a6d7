"""PPO on pictures in plain PyTorch, after CleanRL's ``ppo_atari.py``, in Stable-Baselines3's vector of games.

One encoder for actor and critic, fused Adam, no argument checks. As in CleanRL an episode that is cut off is
worth nothing more. Every generator yields frames and updates after each batch.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from sb3_pictures import atari, minatar_games
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.distributions import Categorical


def ppo_minatar() -> Iterator[tuple[int, int]]:
    """MinAtar's Breakout: 64 games, 2,048 frames and 64 updates of 256 a batch."""
    games = minatar_games()
    channels = games.observation_space.shape[0]
    encoder = nn.Sequential(
        nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1_024, 128), nn.ReLU()
    )
    return ppo(games, encoder, 128, steps=32, epochs=8, clip=0.2, learning_rate=1e-3)


def ppo_atari() -> Iterator[tuple[int, int]]:
    """Atari's Breakout with Nature's network: 8 games, 1,024 frames and 16 updates of 256 a batch."""
    games = atari()
    layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    encoder = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(3_136, 512), nn.ReLU())
    return ppo(games, encoder, 512, steps=128, epochs=4, clip=0.1, learning_rate=2.5e-4, scale=1 / 255)


def ppo(
    games: VecEnv,
    encoder: nn.Module,
    features: int,
    *,
    steps: int,
    epochs: int,
    clip: float,
    learning_rate: float,
    scale: float = 1.0,
) -> Iterator[tuple[int, int]]:
    """Minibatches of 256 of ``steps`` of each game, ``epochs`` times."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(features, games.action_space.n), nn.Linear(features, 1)
    parameters = [*encoder.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, fused=True)

    def judged(pictures: Tensor) -> tuple[Categorical, Tensor]:
        read = encoder(pictures.float() * scale)
        return Categorical(logits=actor(read), validate_args=False), critic(read).squeeze(-1)

    images = pictures_of(games.reset())
    while True:
        with torch.no_grad():
            images, rows = acted(games, judged, images, steps)
            pictures, actions, log_probs, values, rewards, dones = map(torch.stack, zip(*rows, strict=True))
            advantages = estimated(values, judged(images)[1], rewards, dones)
        columns = [
            entry.flatten(0, 1) for entry in (pictures, actions, log_probs, advantages, advantages + values)
        ]
        updates = 0
        for _ in range(epochs):
            for index in torch.randperm(len(columns[0])).split(256):
                picture, action, log_prob, advantage, target = [column[index] for column in columns]
                chances, value = judged(picture)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (chances.log_prob(action) - log_prob).exp()
                gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
                loss = 0.5 * (value - target).square().mean() - gain - 0.01 * chances.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                updates += 1
        yield steps * games.num_envs, updates


def acted(
    games: VecEnv, judged: Callable[[Tensor], tuple[Categorical, Tensor]], images: Tensor, steps: int
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """So many steps after ``seen``: what is seen then, and of each step all that is learned from."""
    rows: list[tuple[Tensor, ...]] = []
    for _ in range(steps):
        chances, value = judged(images)
        action = chances.sample()
        following, reward, done, _ = games.step(action.numpy())
        outcome = torch.as_tensor(reward), torch.as_tensor(done)
        rows.append((images, action, chances.log_prob(action), value, *outcome))
        images = pictures_of(following)
    return images, rows


def pictures_of(images: np.ndarray) -> Tensor:
    """Channels first, whichever way the games show them."""
    pictures = torch.as_tensor(images)
    return pictures.permute(0, 3, 1, 2) if pictures.shape[-1] == 4 and pictures.shape[1] == 84 else pictures


def estimated(values: Tensor, last: Tensor, rewards: Tensor, dones: Tensor) -> Tensor:
    """Generalised advantages (Schulman et al. 2016) of discount 0.99 and 0.95; all are ``[time, games]``."""
    advantages, running = torch.empty_like(values), torch.zeros_like(last)
    for time in reversed(range(len(values))):
        alive = ~dones[time]
        running = rewards[time] + 0.99 * alive * last - values[time] + 0.99 * 0.95 * alive * running
        advantages[time], last = running, values[time]
    return advantages
