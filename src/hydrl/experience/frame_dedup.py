"""Pictures in a replay memory, each kept once: rows have the numbers of theirs."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorStorage
from torchrl.envs import Transform

SPARE = 1.05  # frames there is room for, to rows: an episode leaves one more than it has steps
AT_ONCE = 4_096  # frames that are copied together
# What an actor made of pictures: 2 kB a step, 4 with distributions of returns, and every loss makes it anew.
MADE_ANEW = ("features", "action_value")


class Frames(Transform):
    """The pictures that the rows of a replay memory show, each kept once and put back into what is drawn.

    A task that shows stacks of four frames shows each of them four times, and four times more as what comes
    next. Here a row has the numbers of its frames, ``[k]``, in the place of a stack ``[k * C, H, W]``.
    Nothing is assumed of episodes: numbers are taken over where all bytes are equal, and nowhere else.

    Frames are numbered as they are written. They make room for new ones once no row has their numbers any
    more; where rows have them all, the memory of frames grows.

    Args:
        rows: where the rows are kept.
        keys: entries that are pictures, all of as many frames.
        stacked: how many, ``k``; one where nothing is stacked.
    """

    def __init__(self, rows: TensorStorage, keys: Sequence[NestedKey], stacked: int) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.rows, self.keys, self.stacked = rows, list(keys), stacked
        self.buffer = ReplayBuffer(storage=self.room(int(SPARE * rows.max_size)))
        self.last: Tensor | None = None  # numbers of what each environment showed last, [envs, k]
        self.needed = 0  # rows have no lower numbers; found anew where that matters

    def numbered(self, batch: TensorDictBase) -> TensorDictBase:
        """A fresh batch, with numbers in the place of its pictures; frames that are new are stored.

        What an actor made of the pictures is left out.

        Args:
            batch: ``[time]``, ``[envs, time]`` or one dimension more in front.
        """
        now, after = (
            each.select(*self.keys).reshape(-1, batch.shape[-1]) for each in (batch, batch.get("next"))
        )
        last = self.last if self.last is not None and len(self.last) == len(now) else None
        moved = self.alike(after, now, by=1)
        known = torch.zeros_like(moved)
        known[:, 1:] = self.alike(now[:, 1:], after[:, :-1])
        if last is not None:
            known[:, 0] = self.alike(now[:, 0], self.stacks(last).to(known.device))

        # Of a stack that was seen before no frame is new, of one that moved on the last, of another all.
        whole = torch.stack([~known, ~moved], -1)
        still = torch.zeros_like(whole)
        for part, each in enumerate((now, after)):
            still[..., part][whole[..., part]] = self.still(each[whole[..., part]])
        new = (whole & ~still).unsqueeze(-1).repeat(1, 1, 1, self.stacked)
        new[..., -1] = torch.stack([~known, torch.ones_like(moved)], -1)
        numbers = self.buffer.write_count - 1 + new.flatten().cumsum(0).view_as(new)
        numbers = torch.where(still.unsqueeze(-1), numbers[..., -1:], numbers)
        numbers = taken_over(numbers, known, moved, last)
        self.last = numbers[:, -1, 1]

        chosen, found = new.flatten().nonzero()[:, 0], {}
        for key in self.keys:
            both = torch.stack([now.get(key), after.get(key)], 2)
            found[key] = self.apart(both).flatten(0, 3).index_select(0, chosen)
        self.store(found)
        rows = batch.copy().exclude(*MADE_ANEW)
        for part, each in enumerate((rows, rows.get("next"))):
            each.update(dict.fromkeys(self.keys, numbers[..., part, :].reshape(*batch.shape, -1)))
        return rows

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Rows as they are drawn, ``[rows]``, with their pictures; those that have them stay as they are."""
        key = self.keys[0]
        if rows.get(key).dtype == torch.uint8:
            return rows
        numbers = torch.stack([rows.get(key), rows.get("next").get(key)])
        now, after = self.stacks(numbers).unbind(0)
        rows = rows.copy().update(now)
        rows.get("next").update(after)
        return rows

    def stacks(self, numbers: Tensor) -> TensorDict:
        """The pictures, ``[..., k * C, H, W]``, of the numbers ``[..., k]`` of their frames."""
        shape, places = numbers.shape, self.slots(numbers.flatten())
        kept, found = self.buffer.storage.get(slice(None)), {}
        for key in self.keys:
            there = kept.get(key)
            taken = there.index_select(0, places.to(there.device))  # there[places] takes twenty times as long
            found[key] = taken.unflatten(0, shape).flatten(len(shape) - 1, len(shape))
        return TensorDict(found, shape[:-1])

    def apart(self, stacks: Tensor) -> Tensor:
        """``[..., k * C, H, W]`` as ``[..., k, C, H, W]``."""
        return stacks.unflatten(-3, (self.stacked, -1))

    def alike(self, some: TensorDictBase, others: TensorDictBase, by: int = 0) -> Tensor:
        """Where all pictures are the same, of ``some`` so many frames further than of ``others``."""
        found = []
        for key in self.keys:
            one, other = self.apart(some.get(key)), self.apart(others.get(key))
            one, other = one[..., : self.stacked - by, :, :, :], other[..., by:, :, :, :]
            found.append((one ^ other).flatten(some.ndim).any(-1) == 0)  # a sixth of the time that == takes
        return torch.stack(found).all(0)

    def still(self, stacks: TensorDictBase) -> Tensor:
        """Where every frame of a stack is the same, ``[rows]``."""
        apart = [self.apart(stacks.get(key)) for key in self.keys]
        return torch.stack([(each[:, 1:] ^ each[:, :1]).flatten(1).any(-1) == 0 for each in apart]).all(0)

    def store(self, frames: Mapping[NestedKey, Tensor]) -> None:
        """Writes new frames, ``[frames, C, H, W]``, over none that is still needed."""
        first = frames[self.keys[0]]
        end, room = self.buffer.write_count + len(first), self.buffer.storage.max_size
        if end - self.needed > room and len(self.rows):
            # The oldest that a row has. What came later, be it in rows that still wait for those that follow,
            # has no lower one: of every environment a memory holds earlier steps.
            self.needed = int(self.rows.get(slice(None)).get(self.keys[0]).min())
        if end - self.needed > room:
            self.grow(11 * (end - self.needed) // 10)
        self.buffer.extend(TensorDict(dict(frames), [len(first)], device=first.device))

    def grow(self, capacity: int) -> None:
        """Goes on in a larger memory, with those frames that are needed."""
        old, end = self.buffer.storage, self.buffer.write_count
        new = self.room(capacity)
        for numbers in torch.arange(self.needed, end).split(AT_ONCE) if end else ():
            new.set(numbers - self.needed, old.get(self.slots(numbers)))
        self.go_on_in(new, end - self.needed, end)
        if isinstance(old, LazyMemmapStorage) and old.scratch_dir:
            shutil.rmtree(old.scratch_dir, ignore_errors=True)

    def go_on_in(self, storage: TensorStorage, cursor: int, count: int) -> None:
        """Writes on at the place ``cursor`` of another storage, where the frame of number ``count`` goes."""
        self.buffer.set_storage(storage)
        self.buffer.writer.register_storage(storage)
        self.buffer.writer.load_state_dict({"_cursor": cursor % storage.max_size, "_write_count": count})

    def room(self, capacity: int) -> TensorStorage:
        """An empty storage of frames, where the rows are."""
        if not isinstance(self.rows, LazyMemmapStorage):
            return LazyTensorStorage(capacity, device=self.rows.device)
        folder = self.rows.scratch_dir and Path(self.rows.scratch_dir, f"frames-{capacity}")
        return LazyMemmapStorage(capacity, scratch_dir=folder, existsok=True)

    def slots(self, numbers: Tensor) -> Tensor:
        """Where the frames of these numbers are."""
        return slots(self.buffer, numbers)

    def state(self) -> dict[str, Any]:
        """All but the frames themselves, as numbers and names."""
        writer = self.buffer.writer.state_dict()
        return {
            "keys": self.keys,
            "stacked": self.stacked,
            "capacity": self.buffer.storage.max_size,
            "cursor": writer["_cursor"],
            "count": writer["_write_count"],
            "last": None if self.last is None else self.last.tolist(),
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`; the frames are still to be written into their places."""
        self.keys = [tuple(key) if isinstance(key, list) else key for key in state["keys"]]
        self.stacked, self.needed = state["stacked"], 0
        self.last = None if state["last"] is None else torch.tensor(state["last"])
        self.go_on_in(self.room(state["capacity"]), state["cursor"], state["count"])


def taken_over(numbers: Tensor, known: Tensor, moved: Tensor, last: Tensor | None) -> Tensor:
    """Numbers of stacks, of which those that were seen before have the numbers they had.

    Args:
        numbers: as if no frame came twice, of each row's stack and of the one after, ``[envs, time, 2, k]``.
        known: where a row's stack is the one after the row before, ``[envs, time]``.
        moved: where the one after is the row's own, a frame further.
        last: numbers of the stacks before the first row's, ``[envs, k]``; ``None`` where there are none.
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
    """Where a buffer keeps what was written as these numbers, counted from its first."""
    writer = buffer.writer.state_dict()
    return (numbers + writer["_cursor"] - writer["_write_count"]) % buffer.storage.max_size


def still_read(batch: TensorDictBase, loss: nn.Module) -> TensorDictBase:
    """A batch, ``[time]`` or ``[envs, time]``, whose advantages are known, without what makes up most of it.

    That is what an actor made of pictures and, where the loss is TorchRL's own, the pictures that come next.
    """
    rows = batch.exclude(*MADE_ANEW)
    if type(loss).__module__.startswith("torchrl."):
        after = rows.get("next")
        seen = [key for key, each in after.items(True, True) if each.ndim == batch.ndim + 3]
        rows.set("next", after.exclude(*seen))
    return rows


def frames_of(buffer: ReplayBuffer) -> Frames | None:
    """What keeps the pictures of a buffer's rows; ``None`` where they have none, or have them whole."""
    return next((each for each in buffer.transform if isinstance(each, Frames)), None)
