"""Checkpoints: all a run needs to go on as if it had never stopped, in a folder that is whole or not there.

``checkpoints/checkpoint-000000032768`` holds TorchRL's :class:`~torchrl.checkpoint.Checkpoint` after 32,768
frames and ``inventory.json`` with the size and SHA-256 of every file in it. It is written under another name,
brought to the disk and then renamed, so that a kill at any instant leaves whole folders only. Reading one
back runs nothing that it holds: tensors and plain containers, no pickled objects, no links.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrl.errors import SaveError, UserError

INVENTORY = "inventory.json"
FILES = re.compile(r"manifest\.json|components/\d{4}-[a-z]+/state\.pt")
FULL = (errno.ENOSPC, errno.EDQUOT)
HEADROOM = 1 << 20  # bytes beside the tensors: names, manifests, what zip files add


def folders(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first; whether they are whole is :func:`verify`'s to say."""
    named = re.compile(r"checkpoint-\d{12,}")
    found = [each for each in (run / "checkpoints").glob("checkpoint-*") if named.fullmatch(each.name)]
    return sorted(found, key=frames_of, reverse=True)


def frames_of(folder: Path) -> int:
    """How long a run had trained when it left this checkpoint."""
    return int(folder.name.removeprefix("checkpoint-"))


def inventory(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file but the inventory itself.

    Raises:
        UserError: for anything that is neither a folder nor an ordinary file, such as a link out of it.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        name = path.relative_to(folder).as_posix()
        if not stat.S_ISREG(mode):
            raise UserError(f"{folder}: {name} is a link or a device, which no checkpoint of hydrl holds")
        if name != INVENTORY:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return found


def as_text(files: Mapping[str, Any]) -> str:
    """The one way an inventory is written, so that no byte of it can change unseen."""
    return json.dumps(files, indent=1, sort_keys=True) + "\n"


def verify(folder: Path) -> dict[str, Any]:
    """Reads every byte of a checkpoint and returns its metadata.

    Raises:
        UserError: if a file is missing, cut short, changed or not hydrl's.
    """
    if folder.is_symlink() or folder.parent.is_symlink():
        raise UserError(f"{folder} is a link; name the folder itself")
    try:
        text = (folder / INVENTORY).read_text() if not (folder / INVENTORY).is_symlink() else ""
        written = json.loads(text)
        if as_text(written) != text:
            raise ValueError
        there = inventory(folder)
        wrong = [name for name in {**written, **there} if written.get(name) != there.get(name)]
        if wrong:
            raise UserError(f"{folder} is damaged: {min(wrong)} is not as it was written")
        if foreign := [name for name in there if not FILES.fullmatch(name)]:
            raise UserError(f"{folder}: {foreign[0]} is nothing that a checkpoint of hydrl holds")
        metadata = metadata_of(folder)
        if metadata["frames"] != frames_of(folder):
            raise ValueError
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{folder} is damaged: {Path(error.filename).name} is missing") from None
    except Exception:  # whatever a file made by somebody else may hold
        raise UserError(f"{folder} is damaged: its {INVENTORY} or manifest.json cannot be read") from None
    return metadata


def metadata_of(folder: Path) -> dict[str, Any]:
    """What a verified checkpoint says of itself."""
    return json.loads((folder / "manifest.json").read_text())["metadata"]


def newest(run: Path) -> Path | None:
    """The newest valid checkpoint of a run; each one that is damaged is refused in a line."""
    for folder in folders(run):
        try:
            verify(folder)
        except UserError as error:
            print(f"warning: {error}; taking the one before it")
        else:
            return folder
    return None


def find(run: Path, which: str) -> Path:
    """The checkpoint that ``best``, ``last`` or a number of frames names, verified.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    there = folders(run)
    if not there:
        raise UserError(f"run={run} has no checkpoint; was it stopped before its first?")
    if which == "last":
        found = newest(run)
        if found is None:
            raise UserError(f"run={run}: all of its checkpoints are damaged")
        return found
    if which == "best":
        scores = {folder: score for folder in there if (score := score_of(folder)) is not None}
        if not scores:
            raise UserError(f"run={run} was not evaluated before it stopped; use checkpoint=last")
        return max(scores, key=lambda folder: (scores[folder], frames_of(folder)))
    matching = [folder for folder in there if frames_of(folder) == int(which)]
    if not matching:
        offered = ", ".join(str(frames_of(folder)) for folder in reversed(there))
        raise UserError(f"checkpoint={which}: there is none; use best, last or one of {offered}")
    verify(matching[0])
    return matching[0]


def score_of(folder: Path) -> float | None:
    """The mean return of the evaluation at a checkpoint; ``None`` without one, or if it is damaged."""
    try:
        return verify(folder).get("eval/return_mean")
    except UserError as error:
        print(f"warning: {error}; passing over it")
        return None


def load(folder: Path, parts: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    """The state of each of ``parts`` of a verified checkpoint: tensors and plain containers.

    Raises:
        UserError: if a part is missing or holds anything else.
    """
    from torchrl.checkpoint import Checkpoint

    states = {}
    for part in parts:
        checkpoint, state = Checkpoint(), State()
        checkpoint.register(part, state, adapter=as_tensors())
        try:
            # A replay memory may be larger than ours: it is read from the file as it is copied.
            checkpoint.load(folder, map_location=device, tensor_load_kwargs={"mmap": part == "buffer"})
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(f"{folder}: its {part} cannot be read: {reason}") from None
        states[part] = state.state
    return states


def load_policy(folder: Path, device: str) -> dict[str, Any]:
    """The policy of a verified checkpoint: ``actor``, ``normaliser`` and ``frames``."""
    return {**load(folder, ("actor", "normaliser"), device), "frames": frames_of(folder)}


def sweep(run: Path) -> None:
    """Removes what a kill left half written, or half removed."""
    for path in (run / "checkpoints").glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Takes a checkpoint away under another name first: it is there or it is not."""
    aside = folder.with_name(f".old-{folder.name}")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def to_disk(*paths: Path) -> None:
    """Has the system write files, or which names a folder holds, to the disk before more is said of them."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class State:
    """A state on its way between TorchRL's ``Checkpoint`` and the part it belongs to."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        """What is written."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Takes what was read."""
        self.state = state


def as_tensors() -> Any:
    """TorchRL's adapter for the one of its formats that is written in ordinary writes.

    The others map their files into memory, and a full disk then ends the process with SIGBUS.
    """
    from torchrl.checkpoint import StateDictCheckpointAdapter

    return StateDictCheckpointAdapter("torch")


def tensor_bytes(state: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(state, Mapping):
        return sum(map(tensor_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(tensor_bytes, state))
    return state.numel() * state.element_size() if hasattr(state, "element_size") else 0


def save(run: Path, states: Mapping[str, Any], metadata: Mapping[str, Any], *, keep: int) -> Path:
    """Writes a checkpoint, then removes all but the newest ``keep`` and the best by evaluation.

    Args:
        run: the run folder.
        states: a state dictionary for each part.
        metadata: ``frames``, and ``eval/return_mean`` where the run was evaluated there.
        keep: how many of the newest stay.

    Returns:
        The new folder.

    Raises:
        SaveError: where the disk is full or refuses; earlier checkpoints are left as they were.
    """
    from torchrl.checkpoint import Checkpoint, CheckpointRotation

    checkpoint = Checkpoint()
    for name, state in states.items():
        checkpoint.register(name, State(state), adapter=as_tensors())
    directory = run / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / f"checkpoint-{metadata['frames']:012d}"
    stage = directory / f".stage-{folder.name}-{os.getpid()}"
    needed = tensor_bytes(states) + HEADROOM
    if (free := shutil.disk_usage(directory).free) < needed:
        raise SaveError(folder, needed, free)
    try:
        checkpoint.save(stage, metadata=metadata)
        (stage / INVENTORY).write_text(as_text(inventory(stage)))
        to_disk(*stage.rglob("*"), stage)
        with set_aside(folder):
            os.rename(stage, folder)
            to_disk(directory)
    except (OSError, RuntimeError) as error:
        # PyTorch reports a failed write without the reason.
        full = getattr(error, "errno", None) in FULL or shutil.disk_usage(directory).free < 1 << 16
        raise SaveError(folder, needed, free, "" if full else str(error)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    for ahead in [each for each in folders(run) if frames_of(each) > metadata["frames"]]:
        remove(ahead)  # of a course that was left, for an earlier checkpoint or because it is damaged
    CheckpointRotation(directory, keep_last=keep, keep_best=("eval/return_mean", "max")).prune()
    return folder


@contextlib.contextmanager
def set_aside(folder: Path) -> Iterator[None]:
    """Makes room for a new folder of the same name; the old one comes back if there is none."""
    aside = folder.with_name(f".old-{folder.name}")
    if not folder.exists():
        yield
        return
    os.rename(folder, aside)
    try:
        yield
    except BaseException:
        os.rename(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
