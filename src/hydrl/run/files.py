"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydrl.errors import RunError


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes ``path``'s place at the end.

    Whatever goes wrong before, ``path`` is as it was and nothing lies beside it.

    Raises:
        RunError: where the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
