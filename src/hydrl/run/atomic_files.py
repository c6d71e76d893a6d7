"""Atomic files: whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydrl.errors import RunError, SaveError

# In errors of PyTorch that do not say why it could not write.
PYTORCH_WRITES = ("PytorchStreamWriter", "inline_container", "iostream")


@contextmanager
def atomically(path: Path, needed: int = 0) -> Iterator[Path]:
    """Yields a temporary path to write to, which replaces ``path`` once it is on disk.

    If anything goes wrong before, ``path`` is as it was and the temporary file is removed.

    Args:
        path: of the file; its folder is made if the folder above exists.
        needed: bytes it takes, if known.

    Raises:
        SaveError: where it cannot be written.
        RunError: where the folder above is gone.
    """
    partial, free = path.with_name(f".{path.name}"), 0
    is_first = not has_earlier_version(path)
    try:
        path.parent.mkdir(exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        yield partial
        to_disk(partial)
        os.replace(partial, path)
        to_disk(path.parent)
    except OSError as error:
        if lost := [folder for folder in path.parents if not folder.exists()]:
            raise RunError(f"{path} cannot be written: {lost[-1]} is gone, deleted or moved") from error
        raise SaveError(path, needed, free, error.strerror or str(error), is_first=is_first) from error
    except RuntimeError as error:
        if not any(name in str(error) for name in PYTORCH_WRITES):
            raise
        reason = "PyTorch could not write it, as on a full disk"
        raise SaveError(path, needed, free, reason, is_first=is_first) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def has_earlier_version(path: Path) -> bool:
    """Whether there is an earlier version of a file, or an earlier checkpoint of its run."""
    folders = path.parent, path.parent / "checkpoints"
    return path.exists() or any(file for folder in folders for file in folder.glob("checkpoint-*.torchrl"))


def to_disk(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
