"""PPO as TorchRL's tutorial writes it, with TorchRL alone.

https://docs.pytorch.org/rl/stable/tutorials/coding_ppo.html, "Reinforcement Learning (PPO) with TorchRL",
without its progress bar and its evaluations. hydrl's ``experiment=quickstart`` is this loop, equal to the
last bit. Each generator yields frames and updates after each batch.
"""

from collections.abc import Iterator

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, GymEnv, ObservationNorm, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

FRAMES_PER_BATCH, SUB_BATCH_SIZE, TOTAL_FRAMES, NUM_EPOCHS = 1_000, 64, 1_000_000, 10


def as_written() -> Iterator[tuple[int, int]]:
    """The advantage is computed anew before every epoch."""
    return ppo(once=False)


def gae_once() -> Iterator[tuple[int, int]]:
    """The advantage is computed once a batch, as in the other loops."""
    return ppo(once=True)


def ppo(once: bool) -> Iterator[tuple[int, int]]:
    """One environment, batches of 1,000 frames, 10 x 15 minibatches of 64, Adam as PyTorch makes it."""
    torch.manual_seed(0)
    env = TransformedEnv(
        GymEnv("InvertedDoublePendulum-v4", device="cpu"),
        Compose(ObservationNorm(in_keys=["observation"]), DoubleToFloat(), StepCounter()),
    )
    env.set_seed(0)
    env.transform[0].init_stats(num_iter=1000, reduce_dim=0, cat_dim=0)
    check_env_specs(env)
    policy = gaussian_actor(env)
    value = ValueOperator(module=nn.Sequential(*hidden(), nn.LazyLinear(1)), in_keys=["observation"])
    policy(env.reset())
    value(env.reset())
    numbers = {"frames_per_batch": FRAMES_PER_BATCH, "total_frames": TOTAL_FRAMES}
    collector = Collector(env, policy, **numbers, split_trajs=False, device="cpu")
    buffer = ReplayBuffer(storage=LazyTensorStorage(FRAMES_PER_BATCH), sampler=SamplerWithoutReplacement())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)
    loss = ClipPPOLoss(
        actor_network=policy,
        critic_network=value,
        clip_epsilon=0.2,
        entropy_bonus=True,
        entropy_coeff=1e-4,
        critic_coeff=1.0,
        loss_critic_type="smooth_l1",
    )
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)
    batches = TOTAL_FRAMES // FRAMES_PER_BATCH
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches, 0.0)
    try:
        for batch in collector:
            updates = 0
            for epoch in range(NUM_EPOCHS):
                if epoch == 0 or not once:
                    advantage(batch)
                    buffer.extend(batch.reshape(-1).cpu())
                for _ in range(FRAMES_PER_BATCH // SUB_BATCH_SIZE):
                    losses = loss(buffer.sample(SUB_BATCH_SIZE))
                    (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                    torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
            scheduler.step()
            yield batch.numel(), updates
    finally:
        collector.shutdown()


def gaussian_actor(env: TransformedEnv) -> ProbabilisticActor:
    """The tutorial's policy."""
    net = nn.Sequential(*hidden(), nn.LazyLinear(2 * env.action_spec.shape[-1]), NormalParamExtractor())
    return ProbabilisticActor(
        module=TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
        return_log_prob=True,
    )


def hidden() -> list[nn.Module]:
    """Three layers of 256 units; their input size comes with the first batch."""
    return [nn.LazyLinear(256), nn.Tanh(), nn.LazyLinear(256), nn.Tanh(), nn.LazyLinear(256), nn.Tanh()]
