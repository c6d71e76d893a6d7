"""PPO and DQN in plain PyTorch and Gymnasium, and the floor below any loop.

PPO and DQN are what a careful person writes without a library, after CleanRL's single files
(https://github.com/vwxyzjn/cleanrl, ``ppo_continuous_action.py`` and ``dqn.py``), with fused Adam, without
the distributions' argument checks, and with values computed for a whole batch at once. Episodes that are cut
off bootstrap from the state they were cut off in. Every generator yields frames and updates after each batch.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn
from torch.distributions import Normal

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def mlp(inputs: int, cells: Sequence[int], outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """Hidden layers of ``cells`` units and a linear output."""
    layers: list[nn.Module] = []
    for size in cells:
        layers += [nn.Linear(inputs, size), activation()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def make_envs(id: str, num_envs: int) -> VectorEnv:
    """Environments stepped together in this process; an ended one is reset within the same step."""
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="sync", vector_kwargs=mode)


def step(envs: VectorEnv, actions: np.ndarray) -> Step:
    """Steps every environment.

    Returns:
        The observations to act on next, those the actions led to (an ended episode's last one, where the
        first are already the next episode's), rewards, terminated, and done; each ``[envs, ...]``.
    """
    observations, rewards, terminated, truncated, infos = envs.step(actions)
    done = terminated | truncated
    following = observations
    if done.any():
        following = observations.copy()
        following[done] = np.stack(infos["final_obs"][done])
    return observations, following, rewards, terminated, done


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float = 0.99,
    lmbda: float = 0.95,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016); all tensors are ``[time, envs]``.

    A terminated state is worth nothing; one that was cut off is worth what the critic says, but no advantage
    flows over it.
    """
    errors = rewards + gamma * next_values * ~terminated - values
    decay = gamma * lmbda * ~done
    advantages = torch.empty_like(errors)
    running = torch.zeros_like(errors[0])
    for time in reversed(range(len(errors))):
        running = errors[time] + decay[time] * running
        advantages[time] = running
    return advantages


def ppo() -> Iterator[tuple[int, int]]:
    """PPO on the inverted double pendulum: 10 environments, 1,000 frames a batch, 10 x 15 minibatches of 64.

    Observations are standardised with fixed statistics of random frames. The policy is a Gaussian whose
    deviation does not depend on the state.
    """
    torch.manual_seed(0)
    envs = make_envs("InvertedDoublePendulum-v4", 10)
    envs.action_space.seed(0)
    actor, critic = mlp(11, [256] * 3, 1, nn.Tanh), mlp(11, [256] * 3, 1, nn.Tanh)
    log_deviation = nn.Parameter(torch.zeros(1))
    parameters = [*actor.parameters(), *critic.parameters(), log_deviation]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=True)

    def policy(observations: Tensor) -> Normal:
        return Normal(actor(observations), log_deviation.exp(), validate_args=False)

    envs.reset(seed=0)
    seen = np.concatenate([step(envs, envs.action_space.sample())[0] for _ in range(100)])
    mean, deviation = seen.mean(0), seen.std(0)
    deviation[deviation < 1e-6] = 1.0  # some contact forces are always zero

    def standardised(observations: np.ndarray) -> Tensor:
        return torch.as_tensor((observations - mean) / deviation, dtype=torch.float32)

    acted, _ = envs.reset()
    while True:
        with torch.no_grad():
            steps = []
            for _ in range(100):
                observation = standardised(acted)
                distribution = policy(observation)
                action = distribution.sample()
                acted, following, reward, terminated, done = step(envs, action.clamp(-1, 1).numpy())
                log_prob = distribution.log_prob(action).squeeze(-1)
                outcome = torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(terminated)
                after = standardised(following)
                steps.append((observation, action, log_prob, after, *outcome, torch.as_tensor(done)))
            batch = [torch.stack(column) for column in zip(*steps, strict=True)]
            observations, actions, log_probs, next_observations, rewards, terminations, dones = batch
            values, next_values = critic(observations).squeeze(-1), critic(next_observations).squeeze(-1)
            advantages = gae(rewards, values, next_values, terminations, dones)
            targets = advantages + values
            advantages = (advantages - advantages.mean()) / advantages.std()
        columns = [each.flatten(0, 1) for each in (observations, actions, log_probs, advantages, targets)]
        updates = 0
        for _ in range(10):
            for index in torch.randperm(1_000).split(64)[:15]:
                observation, action, log_prob, advantage, target = [column[index] for column in columns]
                distribution = policy(observation)
                ratio = (distribution.log_prob(action).squeeze(-1) - log_prob).exp()
                gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                error = nn.functional.smooth_l1_loss(critic(observation).squeeze(-1), target)
                loss = error - gain - 1e-4 * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                updates += 1
        yield 1_000, updates


def dqn() -> Iterator[tuple[int, int]]:
    """DQN on CartPole: 16 environments, 256 frames a batch, 64 updates of 128 from a memory of 10,000.

    Rewards are scaled by 0.01; the target is copied every 32 updates; one action in twenty is random.
    """
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    envs = make_envs("CartPole-v1", 16)
    network, target = mlp(4, [128, 128], 2, nn.ReLU), mlp(4, [128, 128], 2, nn.ReLU)
    target.load_state_dict(network.state_dict())
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=2e-3, fused=True)
    size = 10_000
    observations, next_observations = torch.zeros(size, 4), torch.zeros(size, 4)
    actions, rewards = torch.zeros(size, 1, dtype=torch.int64), torch.zeros(size)
    terminations = torch.zeros(size, dtype=torch.bool)
    acted, _ = envs.reset(seed=0)
    frames = done_updates = 0
    while True:
        for _ in range(16):
            with torch.no_grad():
                greedy = network(torch.as_tensor(acted)).argmax(-1).numpy()
            action = np.where(random.random(16) < 0.05, random.integers(2, size=16), greedy)
            before = acted
            acted, following, reward, terminated, _ = step(envs, action)
            place = torch.arange(frames, frames + 16) % size
            observations[place] = torch.as_tensor(before)
            next_observations[place] = torch.as_tensor(following)
            actions[place] = torch.as_tensor(action).unsqueeze(-1)
            rewards[place] = 0.01 * torch.as_tensor(reward, dtype=torch.float32)
            terminations[place] = torch.as_tensor(terminated)
            frames += 16
        updates = 0
        while frames >= 1_000 and updates < 64:
            index = torch.randint(min(frames, size), (128,))
            with torch.no_grad():
                best = target(next_observations[index]).amax(-1)
                goal = rewards[index] + 0.98 * best * ~terminations[index]
            value = network(observations[index]).gather(-1, actions[index]).squeeze(-1)
            loss = nn.functional.smooth_l1_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 10.0)
            optimizer.step()
            updates, done_updates = updates + 1, done_updates + 1
            if done_updates % 32 == 0:
                target.load_state_dict(network.state_dict())
        yield 256, updates


def ppo_floor() -> Iterator[tuple[int, int]]:
    """What no PPO loop can leave out: the environments' steps, and forward, backward, clip, Adam."""
    networks = [mlp(11, [256] * 3, 1, nn.Tanh), mlp(11, [256] * 3, 1, nn.Tanh)]
    return floor(make_envs("InvertedDoublePendulum-v4", 10), networks, torch.randn(64, 11), 100, 150)


def dqn_floor() -> Iterator[tuple[int, int]]:
    """What no DQN loop can leave out: the environments' steps, and forward, backward, clip, Adam."""
    networks = [mlp(4, [128, 128], 2, nn.ReLU)]
    return floor(make_envs("CartPole-v1", 16), networks, torch.randn(128, 4), 16, 64, idle=3)


def floor(
    envs: VectorEnv, networks: list[nn.Sequential], minibatch: Tensor, steps: int, updates: int, idle: int = 0
) -> Iterator[tuple[int, int]]:
    """Steps the environments at random and, after ``idle`` batches, updates the networks on one minibatch."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    optimizer = torch.optim.Adam(parameters, fused=True)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(steps)]
    for batch in count():
        for action in actions:
            envs.step(action)
        due = updates if batch >= idle else 0
        for _ in range(due):
            loss = torch.cat([network(minibatch) for network in networks]).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        yield steps * envs.num_envs, due
