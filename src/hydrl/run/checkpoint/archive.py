"""Checkpoint files: written atomically, verified before use, and read without running code.

``checkpoints/checkpoint-000000032768.torchrl`` is an archive of TorchRL's
:class:`~torchrl.checkpoint.Checkpoint` after 32,768 frames. The rows of the replay buffer are in files beside
it that several checkpoints share: ``rows-FIRST-END.pt`` has the rows from number FIRST up to before END,
``frames-FIRST-END.pt`` their images, see :mod:`hydrl.run.checkpoint.replay_buffer`. Every file is checked
against its CRC, and holds tensors and plain containers, no pickled objects.
"""

import io
import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

from hydrl.errors import RunError, UserError, print_lines
from hydrl.metric_names import RETURN_MEAN
from hydrl.run.atomic_files import atomically
from hydrl.run.run_folder import summary

NAME = re.compile(r"checkpoint-\d{12,}\.torchrl")
ROWS = re.compile(r"(?:rows|frames)-(\d{12,})-(\d{12,})\.pt")
Metadata = Mapping[str, Any]
# Types of the metadata's entries; older checkpoints lack some.
KINDS: dict[str, tuple[type, ...]] = {
    "settings": (Mapping,),
    "memory": (Mapping,),
    "logger": (Mapping, str, NoneType),
    "restarts": (str, NoneType),
    RETURN_MEAN: (int, float),
}


def archives(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first; :func:`verify` checks whether one is whole."""
    files = [file for file in (run / "checkpoints").glob("checkpoint-*") if NAME.fullmatch(file.name)]
    return sorted(files, key=frames_of, reverse=True)


def frames_of(archive: Path) -> int:
    """The frames that a run had trained when it wrote this checkpoint."""
    return int(archive.stem.removeprefix("checkpoint-"))


def archive_of(run: Path, frames: int) -> Path:
    """The path of the checkpoint after ``frames``, which need not exist."""
    return run / "checkpoints" / f"checkpoint-{frames:012d}.torchrl"


def span(name: str) -> tuple[int, int]:
    """The numbers of the replay-buffer rows in a file: the first, and the one after the last."""
    match = ROWS.fullmatch(name)
    if not match:
        raise ValueError(f"{name} is no file of rows")
    return int(match[1]), int(match[2])


def verify(archive: Path, *, with_rows: bool = False) -> Metadata:
    """Reads every byte of a checkpoint, ``with_rows`` of its replay buffer too, and returns its metadata.

    Raises:
        UserError: if it is cut short, changed, or holds more or less than it lists.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            manifest = json.loads(file.read("manifest.json"))
            members = {"manifest.json", *map(state_file, manifest["components"].values())}
            is_whole = set(file.namelist()) == members and file.testzip() is None
        metadata = dict(manifest["metadata"])
        if not is_whole or metadata["frames"] != frames_of(archive):
            raise ValueError("it is not as it was written")
        if wrong := [key for key in KINDS.keys() & metadata if not isinstance(metadata[key], KINDS[key])]:
            raise ValueError(f"its {wrong[0]} is of another type, {type(metadata[wrong[0]]).__name__}")
        if with_rows:
            verify_rows(archive, metadata["memory"])
    except UserError:
        raise
    except Exception as error:  # whatever a file that was damaged, or made by somebody else, may hold
        raise UserError(f"{archive} is damaged: {' '.join(str(error).split())[:100]}") from None
    return metadata


@contextmanager
def report_damage(file: Path) -> Iterator[None]:
    """Turns what a damaged file causes in the block into one line.

    Raises:
        UserError: in place of the error.
    """
    try:
        yield
    except (UserError, RunError):
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{file} is not as hydrl writes it: {reason}") from error


def state_file(component: Metadata) -> str:
    """The member of an archive with the state of a component of the manifest."""
    return f"{component['path']}/state.pt"


def verify_rows(archive: Path, rows: Metadata) -> None:
    """Reads every byte of the files with the replay-buffer rows of a checkpoint.

    Args:
        archive: the checkpoint.
        rows: ``memory`` of its metadata: the ``files`` with the rows, with their CRC-32.

    Raises:
        UserError: if they are not all there, or one is damaged.
    """
    for name, value in listed_files(rows).items():
        file = archive.with_name(name)
        if not file.is_file():
            raise UserError(
                f"{archive}: rows of its replay buffer are gone, as only newer checkpoints keep theirs. Its "
                "policy can be evaluated, but the run cannot be resumed from it."
            )
        if crc(file) != value:
            raise UserError(f"{file} is damaged")


def listed_files(rows: Metadata) -> dict[str, int]:
    """The files of a checkpoint's replay-buffer rows and of their images, with their CRC-32."""
    return {**rows["files"], **rows.get("frames", {}).get("files", {})}


def crc(file: Path) -> int:
    """The CRC-32 of a file."""
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def readable(files: Sequence[Path], *, with_rows: bool = False) -> Iterator[tuple[Path, Metadata]]:
    """The checkpoints that are whole, with their metadata; prints what is wrong with the others, once."""
    printed = set()
    for archive in files:
        try:
            yield archive, verify(archive, with_rows=with_rows)
        except UserError as error:
            if (reason := str(error)) not in printed:  # checkpoints share files of rows
                skipped = "it" if str(archive) in reason else "the checkpoints that need it"
                print_lines(f"warning: {reason}; skipping {skipped}")
            printed.add(reason)


def find(run: Path, which: str, *, or_last: bool = False) -> Path:
    """Finds and verifies the checkpoint that ``best``, ``last`` or a number of frames names.

    Args:
        run: its folder.
        which: of them; ``best`` has the highest mean return, the final evaluation included.
        or_last: takes the last with a warning, where the run was never evaluated and so has no best one.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    by_frames = {str(frames_of(file)): file for file in archives(run)}
    if which in by_frames:
        verify(by_frames[which])
        return by_frames[which]
    if which not in ("best", "last"):
        options = ", ".join(["best", "last", *reversed(by_frames)])
        raise UserError(f"checkpoint={which}: no such checkpoint. Use one of {options}.")
    whole = dict(readable(list(by_frames.values())))
    if not whole:
        why = "all checkpoints are damaged." if by_frames else "no checkpoint; was it stopped too early?"
        raise UserError(f"run={run}: {why}")
    if which == "last":
        return max(whole)
    scored = [(data[RETURN_MEAN], archive) for archive, data in whole.items() if RETURN_MEAN in data]
    ended = summary(run)
    final = ended.get(RETURN_MEAN) if ended.get("status") == "finished" else None
    if isinstance(final, float):  # the final evaluation came after the last checkpoint
        scored += [(final, archive) for archive in whole if frames_of(archive) == ended.get("frames")]
    if not scored and or_last:
        print_lines(f"warning: run={run}: never evaluated; using its last checkpoint")
        return max(whole)
    if not scored:
        raise UserError(f"run={run}: never evaluated, so no checkpoint is best. Use checkpoint=last.")
    return max(scored)[1]


def load(archive: Path, parts: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    """Loads the states of ``parts`` of a verified checkpoint: tensors and plain containers.

    TorchRL's own ``load`` detects how a part was written, and some of its formats run code.

    Raises:
        UserError: if a part is missing or holds anything else.
    """
    import torch

    try:
        with zipfile.ZipFile(archive) as file:
            components = json.loads(file.read("manifest.json"))["components"]
            contents = {name: file.read(state_file(components[name])) for name in parts}
        states = {
            name: torch.load(io.BytesIO(content), device, weights_only=True)
            for name, content in contents.items()
        }
        if wrong := [name for name, state in states.items() if not isinstance(state, Mapping)]:
            raise ValueError(f"its {wrong[0]} is of another type, {type(states[wrong[0]]).__name__}")
        return states
    except Exception as error:  # whatever somebody else may have put there
        raise UserError(f"{archive} cannot be read: {' '.join(str(error).split())[:200]}") from None


def save(run: Path, states: Mapping[str, Any], metadata: Metadata, *, keep: int | None) -> Path:
    """Writes a checkpoint, then removes all but the newest ``keep`` and the best by evaluation.

    Args:
        run: its folder.
        states: a state dictionary of each part.
        metadata: ``frames``, and ``eval/return_mean`` where the run was evaluated there.
        keep: how many of the newest stay; ``None`` removes none.

    Returns:
        The new archive.

    Raises:
        SaveError: where the disk is full or refuses; earlier checkpoints are left as they were.
    """
    from torchrl.checkpoint import Checkpoint, StateDictCheckpointAdapter

    checkpoint = Checkpoint(format="archive")
    for name, state in states.items():
        part = SimpleNamespace(state_dict=lambda state=state: state)
        # The others of its payloads map files into memory, and a full disk then ends the process with SIGBUS.
        checkpoint.register(name, part, adapter=StateDictCheckpointAdapter("torch"))
    archive = archive_of(run, metadata["frames"])
    for leftover in archive.parent.glob(".*"):  # half written by a process that was killed
        with suppress(OSError):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    with atomically(archive, 2 * tensor_bytes(states)) as partial:  # TorchRL writes it all, then archives it
        checkpoint.save(partial, metadata=metadata)
    for later in [file for file in archives(run) if frames_of(file) > metadata["frames"]]:
        later.unlink()  # the run was resumed from an earlier one, or this one is damaged
    if keep is not None:
        prune(run, keep)
    return archive


def prune(run: Path, keep: int) -> None:
    """Removes all checkpoints but the newest ``keep`` and the best by evaluation."""
    from torchrl.checkpoint import CheckpointRotation

    CheckpointRotation(run / "checkpoints", keep_last=keep, keep_best=(RETURN_MEAN, "max")).prune()


def set_score(run: Path, frames: int, score: float, *, keep: int | None) -> None:
    """Enters a mean return that came after the checkpoint was written, if there is one.

    Then all but the newest ``keep`` and the best are removed; none with ``None``.

    Raises:
        SaveError: where the disk is full or refuses; the checkpoint is left as it was.
    """
    archive = archive_of(run, frames)
    if not archive.exists():
        return
    with (
        atomically(archive, archive.stat().st_size) as partial,
        zipfile.ZipFile(archive) as old,
        zipfile.ZipFile(partial, "w") as new,
    ):
        for member in old.infolist():
            content = old.read(member)
            if member.filename == "manifest.json":
                manifest = json.loads(content)
                manifest["metadata"][RETURN_MEAN] = score
                content = json.dumps(manifest).encode()
            new.writestr(member, content)
    if keep is not None:
        prune(run, keep)


def tensor_bytes(state: Any) -> int:
    """The bytes of all tensors in nested containers."""
    if isinstance(state, Mapping):
        return sum(map(tensor_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(tensor_bytes, state))
    return state.numel() * state.element_size() if hasattr(state, "element_size") else 0
