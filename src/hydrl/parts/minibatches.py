"""The one difference between on-policy and off-policy: which minibatches a fresh batch leads to."""

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule


def fresh_epochs(
    batch: TensorDictBase,
    buffer: ReplayBuffer,
    loss: LossModule,
    *,
    epochs: int,
    size: int,
    advantage: str,
    draw: str,
) -> Iterator[TensorDictBase]:
    """PPO, A2C: a few epochs over the fresh batch, without replacement.

    Args:
        batch: ``[time]`` or ``[envs, time]``; advantages are computed on it before it is flattened.
        buffer: holds one batch and samples without replacement.
        loss: its value estimator (GAE for PPO) writes advantage and value target.
        epochs: passes over the batch.
        size: frames a minibatch; ``frames // size`` of them an epoch.
        advantage: ``each_epoch`` recomputes it with the updated critic, as the TorchRL tutorial does;
            ``once`` computes it before the first epoch, which is the common and cheaper way.
        draw: ``epoch`` draws the batch in a fresh order, in one call to the buffer, and cuts it up;
            ``minibatch`` draws one after another, as the tutorial does: what is left over begins the next.
    """
    count = batch.numel() // size
    for epoch in range(epochs):
        if epoch == 0 or advantage == "each_epoch":
            with torch.no_grad():
                loss.value_estimator(
                    batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params
                )
            buffer.extend(batch.reshape(-1))
        if draw == "epoch":
            yield from buffer.sample(batch.numel()).split(size)[:count]
        else:
            yield from (buffer.sample(size) for _ in range(count))


def replay(
    batch: TensorDictBase,
    buffer: ReplayBuffer,
    loss: LossModule,
    *,
    updates: int,
    size: int,
    warmup_frames: int,
) -> Iterator[TensorDictBase]:
    """DQN, DDPG, TD3, SAC: store the batch, then draw ``updates`` random minibatches from all that is kept.

    Args:
        batch: ``[time]`` or ``[envs, time]``.
        buffer: the replay memory.
        loss: not read here; the signature is the one all of this module's functions share.
        updates: minibatches a batch.
        size: frames a minibatch.
        warmup_frames: nothing is drawn while the buffer holds fewer.
    """
    buffer.extend(batch.reshape(-1))
    if len(buffer) >= max(size, warmup_frames):
        # One draw for all: a call costs TorchRL more than its rows do. A memory on disk gives CPU tensors.
        yield from buffer.sample(updates * size).to(batch.device).split(size)
