"""The one difference between on-policy and off-policy: which minibatches a fresh batch leads to."""

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

from hydrl.errors import UserError
from hydrl.experience.episodes import Episodes, has_episodes
from hydrl.experience.frame_dedup import frames_of, still_read
from hydrl.experience.hindsight import goals_of
from hydrl.experience.multi_agent import as_read
from hydrl.library_setup import warn_once
from hydrl.specs import ALIVE, GONE, INFO


class Minibatches:
    """What every choice of the group has; every one is built from the buffer and the loss."""

    def state_dict(self) -> dict[str, Any]:
        """What goes from one batch to the next."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""


def learned_from(batch: TensorDictBase) -> TensorDictBase:
    """A batch without what the task told of its episodes, which only the log reads."""
    return batch.exclude(INFO, ("next", INFO)) if INFO in batch else batch


class Epochs(Minibatches):
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
        self.epochs, self.size, self.advantage, self.draw = epochs, size, advantage, draw
        self.row = [sequence] if sequence else []

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]`` or ``[size // sequence, sequence]``.

        The batch, ``[time]`` or ``[envs, time]``, gets its advantages whole.
        """
        count, row = batch.numel() // self.size, math.prod(self.row)
        rows, size = batch.numel() // row, self.size // row
        for epoch in range(self.epochs):
            if epoch == 0 or self.advantage == "each_epoch":
                self.judge(batch)
                self.buffer.extend(still_read(learned_from(batch), self.loss).reshape(-1, *self.row))
            if self.draw == "epoch":
                yield from self.buffer.sample(rows).split(size)[:count]
            else:
                yield from (self.buffer.sample(size) for _ in range(count))

    @torch.no_grad()
    @set_recurrent_mode(True)
    def judge(self, batch: TensorDictBase) -> None:
        """Writes advantage and value target into the batch."""
        for loss in getattr(self.loss, "of_groups", {"": self.loss}).values():
            judge(batch, loss)


def judge(batch: TensorDictBase, loss: LossModule) -> None:
    """Writes what a loss's value estimator says of a batch, ``[time]`` or ``[envs, time]``.

    Of agents of which some may end before their episode each has ends of its own, and what is standardised is
    so over those that still acted: of others a loss reads nothing.
    """
    keys, params, target = loss.tensor_keys, loss.critic_network_params, loss.target_critic_network_params
    group = keys.action[0] if isinstance(keys.action, tuple) else ""
    alive = batch.get((group, ALIVE), None)
    if alive is None:
        loss.value_estimator(batch, params=params, target_params=target)
        return
    read = batch.copy()
    following = read["next"]
    over = ~following[group, ALIVE] | following["done"].unsqueeze(-2)
    following.update({"done": over, "terminated": following[group, GONE]})
    loss.value_estimator(read, params=params, target_params=target)
    batch.update(read.select(keys.value, keys.advantage, keys.value_target))
    if getattr(loss.value_estimator, "average_gae", False) and not alive.all():
        standardise(batch[keys.advantage], alive)


def standardise(advantage: Tensor, alive: Tensor) -> None:
    """Each agent's advantages, ``[..., agents, 1]``, in place, over the rows in which it is ``alive``."""
    rows = [*range(advantage.ndim - 2)]
    count = alive.sum(rows, keepdim=True).clamp_min(1)
    mean = advantage.where(alive, 0.0).sum(rows, keepdim=True) / count
    apart = (advantage - mean).where(alive, 0.0)
    scale = (apart.square().sum(rows, keepdim=True) / (count - 1).clamp_min(1)).sqrt()
    advantage.copy_(apart / scale.clamp_min(1e-4))


class SupportCheck:
    """Warns once of returns that lie outside the support of a distributional critic.

    Args:
        support: ``[atoms]``, the returns that the critic tells apart.
        gamma: the discount.
    """

    def __init__(self, support: Tensor, gamma: float) -> None:
        self.low, self.high, self.gamma = support.min().item(), support.max().item(), gamma
        self.returns, self.discount = np.zeros(1), np.ones(1)  # [envs], of the episodes so far
        self.is_done = False

    def __call__(self, batch: TensorDictBase) -> None:
        """Adds a batch ``[time]`` or ``[..., time]`` to the discounted returns of the running episodes."""
        if self.is_done:
            return
        steps = batch.shape[-1]
        rewards, ends = (
            batch["next", key].reshape(-1, steps).cpu().numpy().astype(float) for key in ("reward", "done")
        )
        if len(rewards) != len(self.returns) or ("collector", "traj_ids") in batch.keys(True):
            self.returns, self.discount = (
                np.zeros(len(rewards)),
                np.ones(len(rewards)),
            )  # of other environments
        for reward, end in zip(rewards.T, ends.T, strict=True):
            self.returns = self.returns + self.discount * reward
            outside = (self.returns < self.low) | (self.returns > self.high)
            if outside.any():
                self.is_done = True
                warn_once(
                    f"a discounted return of {self.returns[outside][0]:.4g} is outside "
                    f"actor.v_min={self.low:g} to actor.v_max={self.high:g} and is learned as the nearer of "
                    "them; set both around the returns, or scale the rewards"
                )
                return
            self.returns, self.discount = (
                self.returns * (1 - end),
                np.where(end, 1, self.discount * self.gamma),
            )


class Replay(Minibatches):
    """DQN, DDPG, TD3, SAC: store the batch, then draw random minibatches from all that is kept.

    With a :class:`~hydrl.experience.buffers.PrioritizedSampler` the loss's errors go back as priorities
    after each update (Schaul et al. 2016).

    Args:
        buffer: the replay memory.
        loss: bootstraps from ``n_steps`` on with its own discount.
        updates: minibatches a batch.
        size: frames a minibatch.
        warmup_frames: nothing is drawn while the buffer holds fewer.
        n_steps: rewards summed before the target bootstraps (Sutton 1988); fewer where an episode ends.
        draw: ``batch`` draws all minibatches in one call, which costs less, but for pictures; ``minibatch``
            draws one after another, so that each sees the priorities of the one before.

    Raises:
        UserError: where priorities are asked for and the loss writes no error.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        updates: int,
        size: int,
        warmup_frames: int,
        n_steps: int,
        draw: Literal["batch", "minibatch"],
    ) -> None:
        self.buffer, self.loss = buffer, loss
        self.frames, self.goals = frames_of(buffer), goals_of(buffer)
        self.episodes: Episodes | None = Episodes()
        self.prioritised = isinstance(buffer.sampler, PrioritizedSampler)
        if self.prioritised:  # by the loss's name for them: another is passed over in silence
            buffer.priority_key = loss.tensor_keys.priority
        self.updates, self.size, self.warmup_frames = updates, size, warmup_frames
        # Drawn one after another rows are the same, unless by priorities. Pictures of many minibatches need
        # new memory at each draw, and getting that costs ten times what putting them together does.
        apart = self.frames is not None and not self.prioritised
        self.at_once = updates if draw == "batch" and not apart else 1
        support = getattr(getattr(loss, "value_network", None), "support", None)
        self.check_returns = None if support is None else SupportCheck(support, loss.gamma.item())
        self.multi_step: MultiStepTransform | None = None
        if n_steps > 1:
            # Ends are gathered too: left in place, a target bootstraps from the state an episode ended in.
            gamma, padding = loss.value_estimator.gamma.item(), ("collector", "mask")  # no task's own `mask`
            self.multi_step = MultiStepTransform(n_steps, gamma, done_keys=[], mask_key=padding)

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        if self.check_returns is not None:
            self.check_returns(batch)
        self.store(learned_from(batch))
        if len(self.buffer) < max(self.size, self.warmup_frames):
            return
        for _ in range(0, self.updates, self.at_once):
            # A memory on disk gives CPU tensors.
            drawn = as_read(self.drawn(self.at_once).to(batch.device), self.loss.tensor_keys)
            for minibatch in drawn.split(self.size):
                yield minibatch
                self.prioritise(minibatch)

    def drawn(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches, one after another."""
        return self.buffer.sample(count * self.size)

    def store(self, batch: TensorDictBase) -> None:
        """Puts the batch's frames into the buffer; with several steps, those of which enough follow."""
        if self.episodes is not None and ("next", "done") in batch.keys(True):
            batch = self.episodes.numbered(batch)
        if self.frames is not None:
            batch = self.frames.numbered(batch)
        if self.goals is not None:
            batch = self.goals.numbered(batch)
        if self.multi_step is None:
            self.buffer.extend(batch.reshape(-1))
        elif (rows := self.multi_step.inv(batch)) is not None:
            self.buffer.extend(rows.exclude("gamma", "nonterminal", ("next", "original_reward")).reshape(-1))

    def prioritise(self, minibatch: TensorDictBase) -> None:
        """Writes the errors of the update that was just made into the buffer, if it draws by them."""
        if not self.prioritised:
            return
        if self.loss.tensor_keys.priority not in minibatch:
            raise UserError(f"buffer.sampler draws by priorities and {type(self.loss).__name__} writes none")
        self.buffer.update_tensordict_priority(minibatch)

    def state_dict(self) -> dict[str, Any]:
        """The frames of which too few follow yet, and which episodes are under way."""
        waiting = self.multi_step and self.multi_step._buffer
        own = {} if self.episodes is None else {"episodes": self.episodes.state_dict()}
        if waiting is None:
            return own
        return {"waiting": waiting.to_dict(), "shape": tuple(waiting.shape), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`; what an older run keeps has no episodes, and is given none."""
        if self.episodes is None or "episodes" not in state or not has_episodes(self.buffer):
            self.episodes = None
        else:
            self.episodes.load_state_dict(state["episodes"])
        if self.multi_step and "waiting" in state:
            self.multi_step._buffer = TensorDict(state["waiting"], batch_size=state["shape"])


class Mixed(Replay):
    """SAC with demonstrations, offline to online: each minibatch is of both, what is kept and what is given.

    As in RLPD (Ball et al. 2023), whose share is a half.

    Args:
        buffer: the replay memory, drawn from evenly.
        loss: as for :class:`Replay`, like the others that are not named here.
        data: what others collected.
        share: of each minibatch, from ``data``.

    Raises:
        UserError: for a share that gives one of both no row, and for what only a memory alone can do.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        data: ReplayBuffer,
        share: float,
        updates: int,
        size: int,
        warmup_frames: int,
        n_steps: int,
        draw: Literal["batch", "minibatch"],
    ) -> None:
        numbers = {"updates": updates, "size": size, "warmup_frames": warmup_frames, "n_steps": n_steps}
        super().__init__(buffer, loss, **numbers, draw=draw)
        self.data, self.given = data, round(share * size)
        if not 0 < self.given < size:
            raise UserError(f"minibatches.share={share} of minibatches.size={size} leaves one of both out")
        if self.prioritised:
            raise UserError("buffer=prioritized is for a memory alone; use buffer=replay")

    def drawn(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches; in each those of the memory stand first."""
        kept = self.size - self.given
        own, given = self.buffer.sample(count * kept), self.data.sample(count * self.given)
        both = [key for key in own.keys(True, True) if key in given.keys(True, True)]
        parts = zip(own.split(kept), given.to(own.device).split(self.given), strict=True)
        return torch.cat([rows.select(*both) for pair in parts for rows in pair])


class Cut(Minibatches):
    """IQL, BC: the batch is a draw from a data set, and is cut into minibatches.

    Args:
        buffer: not read; the data set is the collector's.
        loss: not read here.
        size: frames a minibatch.
    """

    def __init__(self, buffer: ReplayBuffer | None, loss: LossModule, *, size: int) -> None:
        self.size = size

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``."""
        yield from batch.reshape(-1).split(self.size)[: batch.numel() // self.size]


class Whole(Minibatches):
    """Decision transformers: the batch is of pieces of episodes, and is cut between them.

    Args:
        buffer: not read; the data set is the collector's, which draws such pieces.
        loss: not read here.
        size: frames a minibatch.
        sequence: frames of a piece.
    """

    def __init__(self, buffer: ReplayBuffer | None, loss: LossModule, *, size: int, sequence: int) -> None:
        self.size, self.sequence = size, sequence

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size // sequence, sequence]``."""
        pieces = batch.reshape(-1, self.sequence)
        yield from pieces.split(self.size // self.sequence)[: batch.numel() // self.size]
