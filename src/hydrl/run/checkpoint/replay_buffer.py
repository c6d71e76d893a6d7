"""The replay buffer on disk: each row is written once, and checkpoints share the files.

A checkpoint that held gigabytes of rows would write them anew each time, and the disk would hold them once
per checkpoint. Here a checkpoint's metadata says which rows it needs, and which files have them. The files
never take more than :data:`BOUND` times the size of the buffer, which is always enough for the newest
checkpoint and the one before it. An older one whose rows are gone can still be evaluated. Images that rows
refer to by number are in files of their own, handled in the same way.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import psutil
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.checkpoint import Checkpoint
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, RoundRobinWriter, TensorStorage
from torchrl.envs import EnvBase, Transform

from hydrl.errors import UserError
from hydrl.experience.frame_dedup import FRAMES_PER_ROW, FrameDedup, find_frame_dedup, slots
from hydrl.run.atomic_files import atomically
from hydrl.run.checkpoint.archive import archives, crc, listed_files, span, tensor_bytes

BOUND = 2.5
SMALL = 1 << 23  # bytes that are not worth counting
CHUNK = 256  # rows whose images are numbered together
WORTH_SAYING = 100_000_000  # bytes


@dataclass
class BufferSnapshot:
    """The rows that a buffer held at a moment, which may be overwritten later.

    Attributes:
        storage: of the rows, which a buffer of images may have replaced by a larger one since.
        first, end: the numbers of the rows, from the oldest to the one after the newest.
        offset: where the row of number 0 would be.
        overwritten: rows that others have replaced since, with the number of the first.
        images: of the rows, where they are stored apart: their snapshot, and their other state.
    """

    storage: TensorStorage
    first: int
    end: int
    offset: int
    overwritten: list[tuple[int, TensorDictBase]] = field(default_factory=list)
    images: "tuple[BufferSnapshot, dict[str, Any]] | None" = None

    def rows(self, begin: int, end: int) -> TensorDictBase:
        """The rows of these numbers, as they were."""
        rows = self.storage.get(self.slots(begin, end)).cpu().contiguous()
        for first, old in self.overwritten:
            low, high = max(begin, first), min(end, first + len(old))
            if low < high:
                rows[low - begin : high - begin] = old[low - first : high - first].to(rows.device)
        return rows

    def slots(self, begin: int, end: int) -> torch.Tensor:
        """Where the rows of these numbers are, or were, in the storage."""
        return (torch.arange(begin, end) + self.offset) % self.storage.max_size


class OverwrittenRows(Transform):
    """Copies the rows of a snapshot that are about to be overwritten.

    Args:
        buffer: whose last transform it is before rows are written.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.buffer, self.snapshot = buffer, None

    snapshot: BufferSnapshot | None

    def _inv_call(self, rows: TensorDictBase) -> TensorDictBase:
        """Passes on what is about to be written."""
        snapshot = self.snapshot
        if snapshot is not None and snapshot.storage is self.buffer.storage:
            overwritten = self.buffer.write_count - snapshot.storage.max_size
            first, end = max(snapshot.first, overwritten), min(snapshot.end, overwritten + len(rows))
            if first < end:
                old = snapshot.storage.get(snapshot.slots(first, end)).clone()
                snapshot.overwritten.append((first, old))
        return rows


class BufferFiles:
    """The files with the rows of a replay buffer.

    Args:
        buffer: of tensors, in which the newest row replaces the oldest; ``None`` holds nothing.
        run: the run folder.
        prefix: what the names of the files begin with.

    Raises:
        UserError: if the buffer is filled in another order, or holds anything but tensors.
    """

    def __init__(self, buffer: ReplayBuffer | None, run: Path, prefix: str = "rows") -> None:
        for name, kind in (("writer", RoundRobinWriter), ("storage", TensorStorage)):
            if buffer is not None and not isinstance(component := getattr(buffer, name), kind):
                has = type(component).__name__
                raise UserError(f"buffer.{name}={has}: checkpoints cannot hold it. Use a {kind.__name__}.")
        self.buffer, self.run, self.folder, self.prefix = buffer, run, run / "checkpoints", prefix
        self.files: dict[str, int] = {}  # of the checkpoint that was saved or loaded last, with their CRCs
        self.images = find_frame_dedup(buffer) if buffer is not None else None
        self.image_files = BufferFiles(self.images.buffer, run, "frames") if self.images is not None else None
        self.overwritten: OverwrittenRows | None = None  # once there is a snapshot

    def snapshot(self) -> BufferSnapshot | None:
        """A snapshot of this moment, which :meth:`save` may write later; the one before becomes invalid."""
        if self.buffer is None:
            return None
        if self.overwritten is None:
            self.overwritten = OverwrittenRows(self.buffer)
            self.buffer.insert_transform(0, self.overwritten)
        end, storage = self.buffer.write_count, self.buffer.storage
        offset = int(slots(self.buffer, torch.zeros(1, dtype=torch.long)))
        snapshot = BufferSnapshot(storage, end - len(self.buffer), end, offset)
        if self.image_files is not None and self.images is not None:
            images = self.image_files.snapshot()
            snapshot.images = (images, self.images.state()) if images is not None else None
        self.overwritten.snapshot = snapshot
        return snapshot

    def save(self, snapshot: BufferSnapshot | None = None) -> dict[str, Any]:
        """Writes the rows that are not yet on disk, or all of them where most are new.

        Args:
            snapshot: whose rows are written; ``None`` is now.

        Returns:
            Which rows there are and which files have them, for the metadata of the checkpoint; the same of
            images that are stored apart, as ``frames``.

        Raises:
            SaveError: where the disk is full or refuses.
        """
        if (snapshot := snapshot or self.snapshot()) is None:
            return {"rows": [0, 0], "files": {}}
        first, end = snapshot.first, snapshot.end
        files = {name: value for name, value in self.files.items() if span(name)[1] > first}
        begin = span([*files][-1])[1] if files else first
        if files and end - span(next(iter(files)))[0] > (BOUND - 1) * (end - first):
            files, begin = {}, first  # all anew, for which the bound leaves room
        if end > begin:
            rows = snapshot.rows(begin, end).to_dict()
            size = tensor_bytes(rows)
            self.make_room(size, whole=size * (end - first) // (end - begin))
            path = self.folder / f"{self.prefix}-{begin:012d}-{end:012d}.pt"
            with atomically(path, size) as partial:
                torch.save(rows, partial)
            files[path.name] = crc(path)
        self.files = files
        row = snapshot.storage.get(0).shape if end > first else []  # [time] where a row is a sequence
        metadata = {"rows": [first, end], "row": list(row), "files": files}
        if self.image_files is not None and snapshot.images is not None:
            images, state = snapshot.images
            metadata["frames"] = self.image_files.save(images) | {"state": state}
        return metadata

    def make_room(self, size: int, whole: int) -> None:
        """Removes old files that the last checkpoint does not need, until the bound holds.

        Args:
            size: of the next file, in bytes.
            whole: of all that the buffer holds, in bytes.
        """
        files = sorted(self.folder.glob(f"{self.prefix}-*"), key=lambda file: span(file.name))
        total = size + sum(file.stat().st_size for file in files)
        for file in files:
            if total > max(BOUND * whole, SMALL) and file.name not in self.files:
                total -= file.stat().st_size
                file.unlink()

    def prune(self) -> None:
        """Removes the files that no checkpoint needs."""
        needed = {name for archive in archives(self.run) for name in files_of(archive)}
        for file in self.folder.glob(f"{self.prefix}-*"):
            if file.name not in needed:
                file.unlink()
        if self.image_files is not None:
            self.image_files.prune()

    def load(self, metadata: Mapping[str, Any], device: torch.device, folder: Path | None = None) -> None:
        """Fills an empty buffer with the rows of a checkpoint: into their slots, without its transforms.

        Args:
            metadata: what :meth:`save` returned.
            device: of the batches, for a storage on their device.
            folder: with the files, if that is another run's.

        Raises:
            UserError: for images that are stored apart, where this run's are not.
        """
        if self.buffer is None:
            return
        if "frames" in metadata and self.image_files is None:
            raise UserError(f"{folder or self.folder}: has rows with images, and this run's rows have none")
        storage = self.buffer.storage
        in_rows = self.images if "frames" not in metadata else None  # as in rows of older runs
        if self.image_files is not None and self.images is not None and in_rows is None:
            self.images.load_state(metadata["frames"]["state"])
            self.image_files.load(metadata["frames"], device, folder)
        for first, rows in read(folder or self.folder, metadata):
            content = rows.to(device) if storage.device == "auto" else rows
            if in_rows is not None:
                content = torch.cat([in_rows.deduplicate(chunk) for chunk in content.split(CHUNK)])
            storage.set(slots(self.buffer, torch.arange(first, first + len(rows))), content)
        self.files = {} if folder or in_rows is not None else dict(metadata["files"])


def row_bytes(env: EnvBase, images: FrameDedup | None = None) -> float:
    """Bytes of one step of one environment, which is about what a row of a buffer takes.

    Args:
        env: its specs say what a step is.
        images: what stores those that the row has the numbers of; ``None`` where the row has them itself.
    """
    step, envs = env.fake_tensordict(), max(1, env.batch_size.numel())
    whole = tensor_bytes(step.to_dict()) / envs
    if images is None:
        return whole
    stacks = sum(step.get(key).nbytes for key in images.keys) / envs
    indices = 8 * images.stacked * len(images.keys)
    return whole + 2 * (indices - stacks) + FRAMES_PER_ROW * stacks / images.stacked


def check_size(buffer: ReplayBuffer | None, env: EnvBase, steps: int, run: Path) -> list[str]:
    """Checks that a full buffer fits this machine; returns a line on its size, none where that is little.

    Memory is allocated with the first rows; a disk that is full later kills the process with SIGBUS.

    Args:
        buffer: empty; ``None`` where nothing is kept.
        env: one step of it takes about as much as one step of a row.
        steps: of a row; with several, rows are sequences that overlap by half.
        run: the run folder, which need not exist yet.

    Raises:
        UserError: naming a size that fits.
    """
    if buffer is None:
        return []
    storage, row = buffer.storage, steps * row_bytes(env, find_frame_dedup(buffer))
    total, available = row * storage.max_size, inf
    if isinstance(storage, LazyMemmapStorage):
        available, where, other = room_on_disk(storage.scratch_dir), "disk", ""
    elif isinstance(storage, LazyTensorStorage) and storage_device(storage, env).type == "cpu":
        available = psutil.virtual_memory().total + psutil.swap_memory().total
        where, other = "memory", ", or buffer=memmap, which is on disk"
    else:
        where = other = ""
    if total > available:
        new = (steps + 1) // 2  # frames of a row that no other has
        raise UserError(
            f"buffer.storage.max_size={new * storage.max_size}: takes {total / 1e6:,.0f} MB of {where}, and "
            f"there are {available / 1e6:,.0f}. Use buffer.storage.max_size="
            f"{new * int(available / 2 / row)}{other}."
        )
    free = shutil.disk_usage(next(path for path in (run, *run.absolute().parents) if path.exists())).free
    if total < WORTH_SAYING and BOUND * total < free:
        return []
    size = f"{total / 1e6:,.0f} MB of memory and up to {BOUND} times that on disk"
    return [f"the full replay buffer takes about {size}, where {free / 1e6:,.0f} MB are free"]


def storage_device(storage: LazyTensorStorage, env: EnvBase) -> torch.device:
    """Where a storage keeps its rows."""
    return torch.device(env.device if storage.device == "auto" else storage.device)


def room_on_disk(folder: str | None) -> int:
    """The bytes that a buffer on disk may take, with those that an earlier one takes in its folder.

    Args:
        folder: which need not exist yet, and is not made; ``None`` is the system's own place.

    Raises:
        UserError: for one that cannot be made.
    """
    place = Path(folder or tempfile.gettempdir())
    new = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        used = sum(512 * file.stat().st_blocks for file in place.rglob("*.memmap")) if folder else 0
        free = shutil.disk_usage(place).free
        for path in new:
            path.rmdir()
    except OSError as error:
        raise UserError(
            f"buffer.storage.scratch_dir={place}: cannot be made: {error.strerror}. Give a folder that can "
            "be written to."
        ) from None
    return used + free


def files_of(archive: Path) -> list[str]:
    """The files with a checkpoint's rows; none of one whose manifest cannot be read."""
    try:
        return list(listed_files(Checkpoint.manifest(archive)["metadata"]["memory"]))
    except Exception:  # whatever a damaged file may hold
        return []


def read(folder: Path, metadata: Mapping[str, Any]) -> Iterator[tuple[int, TensorDict]]:
    """Reads the rows that a checkpoint's metadata lists, file by file, each with the number of its first row.

    Raises:
        UserError: if a file holds anything else.
    """
    for name in metadata["files"]:
        begin, end = span(name)
        try:
            content = torch.load(folder / name, weights_only=True, mmap=True)
            rows = TensorDict(content, batch_size=[end - begin, *metadata.get("row", [])])
            first = max(begin, metadata["rows"][0])
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / name} cannot be read: {reason}") from None
        yield first, rows[first - begin :]
