"""Sequences in a replay memory: a row is one, so that no draw crosses from one environment into another."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule

from hydrl.experience.frame_dedup import MADE_ANEW
from hydrl.experience.minibatches import Replay
from hydrl.specs import RNN_STATE_KEYS

# What a loss makes anew, or reads at the next step of the sequence.
LEFT_OUT = (
    *MADE_ANEW,
    "memory",
    "joined",
    "chosen_action_value",
    *(("next", each) for each in RNN_STATE_KEYS),
)


class Sequences(Replay):
    """R2D2, and SAC or TD3 with a memory: store the batch as sequences, draw some of all that are kept.

    What each environment does is cut into sequences of which each begins in the middle of the one before
    (Kapturowski et al. 2019); steps of which too few follow wait for the next batch. A sequence has the
    hidden state that the actor had at its first step. By that, or from zeros, networks run through the first
    ``burn_in`` steps to have a state of today's, and these are not learned from, but for those of an episode
    that begins among them: its state is known. Neither is the step at which an episode was cut short in
    the midst of a sequence, whose next observation no network runs through.

    Args:
        buffer: the replay memory, a row a sequence.
        loss: bootstraps within a sequence.
        updates: minibatches a batch.
        size: steps a minibatch, in ``size // sequence`` sequences.
        warmup_frames: nothing is drawn while the buffer holds fewer.
        n_steps: rewards summed before the target bootstraps, which the loss sees to.
        draw: as for :class:`~hydrl.experience.minibatches.Replay`.
        sequence: steps of one.
        burn_in: first steps that bring the state up to date.
        eta: the priority of a sequence is ``eta`` times its greatest error, and the rest their mean.
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
        sequence: int,
        burn_in: int,
        eta: float,
    ) -> None:
        self.sequence, self.burn_in, self.eta = sequence, burn_in, eta
        self.stride = (sequence + 1) // 2
        self.left: TensorDictBase | None = None  # steps, [envs, time], of which too few follow yet
        super().__init__(
            buffer,
            loss,
            updates=updates,
            size=size // sequence,
            warmup_frames=warmup_frames // self.stride,
            n_steps=1,
            draw=draw,
        )

    def store(self, batch: TensorDictBase) -> None:
        """Puts into the buffer the sequences that the batch, ``[time]`` or ``[..., time]``, completes."""
        if self.frames is not None:
            batch = self.frames.numbered(batch)
        steps = batch.exclude(*LEFT_OUT).reshape(-1, batch.shape[-1])
        if self.left is not None:
            steps = torch.cat([self.left, steps], 1)
        begin = 0
        while begin + self.sequence <= steps.shape[1]:
            self.buffer.extend(steps[:, begin : begin + self.sequence])
            begin += self.stride
        self.left = steps[:, begin:].clone()

    def drawn(self, count: int) -> TensorDictBase:
        """Those of ``count`` minibatches, ``[count * size, sequence]``, as :func:`unrolled` leaves them."""
        rows = super().drawn(count)
        read = [key for key in self.loss.in_keys if key[0] != "next"]
        return unrolled(rows, read, self.burn_in)

    def prioritise(self, minibatch: TensorDictBase) -> None:
        """Writes one priority for each sequence into the buffer, if it draws by them."""
        key = self.loss.tensor_keys.priority
        if self.prioritised and (errors := minibatch.get(key, None)) is not None:
            learned = minibatch.get(LEARNED)
            errors = errors.reshape(learned.shape) * learned
            mean = errors.sum(1, keepdim=True) / learned.sum(1, keepdim=True)
            priority = self.eta * errors.amax(1, keepdim=True) + (1 - self.eta) * mean
            minibatch.set(key, priority.expand(learned.shape))
        super().prioritise(minibatch)

    def state_dict(self) -> dict[str, Any]:
        """The steps that wait."""
        return {} if self.left is None else {"left": self.left.to_dict(), "shape": tuple(self.left.shape)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        self.left = TensorDict(state["left"], batch_size=state["shape"]) if state else None


LEARNED = ("collector", "mask")  # where TorchRL's losses look for what counts


def unrolled(rows: TensorDictBase, read: Sequence[NestedKey], burn_in: int) -> TensorDictBase:
    """Sequences of steps as networks with a memory run through them, ``[rows, time]``.

    What comes next to a step is made the following step, where an episode ended too: so networks run through
    all that comes next as through the steps themselves, and begin anew at the same places. Of the end of an
    episode nothing is bootstrapped; where it was cut short, the step is left out.

    Args:
        rows: as they were collected.
        read: entries that networks read.
        burn_in: see :class:`Sequences`.
    """
    rows = rows.copy()
    following, begins = rows.get("next"), rows.get("is_init")
    for key in read:
        if key in RNN_STATE_KEYS and key in rows:  # zeros wherever a network begins anew
            rows.set(key, rows.get(key).masked_fill(expand_as_right(begins, rows.get(key)), 0))
            following.set(key, moved_up(rows.get(key), torch.zeros_like(rows.get(key))))
        elif key in following.keys(True, True):
            following.set(key, moved_up(rows.get(key), following.get(key)))
    known = begins.cumsum(1) > 0
    known[:, burn_in:] = True
    cut_short = following.get("is_init") & ~following.get("terminated")
    return rows.set(LEARNED, known & ~cut_short)


def moved_up(steps: Tensor, following: Tensor) -> Tensor:
    """``[rows, time, ...]``: at each step what the step after it has, at the last what follows."""
    return torch.cat([steps[:, 1:], following[:, -1:]], 1)
