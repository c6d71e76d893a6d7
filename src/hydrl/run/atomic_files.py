"""Files that are whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydrl.errors import RunError, SaveError

# In errors of PyTorch's that do not say why it could not write.
PYTORCH_WRITES = ("PytorchStreamWriter", "inline_container", "iostream")


@contextmanager
def atomically(path: Path, needed: int = 0) -> Iterator[Path]:
    """A path beside ``path`` to write to; once that is on the disk, it takes ``path``'s place.

    Whatever goes wrong before, ``path`` is as it was and nothing lies beside it.

    Args:
        path: of the file; its folder is made, in one that is there.
        needed: bytes it takes, as far as they are known.

    Raises:
        SaveError: where it cannot be written.
        RunError: where the folder that its own lies in is gone.
    """
    partial, free = path.with_name(f".{path.name}"), 0
    try:
        path.parent.mkdir(exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        yield partial
        to_disk(partial)
        os.replace(partial, path)
        to_disk(path.parent)
    except OSError as error:
        if lost := [each for each in path.parents if not each.exists()]:
            raise RunError(f"{path} cannot be written: {lost[-1]} is gone, deleted or moved") from error
        raise SaveError(path, needed, free, error.strerror or str(error)) from error
    except RuntimeError as error:
        if not any(each in str(error) for each in PYTORCH_WRITES):
            raise
        raise SaveError(path, needed, free, "PyTorch could not write it, as on a full disk") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Has the system write a file, or which names a folder holds, to the disk before more is said of it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
