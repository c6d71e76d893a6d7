"""A run folder as a place: one process at a time writes to it, and nothing leads out of it."""

import csv
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.errors import Interrupted, UserError
from hydrl.run.atomic_files import atomically

# What a damaged file raises as it is read; no ValueError at large, as a mistake told in a line is one.
UNREADABLE = (
    *(OSError, OmegaConfBaseException, YAMLError),
    *(TypeError, AttributeError, LookupError, UnicodeError, RecursionError),
)

# The lock of the run folder; the system takes it back from a process that was killed.
_held: IO[str] | None = None


def lock(run: Path) -> None:
    """Keeps a run folder for this process until it ends, takes another or calls :func:`unlock`.

    Raises:
        UserError: if another process has it, or it cannot be written.
    """
    global _held
    unlock()
    try:
        run.mkdir(parents=True, exist_ok=True)
        _held = (run / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{run} cannot be written: {error.strerror}; choose another folder") from None
    try:
        fcntl.flock(_held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{run} is in use by another process; wait for it, or stop it") from None
    except OSError:  # a file system without locks
        pass


def unlock() -> None:
    """Lets other processes have the folder."""
    global _held
    if _held:
        _held.close()
    _held = None


def refuse_links(run: Path) -> None:
    """Nothing is read or written through a link that came with a run folder.

    Raises:
        UserError: naming the link.
    """
    for each in (*run.glob("*"), *run.glob(".hydra/*"), *run.glob("checkpoints/*")):
        if each.is_symlink():
            raise UserError(f"{each} is a link, which no run of hydrl makes; nothing is read through it")


def require_run(run: Path) -> None:
    """Refuses a folder without a run.

    Raises:
        UserError: naming it.
    """
    if not (run / "config_resolved.yaml").is_file():
        raise UserError(f"run={run}: no run lies there (it has no config_resolved.yaml){meant(run)}")


def meant(place: Path) -> str:
    """The newest of the runs that lie in a folder, for the end of a sentence."""
    below = [each for depth in ("*", "*/*", "*/*/*") for each in place.glob(f"{depth}/config_resolved.yaml")]
    return f"; the newest in it is {max(below, key=os.path.getmtime).parent}" if below else ""


def from_here(path: Path) -> Path:
    """A path as it is typed in the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def summary(run: Path) -> dict[str, Any]:
    """A run's ``summary.json``; empty where there is none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def saved_yaml(file: Path) -> Any:
    """What a YAML file of a run holds, as OmegaConf has it; empty where there is none.

    Raises:
        UserError: for one that is damaged.
    """
    try:
        return OmegaConf.load(file) if file.exists() else OmegaConf.create()
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{file} cannot be read: {reason}") from None


def metric_rows(file: Path) -> list[dict[str, float | None]]:
    """The rows of a ``metrics.csv``, with ``None`` where a row has no number; none without such a file.

    A last line that is still being written is left out.

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
    """The number a cell holds; a count stays a count."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


@contextmanager
def begun(cfg: DictConfig) -> Iterator[None]:
    """Writes ``.hydra/`` as Hydra does, once the run begins; taken away if it ends before its loop."""
    hydra = HydraConfig.get()
    run = Path(hydra.runtime.output_dir)
    parts = {"config": cfg, "hydra": OmegaConf.create({"hydra": hydra}), "overrides": hydra.overrides.task}
    try:
        (run / ".hydra").mkdir(exist_ok=True)
        for name, part in parts.items():
            with atomically(run / ".hydra" / f"{name}.yaml") as partial:
                OmegaConf.save(part, partial)
        yield
    except (UserError, Interrupted, KeyboardInterrupt):
        if not (run / "config_resolved.yaml").exists():
            shutil.rmtree(run / ".hydra", ignore_errors=True)
            (run / ".lock").unlink(missing_ok=True)
        raise
