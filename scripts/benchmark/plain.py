"""PPO, DQN, SAC and TD3 in plain PyTorch and Gymnasium, and the floor below any loop.

They are what a careful person writes without a library, after CleanRL's single files
(https://github.com/vwxyzjn/cleanrl, ``ppo_continuous_action.py``, ``dqn.py``, ``sac_continuous_action.py``,
``td3_continuous_action.py``), with fused Adam, without the distributions' argument checks, with values
computed for a whole batch at once, and with an actor's gradient that leaves the critics' out. Episodes that
are cut off bootstrap from the state they were cut off in. Every generator yields frames and updates after
each batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
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
    samples = np.concatenate([step(envs, envs.action_space.sample())[0] for _ in range(100)])
    mean, deviation = samples.mean(0), samples.std(0)
    deviation[deviation < 1e-6] = 1.0  # some contact forces are always zero

    def standardised(observations: np.ndarray) -> Tensor:
        return torch.as_tensor((observations - mean) / deviation, dtype=torch.float32)

    acted, _ = envs.reset()
    while True:
        with torch.no_grad():
            acted, batch = ppo_batch(envs, policy, standardised, acted)
            observations, actions, log_probs, next_observations, rewards, terminations, dones = batch
            values, next_values = critic(observations).squeeze(-1), critic(next_observations).squeeze(-1)
            advantages = gae(rewards, values, next_values, terminations, dones)
            targets = advantages + values
            advantages = (advantages - advantages.mean()) / advantages.std()
        columns = [values.flatten(0, 1) for values in (observations, actions, log_probs, advantages, targets)]
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


def ppo_batch(
    envs: VectorEnv,
    policy: Callable[[Tensor], Normal],
    standardised: Callable[[np.ndarray], Tensor],
    acted: np.ndarray,
) -> tuple[np.ndarray, list[Tensor]]:
    """A hundred steps after ``acted``: what is observed then, and all that was seen, ``[100, 10, ...]``."""
    steps = []
    for _ in range(100):
        observation = standardised(acted)
        distribution = policy(observation)
        action = distribution.sample()
        acted, following, reward, terminated, done = step(envs, action.clamp(-1, 1).numpy())
        log_prob = distribution.log_prob(action).squeeze(-1)
        outcome = torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(terminated)
        steps.append(
            (observation, action, log_prob, standardised(following), *outcome, torch.as_tensor(done))
        )
    return acted, [torch.stack(column) for column in zip(*steps, strict=True)]


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


class Memory:
    """The newest ``size`` transitions of HalfCheetah.

    Each is observation, action, next observation, reward and terminated.
    """

    def __init__(self, size: int) -> None:
        self.parts = [torch.zeros(size, width) for width in (17, 6, 17, 1, 1)]
        self.size, self.written = size, 0

    def add(self, *transition: np.ndarray | float) -> None:
        """Puts one transition in the place of the oldest."""
        for part, value in zip(self.parts, transition, strict=True):
            part[self.written % self.size] = torch.as_tensor(value)
        self.written += 1

    def sample(self, count: int) -> list[Tensor]:
        """Random transitions, each part ``[count, width]``."""
        index = torch.randint(min(self.written, self.size), (count,))
        return [part[index] for part in self.parts]


def off_policy(
    act: Callable[[Tensor], Tensor], update: Callable[[Sequence[Tensor]], None]
) -> Iterator[tuple[int, int]]:
    """One HalfCheetah, and one update of 256 a frame once 1,024 frames, acted at random, are there."""
    env = gymnasium.make("HalfCheetah-v4")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    memory = Memory(100_000)
    while True:
        updates = 0
        for _ in range(64):
            if memory.written < 1_024:
                action = env.action_space.sample()
            else:
                with torch.no_grad():
                    action = act(torch.as_tensor(observation, dtype=torch.float32)).numpy()
            following, reward, terminated, truncated, _ = env.step(action)
            memory.add(observation, action, following, float(reward), float(terminated))
            observation = env.reset()[0] if terminated or truncated else following
            if memory.written > 960:  # the batch that fills the memory learns already, as hydrl's does
                update(memory.sample(256))
                updates += 1
        yield 64, updates


def values(critics: Iterable[nn.Module], observations: Tensor, actions: Tensor) -> Tensor:
    """What each critic says, ``[critics, batch, 1]``."""
    inputs = torch.cat([observations, actions], -1)
    return torch.stack([critic(inputs) for critic in critics])


def step_down(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer, with gradients of its own parameters and of no others."""
    parameters = optimizer.param_groups[0]["params"]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()


@torch.no_grad()
def follow(targets: Iterable[nn.Module], networks: Iterable[nn.Module]) -> None:
    """Moves the targets 0.005 of the way to their networks."""
    for target, network in zip(targets, networks, strict=True):
        for target_parameter, parameter in zip(target.parameters(), network.parameters(), strict=True):
            target_parameter.lerp_(parameter, 0.005)


def sac() -> Iterator[tuple[int, int]]:
    """SAC on HalfCheetah: two critics, a learned temperature, 64 frames and 64 updates of 256 a batch."""
    torch.manual_seed(0)
    actor = mlp(17, [256, 256], 12, nn.ReLU)
    critics = nn.ModuleList([mlp(23, [256, 256], 1, nn.ReLU) for _ in range(2)])
    targets, log_alpha = deepcopy(critics), nn.Parameter(torch.zeros(1))
    learn_actor, learn_critics, learn_alpha = (
        torch.optim.Adam(parameters, lr=3e-4, fused=True)
        for parameters in (actor.parameters(), critics.parameters(), [log_alpha])
    )

    def draw(observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = actor(observations).chunk(2, -1)
        normal = Normal(mean, log_deviation.clamp(-20, 2).exp(), validate_args=False)
        raw = normal.rsample()
        slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))  # log of tanh's derivative
        return raw.tanh(), (normal.log_prob(raw) - slope).sum(-1, keepdim=True)

    def update(minibatch: Sequence[Tensor]) -> None:
        observations, actions, following, rewards, terminated = minibatch
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_log_prob = draw(following)
            best = values(targets, following, next_actions).amin(0) - alpha * next_log_prob
            goal = rewards + 0.99 * (1 - terminated) * best
        step_down((values(critics, observations, actions) - goal).square().mean((1, 2)).sum(), learn_critics)
        sampled, log_prob = draw(observations)
        step_down((alpha * log_prob - values(critics, observations, sampled).amin(0)).mean(), learn_actor)
        step_down(-(log_alpha * (log_prob.detach() - 6)).mean(), learn_alpha)
        follow(targets, critics)

    return off_policy(lambda observation: draw(observation)[0], update)


def td3() -> Iterator[tuple[int, int]]:
    """TD3 on HalfCheetah: two critics, an actor at every second update, 64 frames and 64 updates a batch."""
    torch.manual_seed(0)
    actor = nn.Sequential(mlp(17, [256, 256], 6, nn.ReLU), nn.Tanh())
    critics = nn.ModuleList([mlp(23, [256, 256], 1, nn.ReLU) for _ in range(2)])
    target_actor, target_critics = deepcopy(actor), deepcopy(critics)
    learn_actor, learn_critics = (
        torch.optim.Adam(network.parameters(), lr=1e-3, fused=True) for network in (actor, critics)
    )
    updates = count(1)

    def act(observation: Tensor) -> Tensor:
        action = actor(observation)
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def update(minibatch: Sequence[Tensor]) -> None:
        observations, actions, following, rewards, terminated = minibatch
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            next_actions = (target_actor(following) + noise).clamp(-1, 1)
            best = values(target_critics, following, next_actions).amin(0)
            goal = rewards + 0.99 * (1 - terminated) * best
        step_down((values(critics, observations, actions) - goal).square().mean((1, 2)).sum(), learn_critics)
        if next(updates) % 2 == 0:
            step_down(-values(critics[:1], observations, actor(observations)).mean(), learn_actor)
            follow([target_actor, target_critics], [actor, critics])

    return off_policy(act, update)


def ppo_floor() -> Iterator[tuple[int, int]]:
    """What no PPO loop can leave out: the environments' steps, and forward, backward, clip, Adam."""
    networks = [mlp(11, [256] * 3, 1, nn.Tanh), mlp(11, [256] * 3, 1, nn.Tanh)]
    return floor(make_envs("InvertedDoublePendulum-v4", 10), networks, torch.randn(64, 11), 100, 150)


def dqn_floor() -> Iterator[tuple[int, int]]:
    """What no DQN loop can leave out: the environments' steps, and forward, backward, clip, Adam."""
    networks = [mlp(4, [128, 128], 2, nn.ReLU)]
    return floor(make_envs("CartPole-v1", 16), networks, torch.randn(128, 4), 16, 64, idle=3)


def off_policy_floor() -> Iterator[tuple[int, int]]:
    """What no SAC or TD3 loop can leave out: steps, and three networks' forward, backward, clip, Adam.

    Targets are not in it, nor what the critics say of the actor's actions: it lies well below both.
    """
    networks = [mlp(23, [256, 256], size, nn.ReLU) for size in (1, 1, 12)]
    return floor(make_envs("HalfCheetah-v4", 1), networks, torch.randn(256, 23), 64, 64, idle=15)


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
            loss = torch.cat([network(minibatch) for network in networks], -1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        yield steps * envs.num_envs, due
