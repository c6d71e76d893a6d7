"""Temporary folder of workers' crash reports."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "hydrl-workers-"
LOCK = ".lock"  # the system releases it when the process is killed


class ReportFolder(tempfile.TemporaryDirectory[str]):
    """Temporary folder, locked by this process. Removes folders whose process was killed first."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        super().__init__(prefix=PREFIX, ignore_cleanup_errors=True)
        self.lock = Path(self.name, "unlocked").open("w", encoding="utf-8")  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(self.lock.name).rename(Path(self.name, LOCK))  # the lock file appears already locked

    def cleanup(self) -> None:
        """Removes the folder."""
        super().cleanup()
        self.lock.close()


def remove_abandoned(parent: Path) -> None:
    """Removes this user's unlocked report folders in ``parent``."""
    for lock_file in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # it is locked, or was removed by another process
            if lock_file.parent.lstat().st_uid != os.getuid():
                continue
            with lock_file.open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
