"""Checkpoints: all a run needs to go on as if it had never stopped, each a file that is whole or not there.

``checkpoints/checkpoint-000000032768.torchrl`` is an archive of TorchRL's
:class:`~torchrl.checkpoint.Checkpoint` after 32,768 frames. What the replay memory holds lies beside it, in
files that several checkpoints share: ``rows-FIRST-END.pt`` has the rows from the FIRST up to before the END
ever written, ``frames-FIRST-END.pt`` the pictures in them, see
:mod:`hydrl.run.checkpoint.replay_buffer`. All of it is checked against CRCs before it is used, and reading
it back runs nothing that it holds: tensors and plain containers, no pickled objects.
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
from hydrl.run.atomic_files import atomically
from hydrl.run.run_folder import summary

NAME = re.compile(r"checkpoint-\d{12,}\.torchrl")
ROWS = re.compile(r"(?:rows|frames)-(\d{12,})-(\d{12,})\.pt")
SCORE = "eval/return_mean"
Metadata = Mapping[str, Any]
# Of what kind entries of the metadata are, where they are there.
KINDS: dict[str, tuple[type, ...]] = {
    "settings": (Mapping,),
    "memory": (Mapping,),
    "logger": (Mapping, str, NoneType),
    "restarts": (str, NoneType),
    SCORE: (int, float),
}


def archives(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first; whether they are whole is :func:`verify`'s to say."""
    found = [each for each in (run / "checkpoints").glob("checkpoint-*") if NAME.fullmatch(each.name)]
    return sorted(found, key=frames_of, reverse=True)


def frames_of(archive: Path) -> int:
    """How long a run had trained when it left this checkpoint."""
    return int(archive.stem.removeprefix("checkpoint-"))


def archive_of(run: Path, frames: int) -> Path:
    """Where the checkpoint after ``frames`` lies, or would."""
    return run / "checkpoints" / f"checkpoint-{frames:012d}.torchrl"


def span(name: str) -> tuple[int, int]:
    """The rows of a replay memory in a file: the first, and the one after the last."""
    found = ROWS.fullmatch(name)
    if not found:
        raise ValueError(f"{name} is no file of rows")
    return int(found[1]), int(found[2])


def verify(archive: Path, *, memory: bool = False) -> Metadata:
    """Reads every byte of a checkpoint, with ``memory`` of its replay memory too, and returns its metadata.

    Raises:
        UserError: if it is cut short, changed, or holds more or less than it lists.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            manifest = json.loads(file.read("manifest.json"))
            listed = {"manifest.json", *map(state_file, manifest["components"].values())}
            whole = set(file.namelist()) == listed and file.testzip() is None
        metadata = dict(manifest["metadata"])
        if not whole or metadata["frames"] != frames_of(archive):
            raise ValueError("it is not as it was written")
        if wrong := [key for key in KINDS.keys() & metadata if not isinstance(metadata[key], KINDS[key])]:
            raise ValueError(f"its {wrong[0]} is of another type, {type(metadata[wrong[0]]).__name__}")
        if memory:
            verify_memory(archive, metadata["memory"])
    except UserError:
        raise
    except Exception as error:  # whatever a file that was damaged, or made by somebody else, may hold
        raise UserError(f"{archive} is damaged: {' '.join(str(error).split())[:100]}") from None
    return metadata


@contextmanager
def report_damage(file: Path) -> Iterator[None]:
    """What a file brings about in the block that is not as hydrl writes it, in a line.

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


def state_file(part: Metadata) -> str:
    """The member of an archive that has the state of a part, as the manifest tells of it."""
    return f"{part['path']}/state.pt"


def verify_memory(archive: Path, told: Metadata) -> None:
    """Reads every byte of the files that have the rows of a checkpoint's replay memory.

    Args:
        archive: the checkpoint.
        told: what its metadata says of its ``memory``: the ``files`` that have the rows, with their CRC-32.

    Raises:
        UserError: if they are not all there, or one is damaged.
    """
    for name, value in listed(told).items():
        file = archive.with_name(name)
        if not file.is_file():
            raise UserError(
                f"{archive}: rows of its replay memory are gone, as older ones are not kept; "
                "its policy can be played, but the run cannot go on from it"
            )
        if crc(file) != value:
            raise UserError(f"{file} is damaged")


def listed(told: Metadata) -> dict[str, int]:
    """The files of a replay memory, its pictures' too, with their CRC-32, as a checkpoint tells of it."""
    return {**told["files"], **told.get("frames", {}).get("files", {})}


def crc(file: Path) -> int:
    """The CRC-32 of a file."""
    value = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def readable(there: Sequence[Path], *, memory: bool = False) -> Iterator[tuple[Path, Metadata]]:
    """Those that :func:`verify` finds whole, with their metadata; each of the others is told in a line."""
    for archive in there:
        try:
            yield archive, verify(archive, memory=memory)
        except UserError as error:
            print_lines(f"warning: {error}; passing over it")


def find(run: Path, which: str, *, or_last: bool = False) -> Path:
    """The checkpoint that ``best``, ``last`` or a number of frames names, verified.

    Args:
        run: its folder.
        which: of them; the best is that of the highest mean return, a finished run's closing one among them.
        or_last: takes the last with a warning, where the run has no best one for want of evaluations.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    there = {str(frames_of(each)): each for each in archives(run)}
    if which in there:
        verify(there[which])
        return there[which]
    if which not in ("best", "last"):
        offered = ", ".join(["best", "last", *reversed(there)])
        raise UserError(f"checkpoint={which}: there is none; use one of {offered}")
    whole = dict(readable(list(there.values())))
    if not whole:
        why = " that is whole" if there else "; was it stopped before its first?"
        raise UserError(f"run={run} has no checkpoint{why}")
    if which == "last":
        return max(whole)
    scored = [(metadata[SCORE], archive) for archive, metadata in whole.items() if SCORE in metadata]
    ended = summary(run)
    if ended.get("status") == "finished" and isinstance(
        ended.get(SCORE), float
    ):  # its closing evaluation came after its last checkpoint
        scored += [(ended[SCORE], archive) for archive in whole if frames_of(archive) == ended.get("frames")]
    if not scored and or_last:
        print_lines(f"warning: run={run} was not evaluated before it stopped; taking its last checkpoint")
        return max(whole)
    if not scored:
        raise UserError(f"run={run} was not evaluated before it stopped; use checkpoint=last")
    return max(scored)[1]


def load(archive: Path, parts: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    """The state of each of ``parts`` of a verified checkpoint: tensors and plain containers.

    TorchRL's own ``load`` finds out by itself how a part was written, and some ways run what they hold.

    Raises:
        UserError: if a part is missing or holds anything else.
    """
    import torch

    try:
        with zipfile.ZipFile(archive) as file:
            components = json.loads(file.read("manifest.json"))["components"]
            written = {name: file.read(state_file(components[name])) for name in parts}
        states = {
            name: torch.load(io.BytesIO(each), device, weights_only=True) for name, each in written.items()
        }
        if wrong := [name for name, each in states.items() if not isinstance(each, Mapping)]:
            raise ValueError(f"its {wrong[0]} is of another type, {type(states[wrong[0]]).__name__}")
        return states
    except Exception as error:  # whatever somebody else may have put there
        raise UserError(f"{archive} cannot be read: {' '.join(str(error).split())[:200]}") from None


def save(run: Path, states: Mapping[str, Any], metadata: Metadata, *, keep: int | None) -> Path:
    """Writes a checkpoint, then removes all but the newest ``keep`` and the best by evaluation.

    Args:
        run: its folder.
        states: a state dictionary for each part.
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
    for left_half_written in archive.parent.glob(".*"):  # by a process that was killed
        with suppress(OSError):
            shutil.rmtree(left_half_written) if left_half_written.is_dir() else left_half_written.unlink()
    with atomically(archive, 2 * tensor_bytes(states)) as partial:  # TorchRL writes it all, then archives it
        checkpoint.save(partial, metadata=metadata)
    for ahead in [each for each in archives(run) if frames_of(each) > metadata["frames"]]:
        ahead.unlink()  # of a course that was left, for an earlier checkpoint or because it is damaged
    if keep is not None:
        prune(run, keep)
    return archive


def prune(run: Path, keep: int) -> None:
    """Removes all checkpoints but the newest ``keep`` and the best by evaluation."""
    from torchrl.checkpoint import CheckpointRotation

    CheckpointRotation(run / "checkpoints", keep_last=keep, keep_best=(SCORE, "max")).prune()


def enter_score(run: Path, frames: int, score: float, *, keep: int | None) -> None:
    """Enters the mean return that became known after the checkpoint was written, if there is one.

    Then all but the newest ``keep`` and the best go; none with ``None``.

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
                manifest["metadata"][SCORE] = score
                content = json.dumps(manifest).encode()
            new.writestr(member, content)
    if keep is not None:
        prune(run, keep)


def tensor_bytes(state: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(state, Mapping):
        return sum(map(tensor_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(tensor_bytes, state))
    return state.numel() * state.element_size() if hasattr(state, "element_size") else 0
