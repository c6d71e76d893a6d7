"""Minibatches: how an algorithm samples from the fresh batch, a replay buffer or an offline dataset."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers import PrioritizedSampler
from torchrl.envs import MultiStepTransform
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule

from hydrl.errors import UserError, warn_once
from hydrl.experience.episodes import EpisodeCounter, has_episodes
from hydrl.experience.frame_dedup import drop_unread_keys, find_frame_dedup
from hydrl.experience.hindsight import find_hindsight
from hydrl.experience.multi_agent import fill_loss_keys
from hydrl.limits import NonNegativeInt, OpenFraction, PositiveInt
from hydrl.specs import ALIVE, GONE, INFO, PLAN


class Minibatches:
    """Base class of the options of ``minibatches``: a callable from a batch to its minibatches."""

    def state_dict(self) -> dict[str, Any]:
        """State carried from one batch to the next."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""


def drop_episode_info(batch: TensorDictBase) -> TensorDictBase:
    """A batch without entries that no loss reads: the environment's ``info``, for logging, and plans."""
    unread = [key for name in (INFO, PLAN) if name in batch for key in (name, ("next", name))]
    return batch.exclude(*unread) if unread else batch


class Epochs(Minibatches):
    """On-policy minibatches (PPO, A2C): a few epochs over the fresh batch, without replacement.

    Args:
        buffer: holds one batch and samples without replacement.
        loss: its value estimator (GAE for PPO) writes advantage and value target.
        epochs: passes over the batch.
        size: frames a minibatch; ``frames // size`` of them an epoch.
        advantage: ``each_epoch`` recomputes it with the updated critic, as the TorchRL tutorial does;
            ``once``, common and cheaper, computes it before the first epoch.
        draw: ``epoch`` samples the whole batch in one call to the buffer and splits it; ``minibatch`` samples
            one after another, as the tutorial does: leftover frames begin the next epoch.
        sequence: consecutive frames that stay together, for recurrent policies; ``None`` samples single
            frames.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        epochs: PositiveInt,
        size: PositiveInt,
        advantage: Literal["once", "each_epoch"],
        draw: Literal["epoch", "minibatch"],
        sequence: PositiveInt | None = None,
    ) -> None:
        self.buffer, self.loss = buffer, loss
        self.epochs, self.size, self.advantage, self.draw = epochs, size, advantage, draw
        self.row = [sequence] if sequence else []

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]`` or ``[size // sequence, sequence]``.

        Advantages are computed over the whole batch, ``[time]`` or ``[envs, time]``.
        """
        count, row_length = batch.numel() // self.size, math.prod(self.row)
        rows, size = batch.numel() // row_length, self.size // row_length
        for epoch in range(self.epochs):
            if epoch == 0 or self.advantage == "each_epoch":
                self.estimate_advantages(batch)
                self.buffer.extend(
                    drop_unread_keys(drop_episode_info(batch), self.loss).reshape(-1, *self.row)
                )
            if self.draw == "epoch":
                yield from self.buffer.sample(rows).split(size)[:count]
            else:
                yield from (self.buffer.sample(size) for _ in range(count))

    @torch.no_grad()
    @set_recurrent_mode(True)
    def estimate_advantages(self, batch: TensorDictBase) -> None:
        """Writes advantage and value target into the batch."""
        for loss in getattr(self.loss, "of_groups", {"": self.loss}).values():
            estimate_advantages(batch, loss)


def estimate_advantages(batch: TensorDictBase, loss: LossModule) -> None:
    """Writes advantages and value targets by the loss's value estimator into a batch.

    For agents that can end before their episode it uses their own done flags, and standardizes advantages
    over those that still act; the loss ignores the others.

    Args:
        batch: ``[time]`` or ``[envs, time]``, changed in place.
        loss: a loss with a value estimator.
    """
    keys, params, target = loss.tensor_keys, loss.critic_network_params, loss.target_critic_network_params
    group = keys.action[0] if isinstance(keys.action, tuple) else ""
    alive = batch.get((group, ALIVE), None)
    for key in (keys.value, ("next", keys.value)):
        batch.pop(key, None)  # as the policy wrote it, or the epoch before; the estimator writes both
    if alive is None:
        loss.value_estimator(batch, params=params, target_params=target)
        return
    inputs = batch.copy()
    next_rows = inputs["next"]
    done = ~next_rows[group, ALIVE] | next_rows["done"].unsqueeze(-2)
    next_rows.update({"done": done, "terminated": next_rows[group, GONE]})
    loss.value_estimator(inputs, params=params, target_params=target)
    batch.update(inputs.select(keys.value, keys.advantage, keys.value_target))
    if getattr(loss.value_estimator, "average_gae", False) and not alive.all():
        standardize_advantages(batch[keys.advantage], alive)


def standardize_advantages(advantage: Tensor, alive: Tensor) -> None:
    """Standardizes each agent's advantages, ``[..., agents, 1]``, in place, over the rows it is alive in."""
    rows = [*range(advantage.ndim - 2)]
    count = alive.sum(rows, keepdim=True).clamp_min(1)
    mean = advantage.where(alive, 0.0).sum(rows, keepdim=True) / count
    centered = (advantage - mean).where(alive, 0.0)
    scale = (centered.square().sum(rows, keepdim=True) / (count - 1).clamp_min(1)).sqrt()
    advantage.copy_(centered / scale.clamp_min(1e-4))


class SupportCheck:
    """Check that warns once of returns outside a distributional critic's support.

    Args:
        support: ``[atoms]``, returns.
        gamma: discount.
    """

    def __init__(self, support: Tensor, gamma: float) -> None:
        self.low, self.high, self.gamma = support.min().item(), support.max().item(), gamma
        self.returns, self.discount = np.zeros(1), np.ones(1)  # [envs], of the running episodes
        self.is_done = False

    def __call__(self, batch: TensorDictBase) -> None:
        """Adds a batch ``[time]`` or ``[..., time]`` to the discounted returns of the running episodes."""
        if self.is_done:
            return
        steps = batch.shape[-1]
        rewards, dones = (
            batch["next", key].reshape(-1, steps).cpu().numpy().astype(float) for key in ("reward", "done")
        )
        if len(rewards) != len(self.returns) or ("collector", "traj_ids") in batch.keys(True):
            # Batches of other environments.
            self.returns, self.discount = np.zeros(len(rewards)), np.ones(len(rewards))
        for reward, done in zip(rewards.T, dones.T, strict=True):
            self.returns = self.returns + self.discount * reward
            outside = (self.returns < self.low) | (self.returns > self.high)
            if outside.any():
                self.is_done = True
                warn_once(
                    f"a discounted return of {self.returns[outside][0]:.4g} is outside "
                    f"actor.v_min={self.low:g} to actor.v_max={self.high:g}, and is clipped to them. Set "
                    "both around the returns, or scale the rewards."
                )
                return
            self.returns, self.discount = (
                self.returns * (1 - done),
                np.where(done, 1, self.discount * self.gamma),
            )


class Replay(Minibatches):
    """Replay-buffer minibatches for off-policy algorithms (DQN, DDPG, TD3, SAC).

    Stores each batch, then samples random minibatches. With a
    :class:`~hydrl.experience.buffers.PrioritizedSampler` the loss's errors become priorities after each
    update (Schaul et al. 2016).

    Args:
        buffer: the replay buffer.
        loss: bootstraps after ``n_steps`` with its own discount.
        updates: minibatches a batch.
        size: frames a minibatch.
        warmup_frames: no minibatches while the buffer holds fewer frames.
        n_steps: rewards summed before the target bootstraps (Sutton 1988); fewer where an episode ends.
        draw: ``batch`` samples all minibatches in one call, which is cheaper except for images;
            ``minibatch`` samples one after another, with the priorities of the update before.

    Raises:
        UserError: if the buffer is prioritized and the loss writes no priorities.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        updates: PositiveInt,
        size: PositiveInt,
        warmup_frames: NonNegativeInt,
        n_steps: PositiveInt,
        draw: Literal["batch", "minibatch"],
    ) -> None:
        self.buffer, self.loss = buffer, loss
        self.frames, self.goals = find_frame_dedup(buffer), find_hindsight(buffer)
        self.episodes: EpisodeCounter | None = EpisodeCounter()
        self.is_prioritized = isinstance(buffer.sampler, PrioritizedSampler)
        if self.is_prioritized:  # TorchRL silently ignores any other key
            buffer.priority_key = loss.tensor_keys.priority
        self.updates, self.size, self.warmup_frames = updates, size, warmup_frames
        # Without priorities, sampling one by one gives the same rows. Images of many minibatches need newly
        # allocated memory at each draw, which costs ten times as much as assembling them.
        one_by_one = self.frames is not None and not self.is_prioritized
        self.minibatches_per_draw = updates if draw == "batch" and not one_by_one else 1
        support = getattr(getattr(loss, "value_network", None), "support", None)
        self.check_returns = None if support is None else SupportCheck(support, loss.gamma.item())
        self.multi_step: MultiStepTransform | None = None
        if n_steps > 1:
            # done_keys=[]: done flags must move with the n-step next state, else targets would bootstrap from
            # an episode's last state. No environment has the padding key.
            gamma, padding = loss.value_estimator.gamma.item(), ("collector", "mask")
            self.multi_step = MultiStepTransform(n_steps, gamma, done_keys=[], mask_key=padding)

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        if self.check_returns is not None:
            self.check_returns(batch)
        self.store(drop_episode_info(batch))
        if len(self.buffer) < max(self.size, self.warmup_frames):
            return
        for _ in range(0, self.updates, self.minibatches_per_draw):
            # A buffer on disk returns CPU tensors.
            rows = self.sample(self.minibatches_per_draw).to(batch.device)
            for minibatch in fill_loss_keys(rows, self.loss.tensor_keys).split(self.size):
                yield minibatch
                self.update_priorities(minibatch)

    def sample(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches, ``[count * size]``."""
        return self.buffer.sample(count * self.size)

    def store(self, batch: TensorDictBase) -> None:
        """Adds the batch to the buffer; with n-step returns, those frames that enough steps follow."""
        if self.episodes is not None and ("next", "done") in batch.keys(True):
            batch = self.episodes.add_episode_ids(batch)
        if self.frames is not None:
            batch = self.frames.deduplicate(batch)
        if self.goals is not None:
            batch = self.goals.add_row_ids(batch)
        if self.multi_step is None:
            self.buffer.extend(batch.reshape(-1))
        elif (rows := self.multi_step.inv(batch)) is not None:
            self.buffer.extend(rows.exclude("gamma", "nonterminal", ("next", "original_reward")).reshape(-1))

    def update_priorities(self, minibatch: TensorDictBase) -> None:
        """Writes the errors of the last update into a prioritized buffer."""
        if not self.is_prioritized:
            return
        if self.loss.tensor_keys.priority not in minibatch:
            raise UserError(
                f"buffer.sampler: {type(self.loss).__name__} writes no priorities. Write buffer=replay."
            )
        self.buffer.update_tensordict_priority(minibatch)

    def state_dict(self) -> dict[str, Any]:
        """Frames waiting for n-step returns, and the running episodes."""
        waiting = self.multi_step and self.multi_step._buffer
        episodes = {} if self.episodes is None else {"episodes": self.episodes.state_dict()}
        if waiting is None:
            return episodes
        return {"waiting": waiting.to_dict(), "shape": tuple(waiting.shape), **episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`; buffers of early versions have no episode ids, and get none."""
        if self.episodes is None or "episodes" not in state or not has_episodes(self.buffer):
            self.episodes = None
        else:
            self.episodes.load_state_dict(state["episodes"])
        if self.multi_step and "waiting" in state:
            self.multi_step._buffer = TensorDict(state["waiting"], batch_size=state["shape"])


class Mixed(Replay):
    """Minibatches from a replay buffer and an offline dataset, for learning with demonstrations.

    As in RLPD (Ball et al. 2023), with a share of one half.

    Args:
        buffer: the replay buffer, sampled uniformly.
        loss, updates, size, warmup_frames, n_steps, draw: see :class:`Replay`.
        data: the offline dataset.
        share: share of each minibatch that comes from ``data``.

    Raises:
        UserError: if one of the two would get no row, or the buffer is prioritized.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        data: ReplayBuffer,
        share: OpenFraction,
        updates: PositiveInt,
        size: PositiveInt,
        warmup_frames: NonNegativeInt,
        n_steps: PositiveInt,
        draw: Literal["batch", "minibatch"],
    ) -> None:
        options = {"updates": updates, "size": size, "warmup_frames": warmup_frames, "n_steps": n_steps}
        super().__init__(buffer, loss, **options, draw=draw)
        self.data, self.offline_size = data, round(share * size)
        if not 0 < self.offline_size < size:
            raise UserError(
                f"minibatches.share={share}: it leaves one source out of minibatches.size={size}. Write 0.5."
            )
        if self.is_prioritized:
            raise UserError("buffer=prioritized: minibatches=mixed samples uniformly. Write buffer=replay.")

    def sample(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches; in each, the replay buffer's rows come first."""
        online_size = self.size - self.offline_size
        online, offline = self.buffer.sample(count * online_size), self.data.sample(count * self.offline_size)
        shared_keys = [key for key in online.keys(True, True) if key in offline.keys(True, True)]
        pairs = zip(
            online.split(online_size), offline.to(online.device).split(self.offline_size), strict=True
        )
        return torch.cat([rows.select(*shared_keys) for pair in pairs for rows in pair])


class DatasetBatches(Minibatches):
    """Minibatches of an offline dataset (BC, IQL, CQL): the batch, already sampled, is split.

    Args:
        buffer: unused; the collector samples the dataset.
        loss: unused.
        size: frames a minibatch.
    """

    def __init__(self, buffer: ReplayBuffer | None, loss: LossModule, *, size: int) -> None:
        self.size = size

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``."""
        yield from batch.reshape(-1).split(self.size)[: batch.numel() // self.size]


class TrajectoryBatches(Minibatches):
    """Minibatches of trajectory windows of an offline dataset (decision transformer).

    Args:
        buffer: unused; the collector samples the windows.
        loss: unused.
        size: frames a minibatch.
        sequence: frames of a window.
    """

    def __init__(self, buffer: ReplayBuffer | None, loss: LossModule, *, size: int, sequence: int) -> None:
        self.size, self.sequence = size, sequence

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size // sequence, sequence]``."""
        windows = batch.reshape(-1, self.sequence)
        yield from windows.split(self.size // self.sequence)[: batch.numel() // self.size]
