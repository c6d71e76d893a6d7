"""What a replay memory holds, on its way to the disk and back: each row is written once.

A checkpoint that held a memory of gigabytes would write it anew each time, and the disk would keep it as
often as there are checkpoints. Here a checkpoint's metadata says which rows it needs, and which files have
them. On disk is at no moment more than :data:`BOUND` times what the memory holds, which always is enough for
the newest checkpoint and the one before it. From an older one whose rows are gone the policy can be played.
Pictures that rows have the numbers of lie beside the rows in files of their own, kept in the same way.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from hydrl.run.checkpoint.archive import archives, crc, listed, span, tensor_bytes

BOUND = 2.5
SMALL = 1 << 23  # bytes that are not worth counting
WHOLE = 256  # rows whose pictures are looked at together
WORTH_SAYING = 100_000_000


@dataclass
class Moment:
    """What a buffer held at a moment; it may be written to after that.

    Attributes:
        storage: of the rows, which a memory of pictures may have left since for a larger one.
        first, end: the numbers of the rows, from the oldest to the one after the newest.
        place: where the row of number 0 would be.
        overwritten: rows whose place others have taken since, with the number of the first.
        pictures: of the rows, where they are kept apart: what is kept of them, and what else decides.
    """

    storage: TensorStorage
    first: int
    end: int
    place: int
    overwritten: list[tuple[int, TensorDictBase]] = field(default_factory=list)
    pictures: "tuple[Moment, dict[str, Any]] | None" = None

    def rows(self, begin: int, end: int) -> TensorDictBase:
        """Those of these numbers, as they were."""
        rows = self.storage.get(self.places(begin, end)).cpu().contiguous()
        for first, kept in self.overwritten:
            low, high = max(begin, first), min(end, first + len(kept))
            if low < high:
                rows[low - begin : high - begin] = kept[low - first : high - first].to(rows.device)
        return rows

    def places(self, begin: int, end: int) -> torch.Tensor:
        """Where the rows of these numbers are, or were."""
        return (torch.arange(begin, end) + self.place) % self.storage.max_size


class Overwritten(Transform):
    """Keeps for a moment the rows of a buffer that are about to be overwritten.

    Args:
        buffer: whose last transform it is before rows are written.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.buffer, self.moment = buffer, None

    moment: Moment | None

    def _inv_call(self, rows: TensorDictBase) -> TensorDictBase:
        """What is about to be written, as it is."""
        moment = self.moment
        if moment is not None and moment.storage is self.buffer.storage:
            passed = self.buffer.write_count - moment.storage.max_size
            first, end = max(moment.first, passed), min(moment.end, passed + len(rows))
            if first < end:
                moment.overwritten.append((first, moment.storage.get(moment.places(first, end)).clone()))
        return rows


class Memory:
    """The rows of a buffer on disk.

    Args:
        buffer: of tensors, the oldest row making room for the newest; ``None`` holds nothing.
        run: the run folder.
        named: what the names of its files begin with.

    Raises:
        UserError: if the buffer is filled in another order, or holds anything but tensors.
    """

    def __init__(self, buffer: ReplayBuffer | None, run: Path, named: str = "rows") -> None:
        for part, kind in (("writer", RoundRobinWriter), ("storage", TensorStorage)):
            if buffer is not None and not isinstance(found := getattr(buffer, part), kind):
                name = type(found).__name__
                raise UserError(f"buffer.{part}={name}: what it keeps cannot be saved; use a {kind.__name__}")
        self.buffer, self.run, self.folder, self.named = buffer, run, run / "checkpoints", named
        self.files: dict[str, int] = {}  # of the checkpoint that was saved or loaded last, with their CRCs
        self.pictures = find_frame_dedup(buffer) if buffer is not None else None
        self.frames = Memory(self.pictures.buffer, run, "frames") if self.pictures is not None else None
        self.overwritten: Overwritten | None = None  # once a moment is to be kept

    def moment(self) -> Moment | None:
        """This moment, which :meth:`save` may write later; the one before is not kept up any more."""
        if self.buffer is None:
            return None
        if self.overwritten is None:
            self.overwritten = Overwritten(self.buffer)
            self.buffer.insert_transform(0, self.overwritten)
        end, storage = self.buffer.write_count, self.buffer.storage
        place = int(slots(self.buffer, torch.zeros(1, dtype=torch.long)))
        moment = Moment(storage, end - len(self.buffer), end, place)
        if self.frames is not None and self.pictures is not None:
            pictures = self.frames.moment()
            moment.pictures = (pictures, self.pictures.state()) if pictures is not None else None
        self.overwritten.moment = moment
        return moment

    def save(self, moment: Moment | None = None) -> dict[str, Any]:
        """Writes the rows that are on no disk yet, or all of them where most are new.

        Args:
            moment: whose rows are written; ``None`` is now.

        Returns:
            which rows there are and which files have them, for the metadata of the checkpoint; of pictures
            that are kept apart the same, as ``frames``.

        Raises:
            SaveError: where the disk is full or refuses.
        """
        if (moment := moment or self.moment()) is None:
            return {"rows": [0, 0], "files": {}}
        first, end = moment.first, moment.end
        kept = {name: value for name, value in self.files.items() if span(name)[1] > first}
        begin = span([*kept][-1])[1] if kept else first
        if kept and end - span(next(iter(kept)))[0] > (BOUND - 1) * (end - first):
            kept, begin = {}, first  # all anew, for which the bound leaves room
        if end > begin:
            rows = moment.rows(begin, end).to_dict()
            size = tensor_bytes(rows)
            self.make_room(size, whole=size * (end - first) // (end - begin))
            path = self.folder / f"{self.named}-{begin:012d}-{end:012d}.pt"
            with atomically(path, size) as partial:
                torch.save(rows, partial)
            kept[path.name] = crc(path)
        self.files = kept
        row = moment.storage.get(0).shape if end > first else []  # [time] of one of a sequence
        told = {"rows": [first, end], "row": list(row), "files": kept}
        if self.frames is not None and moment.pictures is not None:
            pictures, state = moment.pictures
            told["frames"] = self.frames.save(pictures) | {"state": state}
        return told

    def make_room(self, size: int, whole: int) -> None:
        """Removes old files that the last checkpoint does without, as far as the bound asks for it.

        Args:
            size: of the file to come, in bytes.
            whole: of all that the memory holds, in bytes.
        """
        files = sorted(self.folder.glob(f"{self.named}-*"), key=lambda file: span(file.name))
        total = size + sum(file.stat().st_size for file in files)
        for file in files:
            if total > max(BOUND * whole, SMALL) and file.name not in self.files:
                total -= file.stat().st_size
                file.unlink()

    def prune(self) -> None:
        """Removes the files that no checkpoint needs any more."""
        needed = {name for archive in archives(self.run) for name in files_of(archive)}
        for file in self.folder.glob(f"{self.named}-*"):
            if file.name not in needed:
                file.unlink()
        if self.frames is not None:
            self.frames.prune()

    def load(self, told: Mapping[str, Any], device: torch.device, folder: Path | None = None) -> None:
        """Fills an empty buffer with the rows of a checkpoint: into their places, past its transforms.

        Args:
            told: what the checkpoint's metadata says.
            device: of the batches, for a storage that takes after them.
            folder: where its files lie, where that is another run's.

        Raises:
            UserError: for pictures that are kept apart, where this run's are not.
        """
        if self.buffer is None:
            return
        if "frames" in told and self.frames is None:
            raise UserError(f"{folder or self.folder} has pictures beside its rows, and here rows show none")
        storage = self.buffer.storage
        whole = self.pictures if "frames" not in told else None  # as older runs have them in their rows
        if self.frames is not None and self.pictures is not None and whole is None:
            self.pictures.load_state(told["frames"]["state"])
            self.frames.load(told["frames"], device, folder)
        for first, rows in read(folder or self.folder, told):
            found = rows.to(device) if storage.device == "auto" else rows
            if whole is not None:
                found = torch.cat([whole.deduplicate(part) for part in found.split(WHOLE)])
            storage.set(slots(self.buffer, torch.arange(first, first + len(rows))), found)
        self.files = {} if folder or whole is not None else dict(told["files"])

    def room(self, env: EnvBase, steps: int = 1) -> str:
        """How much memory and disk it may take, in a line; nothing where that is little.

        Args:
            env: a step of it is about what a step of a row is.
            steps: of a row.
        """
        if self.buffer is None:
            return ""
        whole = steps * row_bytes(env, self.pictures) * self.buffer.storage.max_size
        free = shutil.disk_usage(self.run).free
        if whole < WORTH_SAYING and BOUND * whole < free:
            return ""
        told = f"the buffer grows to about {whole / 1e6:,.0f} MB, on disk to {BOUND} times that"
        return f"{told} while it is saved; {free / 1e6:,.0f} MB are free"


def row_bytes(env: EnvBase, pictures: FrameDedup | None = None) -> float:
    """What a step of one environment takes, which is about what a row of a buffer does.

    Args:
        env: it is asked for what a step is.
        pictures: what keeps those that the row has the numbers of; ``None`` where it has them itself.
    """
    step, envs = env.fake_tensordict(), max(1, env.batch_size.numel())
    whole = tensor_bytes(step.to_dict()) / envs
    if pictures is None:
        return whole
    stacks = sum(step.get(key).nbytes for key in pictures.keys) / envs
    numbers = 8 * pictures.stacked * len(pictures.keys)
    return whole + 2 * (numbers - stacks) + FRAMES_PER_ROW * stacks / pictures.stacked


def require_memory(buffer: ReplayBuffer | None, env: EnvBase, steps: int = 1) -> None:
    """Refuses a buffer that would outgrow this machine's memory, or the disk where it lies on one.

    Of memory its first rows already take all; a disk that is full later kills the process with SIGBUS.

    Args:
        buffer: empty; ``None`` where nothing is kept.
        env: a step of it is about what a step of a row is.
        steps: of a row, which is a sequence that overlaps with others by half where it has several.

    Raises:
        UserError: naming a size that would do.
    """
    storage = buffer.storage if buffer is not None else None
    if not isinstance(storage, LazyTensorStorage):
        return
    if isinstance(storage, LazyMemmapStorage):
        there, what, other = room_on_disk(storage.scratch_dir), "of the disk", ""
    elif torch.device(env.device if storage.device == "auto" else storage.device).type != "cpu":
        return
    else:
        there = psutil.virtual_memory().total + psutil.swap_memory().total
        what, other = "of memory", ", or buffer=memmap, which lies on disk"
    new, row = (steps + 1) // 2, steps * row_bytes(env, find_frame_dedup(buffer))
    if (wanted := row * storage.max_size) > there:
        raise UserError(
            f"buffer.storage.max_size={new * storage.max_size}: it would take {wanted / 1e6:,.0f} MB "
            f"{what}, and there are {there / 1e6:,.0f}; use buffer.storage.max_size="
            f"{new * int(there / 2 / row)}{other}"
        )


def room_on_disk(folder: str | None) -> int:
    """The bytes that a memory may take where it is to lie, with those that an earlier one takes there.

    Args:
        folder: which need not be there yet, and is not made; ``None`` is the system's own place.

    Raises:
        UserError: for one that cannot be made.
    """
    place = Path(folder or tempfile.gettempdir())
    new = [each for each in (place, *place.parents) if not each.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        held = sum(512 * file.stat().st_blocks for file in place.rglob("*.memmap")) if folder else 0
        free = shutil.disk_usage(place).free
        for each in new:
            each.rmdir()
    except OSError as error:
        raise UserError(
            f"buffer.storage.scratch_dir={place} cannot be made: {error.strerror}; give a folder that can "
            "be written to"
        ) from None
    return held + free


def files_of(archive: Path) -> list[str]:
    """The files that have a checkpoint's rows; one whose manifest cannot be read needs none."""
    try:
        return list(listed(Checkpoint.manifest(archive)["metadata"]["memory"]))
    except Exception:  # whatever a damaged file may hold
        return []


def read(folder: Path, told: Mapping[str, Any]) -> Iterator[tuple[int, TensorDict]]:
    """The rows that a checkpoint's metadata tells of, file by file, each with the number of its first.

    Raises:
        UserError: if a file holds anything else.
    """
    for name in told["files"]:
        begin, end = span(name)
        try:
            kept = torch.load(folder / name, weights_only=True, mmap=True)
            rows = TensorDict(kept, batch_size=[end - begin, *told.get("row", [])])
            first = max(begin, told["rows"][0])
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / name} cannot be read: {reason}") from None
        yield first, rows[first - begin :]
