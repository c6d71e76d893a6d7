"""The run folder: its lock, its configuration, and reading back what it holds."""

import csv
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.errors import Interrupted, UserError
from hydrl.run.atomic_files import atomically

CONFIG = "config_resolved.yaml"

# What a damaged file raises as it is read; not ValueError, as UserError is one.
UNREADABLE = (
    *(OSError, OmegaConfBaseException, YAMLError),
    *(TypeError, AttributeError, LookupError, UnicodeError, RecursionError),
)


class RunLock:
    """A context manager that keeps a run folder for this process; the system releases it after a kill."""

    def __init__(self) -> None:
        self.file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Locks nothing yet; see :meth:`acquire`."""
        return self

    def acquire(self, run: Path) -> None:
        """Locks a run folder, and releases the one that was locked before.

        Raises:
            UserError: if another process has it, or it cannot be written.
        """
        self.release()
        try:
            run.mkdir(parents=True, exist_ok=True)
            self.file = (run / ".lock").open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{run} cannot be written: {error.strerror}. Choose another folder.") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run} is in use by another process. Wait for it, or stop it.") from None
        except OSError:  # a file system without locks
            pass

    def release(self) -> None:
        """Lets other processes have the folder."""
        if self.file:
            self.file.close()
        self.file = None

    def __exit__(self, *_: object) -> None:
        """Releases the folder."""
        self.release()


def refuse_links(run: Path) -> None:
    """Nothing is read or written through a link that came with a run folder.

    Raises:
        UserError: naming the link.
    """
    for path in (*run.glob("*"), *run.glob(".hydra/*"), *run.glob("checkpoints/*")):
        if path.is_symlink():
            raise UserError(f"{path} is a link, which no run of hydrl makes. Nothing is read through it.")


def require_run(run: Path) -> None:
    """Refuses a folder without a run.

    Raises:
        UserError: naming it.
    """
    if not run.exists():
        raise UserError(f"run={run}: no such folder. Write the folder of a run, such as outputs/….")
    if not (run / CONFIG).is_file():
        raise UserError(f"run={run}: not a run (no {CONFIG}). {run_hint(run)}")


def run_hint(place: Path) -> str:
    """Advice for a folder without a run: the newest run below it, or what to write."""
    runs = [path for depth in ("*", "*/*", "*/*/*") for path in place.glob(f"{depth}/{CONFIG}")]
    if not runs:
        return "Write the folder of a run, such as outputs/…."
    return f"The newest run in it is {max(runs, key=os.path.getmtime).parent}."


def from_here(path: Path) -> Path:
    """A path as it is typed in the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def summary(run: Path) -> dict[str, Any]:
    """Reads a run's ``summary.json``; empty where there is none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        values = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return values if isinstance(values, dict) else {}
    return {}


def saved_yaml(file: Path) -> Any:
    """Reads a YAML file of a run with OmegaConf; empty where there is none.

    Raises:
        UserError: for one that is damaged.
    """
    try:
        return OmegaConf.load(file) if file.exists() else OmegaConf.create()
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{file} cannot be read: {reason}") from None


def save_config(run: Path, config: Mapping[str, Any]) -> None:
    """Writes a run's configuration into its folder, which is made where it is not there."""
    run.mkdir(parents=True, exist_ok=True)
    with atomically(run / CONFIG) as partial:
        OmegaConf.save(OmegaConf.create(dict(config)), partial)


def metric_rows(file: Path) -> list[dict[str, float | None]]:
    """Reads the rows of a ``metrics.csv``, with ``None`` for an empty cell; no rows without such a file.

    Leaves out a last line that is still being written.

    Raises:
        UserError: for a file that holds anything but numbers below their names, ``frames`` in each row.
    """
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        lines = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
        rows = [{name: number(cell) if cell else None for name, cell in line.items()} for line in lines]
        if file.exists() and "frames" not in (lines.fieldnames or ()):
            raise ValueError("its first line names no column frames")
        if any(row["frames"] is None for row in rows):
            raise ValueError("a row has no frames")
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return rows


def number(text: str) -> float:
    """The number in a cell: an integer where it is one, else a float."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


@contextmanager
def hydra_files(cfg: DictConfig) -> Iterator[None]:
    """Writes ``.hydra/`` as Hydra does, and removes it if the run ends before its loop."""
    hydra = HydraConfig.get()
    run = Path(hydra.runtime.output_dir)
    files = {"config": cfg, "hydra": OmegaConf.create({"hydra": hydra}), "overrides": hydra.overrides.task}
    try:
        (run / ".hydra").mkdir(exist_ok=True)
        for name, content in files.items():
            with atomically(run / ".hydra" / f"{name}.yaml") as partial:
                OmegaConf.save(content, partial)
        yield
    except (UserError, Interrupted, KeyboardInterrupt):
        if not (run / CONFIG).exists():
            shutil.rmtree(run / ".hydra", ignore_errors=True)
            (run / ".lock").unlink(missing_ok=True)
        raise
