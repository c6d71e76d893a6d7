"""Records for world models: sequences of observations with the action, reward and end that came with each."""

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule

from hydrl.experience.minibatches import Replay
from hydrl.experience.sequences import SequenceReplay
from hydrl.limits import NonNegativeInt, PositiveInt
from hydrl.networks.world_model import LATENT_KEYS

CONTEXT_KEYS = LATENT_KEYS[:2]  # the latent state that a sequence begins with


class Records(SequenceReplay):
    """Replay-buffer minibatches of records (DreamerV3).

    A row of the buffer is a sequence of one environment's steps with the acting latent state at its first
    step, from which the world model goes on. Sequences overlap by half; see
    :class:`~hydrl.experience.sequences.SequenceReplay`. Records are made where rows are drawn.

    Args:
        buffer: the replay buffer; a row is a sequence.
        loss: DreamerV3's.
        updates: minibatches a batch.
        size: records a minibatch, in ``size // sequence`` sequences.
        warmup_frames: no minibatches while the buffer holds fewer frames.
        draw: see :class:`~hydrl.experience.minibatches.Replay`.
        sequence: records of a sequence.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        updates: PositiveInt,
        size: PositiveInt,
        warmup_frames: NonNegativeInt,
        draw: Literal["batch", "minibatch"],
        sequence: PositiveInt,
    ) -> None:
        super().__init__(
            buffer,
            loss,
            updates=updates,
            size=size,
            warmup_frames=warmup_frames,
            draw=draw,
            sequence=sequence,
            burn_in=0,
            eta=0.0,
            n_steps=1,
        )
        self.read_keys = loss.model_loss.world_model.observation_keys

    def store(self, batch: TensorDictBase) -> None:
        """Adds the sequences that the batch, ``[time]`` or ``[..., time]``, completes to the buffer."""
        next_latents = [("next", key) for key in LATENT_KEYS]
        latents = {key: batch["next", key] for key in CONTEXT_KEYS}
        super().store(batch.exclude(*LATENT_KEYS, *next_latents).update(latents))

    def add_sequences(self, steps: TensorDictBase) -> None:
        """Adds sequences ``[envs, sequence]``, with the latent state of the first step only."""
        rows = steps.exclude(*CONTEXT_KEYS)
        rows.batch_size = steps.shape[:1]
        super().add_sequences(rows.update({key: steps[key][:, 0] for key in CONTEXT_KEYS}))

    def sample(self, count: int) -> TensorDictBase:
        """Records of ``count`` minibatches, ``[count * size, sequence]``."""
        return make_records(Replay.sample(self, count), self.read_keys)


def make_records(rows: TensorDictBase, observation_keys: Sequence[NestedKey]) -> TensorDictBase:
    """As many records from sequences of steps.

    A record has an observation under ``next``, with the reward and the ends that came with it. At its root it
    has the action that led to it, and whether it begins an episode. An episode of n steps has n + 1 records.
    Its first observation is one of its own, with zeros for the rest, so that a sequence loses a step at its
    end for each episode that begins in it. Given steps instead, TorchRL's ``RSSMRolloutV3`` never reads an
    episode's first observation and first action.

    Args:
        rows: sequences, ``[rows]``, with entries ``[rows, time, ...]``; latent states ``[rows, size]`` are
            those of the first step's observation.
        observation_keys: entries that the model reads.

    Returns:
        ``[rows, time]``.
    """
    begins = rows["is_init"].squeeze(-1)
    count, time = begins.shape
    positions = torch.arange(time, device=begins.device).expand(count, time).contiguous()
    places = positions + begins.cumsum(1)  # of the record that a step's action led to
    source = torch.searchsorted(places, positions)  # the step that a record is made from
    is_first = places.gather(1, source) != positions
    index = torch.arange(count, device=begins.device).unsqueeze(1), source

    def take(key: NestedKey, first: NestedKey | None = None) -> torch.Tensor:
        own = rows[key][index]
        first_values = torch.zeros_like(own) if first is None else rows[first][index]
        return torch.where(expand_as_right(is_first, own), first_values, own)

    following = {
        key: take(("next", *([key] if isinstance(key, str) else key)), key) for key in observation_keys
    }
    following |= {key: take(("next", key)) for key in ("reward", "done", "terminated")}
    context = {key: rows[key].unsqueeze(1).expand(-1, time, -1) for key in CONTEXT_KEYS}
    records = {"action": take("action"), "is_init": is_first.unsqueeze(-1), **context}
    return TensorDict({**records, "next": TensorDict(following, (count, time))}, (count, time))
