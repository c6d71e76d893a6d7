"""Run folders, read to be compared: what each reached, and groups that differ in more than seed and task."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from pydantic import BaseModel, Field, FiniteFloat

from hydrl.config.overrides import key_of
from hydrl.config.settings import Role, keys
from hydrl.errors import UserError

# Keys that set no groups apart: algorithm, task and seed are told, the others shape nothing that is learned.
TOLD = {"algo", "env", "env.id", "env._target_", "seed"}
NO_DIFFERENCE = keys(Role.PROCESS, Role.RECORD)


class Run(BaseModel, arbitrary_types_allowed=True):
    """A run that counts: its summary, and

    Attributes:
        curve: its evaluations, of shape (evaluations, 3): environment frames, seconds since the start, mean
            return; the closing one is the last.
        overrides: what was typed after ``python train.py``.
    """

    algo: str
    env: str
    seed: int
    status: str
    score: FiniteFloat = Field(alias="eval/return_mean")
    solved_at_frames: float | None
    solved_at_seconds: float | None
    versions: dict[str, str]
    folder: Path
    curve: np.ndarray
    threshold: float | None
    overrides: list[str]

    @property
    def differences(self) -> set[str]:
        """The overrides that set groups apart."""
        words = {each for each in self.overrides if key_of(each) not in TOLD}
        return {each for each in words if key_of(each).partition(".")[0] not in NO_DIFFERENCE}


Groups = Mapping[str, Sequence[Run]]  # by name


def summary(folder: Path) -> dict[str, Any]:
    """A run's ``summary.json``; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / "summary.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def evaluations(folder: Path, *names: str) -> np.ndarray:
    """Frames, more columns if named, and mean return of a run's evaluations so far.

    Of shape (evaluations, 2 + names). None where there is no ``metrics.csv``; a last line that is still being
    written is left out.
    """
    path = folder / "metrics.csv"
    text = path.read_text() if path.is_file() else ""
    lines = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    names = ("frames", *names, "eval/return_mean")
    rows = [[float(line.get(name) or "nan") for name in names] for line in lines]
    return np.array([row for row in rows if np.isfinite(row).all()]).reshape(-1, len(names))


def plain(path: Path) -> Any:
    """A YAML file as it stands, references unresolved."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def read(folder: Path) -> Run:
    """Reads a run folder; nothing in it is resolved, built or run.

    Raises:
        UserError: saying why the run cannot count.
    """
    if not (found := summary(folder)):
        raise UserError("has no summary.json that can be read: it was killed, or is still training")
    if found.get("status") not in ("finished", "diverged") or found.get("eval/return_mean") is None:
        raise UserError(f"{found.get('status')} after {found.get('frames')} frames, without a score")
    try:
        closing = [float(found[key]) for key in ("frames", "wall_seconds", "eval/return_mean")]
        curve = evaluations(folder, "time/elapsed")
        made = {
            "folder": folder,
            "curve": np.vstack([curve[curve[:, 0] < closing[0]], closing]),
            "threshold": plain(folder / "config_resolved.yaml")["eval"]["solved_at"],
            "overrides": plain(folder / ".hydra" / "overrides.yaml"),
        }
        return Run.model_validate(found | made)
    except Exception as error:  # whatever a damaged file may hold
        raise UserError(f"damaged: {' '.join(f'{type(error).__name__}: {error}'.split())[:120]}") from None


def read_all(folders: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """The runs that count, and for each folder that does not why."""
    runs, left_out = [], {}
    for folder in folders:
        try:
            runs.append(read(folder))
        except UserError as error:
            left_out[folder] = str(error)
    return runs, left_out


def load(places: Iterable[Path]) -> tuple[dict[str, list[Run]], dict[Path, str]]:
    """Reads every run in and below ``places``, each once.

    Returns:
        the groups by name: the algorithm, with the overrides that set it apart and not all runs have; and
        the folders that do not count, with the reason.

    Raises:
        UserError: if none counts.
    """
    folders: dict[Path, Path] = {}
    empty: dict[Path, str] = {}
    for place in places:
        found = [each.parent for each in sorted(place.rglob("config_resolved.yaml"))]
        folders |= {each.resolve(): each for each in found}
        if not found:
            empty[place] = "no run lies there or below (no config_resolved.yaml)"
    runs, left_out = read_all(folders.values())
    left_out |= empty
    if not runs:
        folder, reason = next(iter(left_out.items()))
        raise UserError(f"none of the {len(left_out)} runs there can be counted; {folder}: {reason}")
    common = set.intersection(*(run.differences for run in runs))
    groups: dict[str, dict[tuple[str, int], Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: (run.env, run.seed)):
        members = groups[" ".join([run.algo, *sorted(run.differences - common)])]
        if (first := members.setdefault((run.env, run.seed), run)) is not run:
            left_out[run.folder] = f"repeats {first.folder}, with the same overrides and seed"
    return {name: list(groups[name].values()) for name in sorted(groups)}, left_out
