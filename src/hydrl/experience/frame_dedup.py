"""Frame deduplication in replay buffers: each image frame is stored once, rows hold frame numbers."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorStorage
from torchrl.envs import Transform

FRAMES_PER_ROW = 1.05  # capacity in frames to capacity in rows: an episode has one frame more than steps
COPY_CHUNK = 4_096  # frames copied at once
# Outputs of the actor, 2 kB a step or 4 kB with distributional critics, that every loss recomputes.
RECOMPUTED_KEYS = ("features", "action_value")


class FrameDedup(Transform):
    """Replay-buffer transform that stores each image frame once and restores images in samples.

    With stacks of four frames each frame would be stored eight times, in four observations and four next
    observations. Here a row holds the numbers of its frames, ``[k]``, instead of a stack ``[k * C, H, W]``.
    Two frames share a number only if all their bytes are equal; episodes are not assumed.

    Frames are numbered in writing order. A frame is overwritten once no row refers to it; if rows refer to
    all, the frame storage grows.

    Args:
        rows: storage of the rows.
        keys: image entries, all of the same stack size.
        stack_size: ``k``, frames in a stack; 1 without stacking.
    """

    def __init__(self, rows: TensorStorage, keys: Sequence[NestedKey], stack_size: int) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.rows, self.keys, self.stacked = rows, list(keys), stack_size
        self.buffer = ReplayBuffer(storage=self.make_storage(int(FRAMES_PER_ROW * rows.max_size)))
        self.last: Tensor | None = None  # frames of each environment's last observation, [envs, k]
        self.oldest_needed = 0  # rows have no lower frame number; updated when space is short

    def deduplicate(self, batch: TensorDictBase) -> TensorDictBase:
        """Stores a fresh batch's new frames; returns the batch with frame numbers in place of images.

        Outputs of the actor that the loss recomputes are dropped.

        Args:
            batch: ``[time]``, ``[envs, time]`` or one dimension more in front.
        """
        observations, next_observations = (
            data.select(*self.keys).reshape(-1, batch.shape[-1]) for data in (batch, batch.get("next"))
        )
        last = self.last if self.last is not None and len(self.last) == len(observations) else None
        is_shifted = self.equal_stacks(next_observations, observations, by=1)
        is_known = torch.zeros_like(is_shifted)
        is_known[:, 1:] = self.equal_stacks(observations[:, 1:], next_observations[:, :-1])
        if last is not None:
            is_known[:, 0] = self.equal_stacks(observations[:, 0], self.read_stacks(last).to(is_known.device))

        # New frames: none of a known stack, the last of a stack that moved on by one, all of any other.
        is_new_stack = torch.stack([~is_known, ~is_shifted], -1)
        is_constant = torch.zeros_like(is_new_stack)
        for index, stack_pair in enumerate((observations, next_observations)):
            is_constant[..., index][is_new_stack[..., index]] = self.is_constant(
                stack_pair[is_new_stack[..., index]]
            )
        new = (is_new_stack & ~is_constant).unsqueeze(-1).repeat(1, 1, 1, self.stacked)
        new[..., -1] = torch.stack([~is_known, torch.ones_like(is_shifted)], -1)
        frame_ids = self.buffer.write_count - 1 + new.flatten().cumsum(0).view_as(new)
        frame_ids = torch.where(is_constant.unsqueeze(-1), frame_ids[..., -1:], frame_ids)
        frame_ids = reuse_numbers(frame_ids, is_known, is_shifted, last)
        self.last = frame_ids[:, -1, 1]

        new_indices, new_frames = new.flatten().nonzero()[:, 0], {}
        for key in self.keys:
            stacks = torch.stack([observations.get(key), next_observations.get(key)], 2)
            new_frames[key] = self.split_stacks(stacks).flatten(0, 3).index_select(0, new_indices)
        self.store(new_frames)
        rows = batch.copy().exclude(*RECOMPUTED_KEYS)
        for index, target in enumerate((rows, rows.get("next"))):
            target.update(dict.fromkeys(self.keys, frame_ids[..., index, :].reshape(*batch.shape, -1)))
        return rows

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Sampled rows, ``[rows]``, with images in place of frame numbers."""
        key = self.keys[0]
        if rows.get(key).dtype == torch.uint8:
            return rows
        frame_ids = torch.stack([rows.get(key), rows.get("next").get(key)])
        observations, next_observations = self.read_stacks(frame_ids).unbind(0)
        rows = rows.copy().update(observations)
        rows.get("next").update(next_observations)
        return rows

    def read_stacks(self, frame_ids: Tensor) -> TensorDict:
        """Images ``[..., k * C, H, W]`` of frame numbers ``[..., k]``."""
        shape, indices = frame_ids.shape, self.slots(frame_ids.flatten())
        stored, images = self.buffer.storage.get(slice(None)), {}
        for key in self.keys:
            column = stored.get(key)
            frames = column.index_select(0, indices.to(column.device))  # 20 times faster than column[places]
            images[key] = frames.unflatten(0, shape).flatten(len(shape) - 1, len(shape))
        return TensorDict(images, shape[:-1])

    def split_stacks(self, stacks: Tensor) -> Tensor:
        """``[..., k * C, H, W]`` as ``[..., k, C, H, W]``."""
        return stacks.unflatten(-3, (self.stacked, -1))

    def equal_stacks(self, some: TensorDictBase, others: TensorDictBase, by: int = 0) -> Tensor:
        """Whether stacks of ``some``, shifted by ``by`` frames, equal those of ``others``."""
        equal = []
        for key in self.keys:
            frames, other_frames = self.split_stacks(some.get(key)), self.split_stacks(others.get(key))
            frames, other_frames = frames[..., : self.stacked - by, :, :, :], other_frames[..., by:, :, :, :]
            equal.append((frames ^ other_frames).flatten(some.ndim).any(-1) == 0)  # six times faster than ==
        return torch.stack(equal).all(0)

    def is_constant(self, stacks: TensorDictBase) -> Tensor:
        """Whether all frames of a stack are the same, ``[rows]``."""
        split = [self.split_stacks(stacks.get(key)) for key in self.keys]
        equal = [(frames[:, 1:] ^ frames[:, :1]).flatten(1).any(-1) == 0 for frames in split]
        return torch.stack(equal).all(0)

    def store(self, frames: Mapping[NestedKey, Tensor]) -> None:
        """Writes new frames, ``[frames, C, H, W]``, without overwriting any that a row refers to."""
        images = frames[self.keys[0]]
        new_count, capacity = self.buffer.write_count + len(images), self.buffer.storage.max_size
        if new_count - self.oldest_needed > capacity and len(self.rows):
            # The oldest that a row refers to. Rows not yet stored (n-step) refer to later ones only, for the
            # buffer holds earlier steps of every environment.
            self.oldest_needed = int(self.rows.get(slice(None)).get(self.keys[0]).min())
        if new_count - self.oldest_needed > capacity:
            self.grow(11 * (new_count - self.oldest_needed) // 10)
        self.buffer.extend(TensorDict(dict(frames), [len(images)], device=images.device))

    def grow(self, capacity: int) -> None:
        """Moves the frames still needed to a larger storage."""
        old_storage, count = self.buffer.storage, self.buffer.write_count
        new_storage = self.make_storage(capacity)
        for frame_ids in torch.arange(self.oldest_needed, count).split(COPY_CHUNK) if count else ():
            new_storage.set(frame_ids - self.oldest_needed, old_storage.get(self.slots(frame_ids)))
        self.switch_storage(new_storage, count - self.oldest_needed, count)
        if isinstance(old_storage, LazyMemmapStorage) and old_storage.scratch_dir:
            shutil.rmtree(old_storage.scratch_dir, ignore_errors=True)

    def switch_storage(self, storage: TensorStorage, cursor: int, count: int) -> None:
        """Continues writing in another storage: frame number ``count`` goes to index ``cursor``."""
        self.buffer.set_storage(storage)
        self.buffer.writer.register_storage(storage)
        self.buffer.writer.load_state_dict({"_cursor": cursor % storage.max_size, "_write_count": count})

    def make_storage(self, capacity: int) -> TensorStorage:
        """An empty frame storage on the device, or in the folder, of the rows."""
        if not isinstance(self.rows, LazyMemmapStorage):
            return LazyTensorStorage(capacity, device=self.rows.device)
        folder = self.rows.scratch_dir and Path(self.rows.scratch_dir, f"frames-{capacity}")
        return LazyMemmapStorage(capacity, scratch_dir=folder, existsok=True)

    def slots(self, row_ids: Tensor) -> Tensor:
        """Storage indices of frame numbers."""
        return slots(self.buffer, row_ids)

    def state(self) -> dict[str, Any]:
        """Everything but the frames themselves, as plain values."""
        writer = self.buffer.writer.state_dict()
        return {
            "keys": self.keys,
            "stacked": self.stacked,
            "capacity": self.buffer.storage.max_size,
            "cursor": writer["_cursor"],
            "count": writer["_write_count"],
            "last": None if self.last is None else self.last.tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`; the caller writes the frames."""
        self.keys = [tuple(key) if isinstance(key, list) else key for key in state["keys"]]
        self.stacked, self.oldest_needed = state["stacked"], 0
        self.last = None if state["last"] is None else torch.tensor(state["last"])
        self.switch_storage(self.make_storage(state["capacity"]), state["cursor"], state["count"])


def reuse_numbers(frame_ids: Tensor, is_known: Tensor, is_shifted: Tensor, last: Tensor | None) -> Tensor:
    """Frame numbers in which repeated frames have the number of their first occurrence.

    Args:
        frame_ids: numbers as if no frame repeated, of observations and next observations,
            ``[envs, time, 2, k]``.
        is_known: whether a row's observation equals the previous row's next observation, ``[envs, time]``.
        is_shifted: whether the next observation is the observation shifted by one frame, ``[envs, time]``.
        last: frame numbers of the observations before the first row, ``[envs, k]``, if there are any.
    """
    frame_ids = frame_ids.clone()
    previous = frame_ids[:, 0, 0] if last is None else last.to(frame_ids.device)
    for step in range(frame_ids.shape[1]):
        ids, next_ids = frame_ids[:, step].unbind(1)
        ids = torch.where(is_known[:, step, None], previous, ids)
        previous = torch.where(
            is_shifted[:, step, None], torch.cat([ids[:, 1:], next_ids[:, -1:]], -1), next_ids
        )
        frame_ids[:, step] = torch.stack([ids, previous], 1)
    return frame_ids


def slots(buffer: ReplayBuffer, row_ids: Tensor) -> Tensor:
    """Storage indices of rows by their numbers in writing order, counted from the first ever written."""
    writer = buffer.writer.state_dict()
    return (row_ids + writer["_cursor"] - writer["_write_count"]) % buffer.storage.max_size


def drop_unread_keys(batch: TensorDictBase, loss: nn.Module) -> TensorDictBase:
    """A batch with advantages, ``[time]`` or ``[envs, time]``, without large entries the loss does not read.

    These are the actor's outputs and, for TorchRL's own losses, the images of next observations.
    """
    rows = batch.exclude(*RECOMPUTED_KEYS)
    if type(loss).__module__.startswith("torchrl."):
        next_rows = rows.get("next")
        image_keys = [key for key, entry in next_rows.items(True, True) if entry.ndim == batch.ndim + 3]
        rows.set("next", next_rows.exclude(*image_keys))
    return rows


def find_frame_dedup(buffer: ReplayBuffer) -> FrameDedup | None:
    """The buffer's frame deduplication; ``None`` if it has none."""
    return next((transform for transform in buffer.transform if isinstance(transform, FrameDedup)), None)
