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
        stacked: stack size ``k``; 1 without stacking.
    """

    def __init__(self, rows: TensorStorage, keys: Sequence[NestedKey], stacked: int) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.rows, self.keys, self.stacked = rows, list(keys), stacked
        self.buffer = ReplayBuffer(storage=self.make_storage(int(FRAMES_PER_ROW * rows.max_size)))
        self.last: Tensor | None = None  # frame numbers of each environment's last observation, [envs, k]
        self.oldest_needed = 0  # rows have no lower frame number; updated when space is short

    def deduplicate(self, batch: TensorDictBase) -> TensorDictBase:
        """Stores a fresh batch's new frames; returns the batch with frame numbers in place of images.

        Outputs of the actor that the loss recomputes are dropped.

        Args:
            batch: ``[time]``, ``[envs, time]`` or one dimension more in front.
        """
        now, after = (
            data.select(*self.keys).reshape(-1, batch.shape[-1]) for data in (batch, batch.get("next"))
        )
        last = self.last if self.last is not None and len(self.last) == len(now) else None
        moved = self.equal_stacks(after, now, by=1)
        known = torch.zeros_like(moved)
        known[:, 1:] = self.equal_stacks(now[:, 1:], after[:, :-1])
        if last is not None:
            known[:, 0] = self.equal_stacks(now[:, 0], self.read_stacks(last).to(known.device))

        # New frames: none of a known stack, the last of a stack that moved on by one, all of any other.
        whole = torch.stack([~known, ~moved], -1)
        still = torch.zeros_like(whole)
        for part, observations in enumerate((now, after)):
            still[..., part][whole[..., part]] = self.is_constant(observations[whole[..., part]])
        new = (whole & ~still).unsqueeze(-1).repeat(1, 1, 1, self.stacked)
        new[..., -1] = torch.stack([~known, torch.ones_like(moved)], -1)
        numbers = self.buffer.write_count - 1 + new.flatten().cumsum(0).view_as(new)
        numbers = torch.where(still.unsqueeze(-1), numbers[..., -1:], numbers)
        numbers = reuse_numbers(numbers, known, moved, last)
        self.last = numbers[:, -1, 1]

        chosen, new_frames = new.flatten().nonzero()[:, 0], {}
        for key in self.keys:
            both = torch.stack([now.get(key), after.get(key)], 2)
            new_frames[key] = self.split_stacks(both).flatten(0, 3).index_select(0, chosen)
        self.store(new_frames)
        rows = batch.copy().exclude(*RECOMPUTED_KEYS)
        for part, target in enumerate((rows, rows.get("next"))):
            target.update(dict.fromkeys(self.keys, numbers[..., part, :].reshape(*batch.shape, -1)))
        return rows

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Sampled rows, ``[rows]``, with images in place of frame numbers."""
        key = self.keys[0]
        if rows.get(key).dtype == torch.uint8:
            return rows
        numbers = torch.stack([rows.get(key), rows.get("next").get(key)])
        now, after = self.read_stacks(numbers).unbind(0)
        rows = rows.copy().update(now)
        rows.get("next").update(after)
        return rows

    def read_stacks(self, numbers: Tensor) -> TensorDict:
        """Images ``[..., k * C, H, W]`` of frame numbers ``[..., k]``."""
        shape, places = numbers.shape, self.slots(numbers.flatten())
        stored, images = self.buffer.storage.get(slice(None)), {}
        for key in self.keys:
            column = stored.get(key)
            frames = column.index_select(0, places.to(column.device))  # 20 times faster than column[places]
            images[key] = frames.unflatten(0, shape).flatten(len(shape) - 1, len(shape))
        return TensorDict(images, shape[:-1])

    def split_stacks(self, stacks: Tensor) -> Tensor:
        """``[..., k * C, H, W]`` as ``[..., k, C, H, W]``."""
        return stacks.unflatten(-3, (self.stacked, -1))

    def equal_stacks(self, some: TensorDictBase, others: TensorDictBase, by: int = 0) -> Tensor:
        """Whether stacks of ``some``, shifted by ``by`` frames, equal those of ``others``."""
        equal = []
        for key in self.keys:
            one, other = self.split_stacks(some.get(key)), self.split_stacks(others.get(key))
            one, other = one[..., : self.stacked - by, :, :, :], other[..., by:, :, :, :]
            equal.append((one ^ other).flatten(some.ndim).any(-1) == 0)  # six times faster than ==
        return torch.stack(equal).all(0)

    def is_constant(self, stacks: TensorDictBase) -> Tensor:
        """Whether all frames of a stack are the same, ``[rows]``."""
        split = [self.split_stacks(stacks.get(key)) for key in self.keys]
        equal = [(frames[:, 1:] ^ frames[:, :1]).flatten(1).any(-1) == 0 for frames in split]
        return torch.stack(equal).all(0)

    def store(self, frames: Mapping[NestedKey, Tensor]) -> None:
        """Writes new frames, ``[frames, C, H, W]``, without overwriting any that a row refers to."""
        first = frames[self.keys[0]]
        end, room = self.buffer.write_count + len(first), self.buffer.storage.max_size
        if end - self.oldest_needed > room and len(self.rows):
            # The oldest that a row refers to. Rows not yet stored (n-step) refer to later ones only, for the
            # buffer holds earlier steps of every environment.
            self.oldest_needed = int(self.rows.get(slice(None)).get(self.keys[0]).min())
        if end - self.oldest_needed > room:
            self.grow(11 * (end - self.oldest_needed) // 10)
        self.buffer.extend(TensorDict(dict(frames), [len(first)], device=first.device))

    def grow(self, capacity: int) -> None:
        """Moves the frames still needed to a larger storage."""
        old, end = self.buffer.storage, self.buffer.write_count
        new = self.make_storage(capacity)
        for numbers in torch.arange(self.oldest_needed, end).split(COPY_CHUNK) if end else ():
            new.set(numbers - self.oldest_needed, old.get(self.slots(numbers)))
        self.switch_storage(new, end - self.oldest_needed, end)
        if isinstance(old, LazyMemmapStorage) and old.scratch_dir:
            shutil.rmtree(old.scratch_dir, ignore_errors=True)

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

    def slots(self, numbers: Tensor) -> Tensor:
        """Storage indices of frame numbers."""
        return slots(self.buffer, numbers)

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


def reuse_numbers(numbers: Tensor, known: Tensor, moved: Tensor, last: Tensor | None) -> Tensor:
    """Frame numbers in which repeated frames have the number of their first occurrence.

    Args:
        numbers: numbers as if no frame repeated, of observations and next observations,
            ``[envs, time, 2, k]``.
        known: whether a row's observation equals the previous row's next observation, ``[envs, time]``.
        moved: whether the next observation is the observation moved on by one frame, ``[envs, time]``.
        last: frame numbers of the observations before the first row, ``[envs, k]``, if there are any.
    """
    numbers = numbers.clone()
    before = numbers[:, 0, 0] if last is None else last.to(numbers.device)
    for t in range(numbers.shape[1]):
        own, after = numbers[:, t].unbind(1)
        own = torch.where(known[:, t, None], before, own)
        before = torch.where(moved[:, t, None], torch.cat([own[:, 1:], after[:, -1:]], -1), after)
        numbers[:, t] = torch.stack([own, before], 1)
    return numbers


def slots(buffer: ReplayBuffer, numbers: Tensor) -> Tensor:
    """Storage indices of rows by their numbers in writing order, counted from the first ever written."""
    writer = buffer.writer.state_dict()
    return (numbers + writer["_cursor"] - writer["_write_count"]) % buffer.storage.max_size


def drop_unread_keys(batch: TensorDictBase, loss: nn.Module) -> TensorDictBase:
    """A batch with advantages, ``[time]`` or ``[envs, time]``, without large entries the loss does not read.

    These are the actor's outputs and, for TorchRL's own losses, the images of next observations.
    """
    rows = batch.exclude(*RECOMPUTED_KEYS)
    if type(loss).__module__.startswith("torchrl."):
        after = rows.get("next")
        image_keys = [key for key, entry in after.items(True, True) if entry.ndim == batch.ndim + 3]
        rows.set("next", after.exclude(*image_keys))
    return rows


def find_frame_dedup(buffer: ReplayBuffer) -> FrameDedup | None:
    """The buffer's frame deduplication; ``None`` if it has none."""
    return next((transform for transform in buffer.transform if isinstance(transform, FrameDedup)), None)
