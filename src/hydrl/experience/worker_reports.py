"""The folder in which workers say why they end, which is gone with the run that had it."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "hydrl-workers-"
LOCK = ".lock"  # of a folder; the system takes it back from a process that was killed


class Reports(tempfile.TemporaryDirectory[str]):
    """A temporary folder, locked by this process; those whose process was killed are removed first."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        super().__init__(prefix=PREFIX, ignore_cleanup_errors=True)
        self.lock = Path(self.name, "unlocked").open("w", encoding="utf-8")  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(self.lock.name).rename(Path(self.name, LOCK))  # nobody finds it unlocked while this one lives

    def cleanup(self) -> None:
        """Removes the folder."""
        super().cleanup()
        self.lock.close()


def remove_abandoned(place: Path) -> None:
    """Removes this user's folders in ``place`` that nobody has locked."""
    for each in place.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # it is locked, or was removed by another process
            if each.parent.lstat().st_uid != os.getuid():
                continue
            with each.open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each.parent, ignore_errors=True)
