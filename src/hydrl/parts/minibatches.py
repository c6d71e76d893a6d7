"""The one difference between on-policy and off-policy: which minibatches a fresh batch leads to."""

from collections.abc import Iterator
from typing import Literal

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule


class Epochs:
    """PPO, A2C: a few epochs over the fresh batch, without replacement.

    Args:
        buffer: holds one batch and samples without replacement.
        loss: its value estimator (GAE for PPO) writes advantage and value target.
        epochs: passes over the batch.
        size: frames a minibatch; ``frames // size`` of them an epoch.
        advantage: ``each_epoch`` recomputes it with the updated critic, as the TorchRL tutorial does;
            ``once`` computes it before the first epoch, which is the common and cheaper way.
        draw: ``epoch`` draws the batch in a fresh order, in one call to the buffer, and cuts it up;
            ``minibatch`` draws one after another, as the tutorial does: what is left over begins the next.
        sequence: frames that stay together in time, for a memory; ``None`` deals single frames.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        epochs: int,
        size: int,
        advantage: Literal["once", "each_epoch"],
        draw: Literal["epoch", "minibatch"],
        sequence: int | None = None,
    ) -> None:
        self.buffer, self.loss = buffer, loss
        self.epochs, self.advantage, self.draw = epochs, advantage, draw
        self.rows, self.row = size // (sequence or 1), [sequence] if sequence else []

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]`` or ``[size // sequence, sequence]``.

        The batch, ``[time]`` or ``[envs, time]``, gets its advantages whole.
        """
        rows = batch.reshape(-1, *self.row)
        count = len(rows) // self.rows
        for epoch in range(self.epochs):
            if epoch == 0 or self.advantage == "each_epoch":
                self.judge(batch)
                self.buffer.extend(batch.reshape(-1, *self.row))
            if self.draw == "epoch":
                yield from self.buffer.sample(len(rows)).split(self.rows)[:count]
            else:
                yield from (self.buffer.sample(self.rows) for _ in range(count))

    @torch.no_grad()
    @set_recurrent_mode(True)
    def judge(self, batch: TensorDictBase) -> None:
        """Writes advantage and value target into the batch."""
        loss = self.loss
        loss.value_estimator(
            batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params
        )


class Replay:
    """DQN, DDPG, TD3, SAC: store the batch, then draw random minibatches from all that is kept.

    Args:
        buffer: the replay memory.
        loss: not read here; every choice of the group is built from the same two.
        updates: minibatches a batch.
        size: frames a minibatch.
        warmup_frames: nothing is drawn while the buffer holds fewer.
    """

    def __init__(
        self, buffer: ReplayBuffer, loss: LossModule, *, updates: int, size: int, warmup_frames: int
    ) -> None:
        self.buffer = buffer
        self.updates, self.size, self.warmup_frames = updates, size, warmup_frames

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        self.buffer.extend(batch.reshape(-1))
        if len(self.buffer) >= max(self.size, self.warmup_frames):
            # One draw for all, for a call costs more than its rows do. A memory on disk gives CPU tensors.
            drawn = self.buffer.sample(self.updates * self.size)
            yield from drawn.to(batch.device).split(self.size)
