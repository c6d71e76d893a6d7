"""Sequence replay for recurrent off-policy algorithms; a replay-buffer row is one sequence."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule

from hydrl.experience.frame_dedup import RECOMPUTED_KEYS
from hydrl.experience.minibatches import Replay
from hydrl.limits import Fraction, NonNegativeInt, PositiveInt
from hydrl.specs import RNN_STATE_KEYS

# Entries that a loss recomputes, or reads at the next step of the sequence.
DROPPED_KEYS = (
    *RECOMPUTED_KEYS,
    "memory",
    "joined",
    "chosen_action_value",
    *(("next", key) for key in RNN_STATE_KEYS),
)


class SequenceReplay(Replay):
    """Replay-buffer minibatches of sequences (R2D2, recurrent SAC and TD3).

    Each environment's steps are stored as sequences that overlap by half (Kapturowski et al. 2019), with the
    actor's hidden state at their first step. Steps without enough successors wait for the next batch.

    The first ``burn_in`` steps only update the hidden state and are masked in the loss, unless an episode
    begins among them. A step that truncates an episode inside a sequence is masked, too, as the networks do
    not run through its next observation.

    Args:
        buffer: the replay buffer; a row is a sequence.
        loss: bootstraps within a sequence.
        updates: minibatches a batch.
        size: steps a minibatch, in ``size // sequence`` sequences.
        warmup_frames: no minibatches while the buffer holds fewer frames.
        n_steps: ignored here; the loss has it.
        draw: see :class:`~hydrl.experience.minibatches.Replay`.
        sequence: steps of a sequence.
        burn_in: steps at the start that only update the hidden state.
        eta: a sequence's priority is ``eta`` times its largest error plus ``1 - eta`` times their mean.
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
        sequence: PositiveInt,
        burn_in: NonNegativeInt,
        eta: Fraction,
    ) -> None:
        self.sequence, self.burn_in, self.eta = sequence, burn_in, eta
        self.stride = (sequence + 1) // 2
        self.pending_steps: TensorDictBase | None = None  # steps, [envs, time], of incomplete sequences
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
        """Adds the sequences that the batch, ``[time]`` or ``[..., time]``, completes to the buffer."""
        if self.frames is not None:
            batch = self.frames.deduplicate(batch)
        steps = batch.exclude(*DROPPED_KEYS).reshape(-1, batch.shape[-1])
        if self.pending_steps is not None:
            steps = torch.cat([self.pending_steps, steps], 1)
        start = 0
        while start + self.sequence <= steps.shape[1]:
            self.add_sequences(steps[:, start : start + self.sequence])
            start += self.stride
        self.pending_steps = steps[:, start:].clone()

    def add_sequences(self, steps: TensorDictBase) -> None:
        """Adds sequences ``[envs, sequence]`` to the buffer."""
        self.buffer.extend(steps)

    def sample(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches, ``[count * size, sequence]``, by :func:`prepare_sequences`."""
        rows = super().sample(count)
        read_keys = [key for key in self.loss.in_keys if key[0] != "next"]
        return prepare_sequences(rows, read_keys, self.burn_in)

    def update_priorities(self, minibatch: TensorDictBase) -> None:
        """Writes one priority a sequence into a prioritized buffer."""
        if not self.is_prioritized:
            return
        key = self.loss.tensor_keys.priority
        if (errors := minibatch.get(key, None)) is not None:
            is_learned = minibatch.get(LOSS_MASK)
            errors = errors.reshape(is_learned.shape) * is_learned
            mean = errors.sum(1, keepdim=True) / is_learned.sum(1, keepdim=True)
            priority = self.eta * errors.amax(1, keepdim=True) + (1 - self.eta) * mean
            minibatch.set(key, priority.expand(is_learned.shape))
        super().update_priorities(minibatch)

    def state_dict(self) -> dict[str, Any]:
        """The steps that wait for successors."""
        return (
            {}
            if self.pending_steps is None
            else {"left": self.pending_steps.to_dict(), "shape": tuple(self.pending_steps.shape)}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.pending_steps = TensorDict(state["left"], batch_size=state["shape"]) if state else None


LOSS_MASK = ("collector", "mask")  # TorchRL's losses read here which steps to learn from


def prepare_sequences(rows: TensorDictBase, read_keys: Sequence[NestedKey], burn_in: int) -> TensorDictBase:
    """Sequences ``[rows, time]`` as recurrent networks run through them.

    The ``next`` entries of a step become those of the following step, also across episodes, so networks run
    through them with the same resets. A terminated episode is not bootstrapped; a truncating step is masked.

    Args:
        rows: sequences as they were collected.
        read_keys: entries that the networks read.
        burn_in: see :class:`SequenceReplay`.
    """
    rows = rows.copy()
    next_rows, is_first = rows.get("next"), rows.get("is_init")
    for key in read_keys:
        if key in RNN_STATE_KEYS and key in rows:  # zeros at each reset
            rows.set(key, rows.get(key).masked_fill(expand_as_right(is_first, rows.get(key)), 0))
            next_rows.set(key, shift_back(rows.get(key), torch.zeros_like(rows.get(key))))
        elif key in next_rows.keys(True, True):
            next_rows.set(key, shift_back(rows.get(key), next_rows.get(key)))
    is_learned = is_first.cumsum(1) > 0
    is_learned[:, burn_in:] = True
    cut_short = next_rows.get("is_init") & ~next_rows.get("terminated")
    return rows.set(LOSS_MASK, is_learned & ~cut_short)


def shift_back(steps: Tensor, last: Tensor) -> Tensor:
    """``[rows, time, ...]`` moved one step back in time; the last step gets that of ``following``."""
    return torch.cat([steps[:, 1:], last[:, -1:]], 1)
