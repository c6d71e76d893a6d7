"""Run folders, read to be compared: what each reached, and which differ in more than seed and task.

A folder may be a stranger's: it is read as numbers and text, and nothing in it is resolved, built or run.
"""

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
from hydrl.run.folder import refuse_links

# Keys that may differ between repetitions of a run, or are told by its algorithm and task.
NO_DIFFERENCE = keys(Role.PROCESS, Role.RECORD) | {"seed", "algo", "task"}


class Run(BaseModel, arbitrary_types_allowed=True):
    """A run that counts: its summary, and

    Attributes:
        curve: its evaluations, of shape (evaluations, 3): environment frames, seconds since the start, mean
            return; the closing one is the last.
        start: mean return of the first training episodes, as of a policy that has hardly learned.
        overrides: what was typed after ``python train.py``.
        config: what can make a difference in ``config_resolved.yaml``, dotted keys and values as text.
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
    start: float
    threshold: float | None
    overrides: list[str]
    config: frozenset[tuple[str, str]]


def summary(folder: Path) -> dict[str, Any]:
    """A run's ``summary.json``; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / "summary.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def evaluations(folder: Path) -> np.ndarray:
    """Frames and mean return of a run's evaluations so far, of shape (evaluations, 2)."""
    return columns(folder, "frames", "eval/return_mean")


def columns(folder: Path, *names: str) -> np.ndarray:
    """The rows of ``metrics.csv`` with a finite number in each of ``names``, of shape (rows, names).

    None where there is no file; a last line that is still being written is left out.
    """
    path = folder / "metrics.csv"
    text = path.read_text() if path.is_file() else ""
    lines = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    rows = [[float(line.get(name) or "nan") for name in names] for line in lines]
    return np.array([row for row in rows if np.isfinite(row).all()]).reshape(-1, len(names))


def read(folder: Path) -> Run:
    """Reads a run folder.

    Raises:
        UserError: saying why the run cannot count.
    """
    refuse_links(folder)
    if not (found := summary(folder)):
        raise UserError("has no summary.json that can be read: it was killed, or is still training")
    if (status := found.get("status")) not in ("finished", "diverged"):
        raise UserError(f"{status} after {found.get('frames')} frames")
    if found.get("eval/return_mean") is None:
        raise UserError(f"{status} before its first evaluation")
    try:
        closing = [float(found[key]) for key in ("frames", "wall_seconds", "eval/return_mean")]
        curve = columns(folder, "frames", "time/elapsed", "eval/return_mean")
        config = flat(plain(folder / "config_resolved.yaml"))
        made = {
            "folder": folder,
            "curve": np.vstack([curve[curve[:, 0] < closing[0]], closing]),
            "start": [*columns(folder, "train/return").flat, closing[2]][0],
            "threshold": json.loads(config["eval.solved_at"]),
            "overrides": [" ".join(each.split()) for each in plain(folder / ".hydra" / "overrides.yaml")],
            "config": {each for each in config.items() if each[0].split(".")[0] not in NO_DIFFERENCE},
        }
        return Run.model_validate(found | made)
    except Exception as error:  # whatever a damaged file or a stranger's may hold
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


def plain(path: Path) -> Any:
    """A YAML file as it stands, references unresolved."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def flat(values: Any, key: str = "") -> dict[str, str]:
    """Nested values as JSON text by dotted key."""
    if not isinstance(values, Mapping) or not values:
        return {key: json.dumps(values)}
    inner = (flat(each, f"{key}.{name}" if key else str(name)) for name, each in values.items())
    return {path: text for each in inner for path, text in each.items()}


def load(places: Iterable[Path]) -> tuple[dict[str, list[Run]], dict[Path, str]]:
    """Reads every run in and below ``places``, each once.

    Returns:
        the groups, as :func:`group` makes them; and the folders that do not count.

    Raises:
        UserError: if none counts.
    """
    folders: dict[Path, Path] = {}
    empty: dict[Path, str] = {}
    for place in places:
        files = [each for name in ("config_resolved.yaml", "summary.json") for each in place.rglob(name)]
        folders |= {each.parent.resolve(): each.parent for each in sorted(files)}
        if not files:
            empty[place] = "no run lies there or below (no config_resolved.yaml)"
    runs, left_out = read_all(folders.values())
    left_out |= empty
    if not runs:
        folder, reason = next(iter(left_out.items()))
        raise UserError(f"none of the {len(left_out)} runs there can be counted; {folder}: {reason}")
    groups = group(runs)
    for name, members in groups.items():
        kept: dict[tuple[str, int], Run] = {}
        for run in members:
            if (first := kept.setdefault((run.env, run.seed), run)) is not run:
                left_out[run.folder] = f"repeats {first.folder}, with the same configuration and seed"
        groups[name] = list(kept.values())
    return groups, left_out


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups the runs by name: those of a task share one exactly if nothing but the seed differs.

    A name is the algorithm with the overrides that not all runs have; where these do not tell the
    configurations of a task apart, with all that differs between them.
    """
    cells: dict[tuple[str, str], dict[frozenset, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: (run.algo, run.env, run.seed)):
        cells[run.algo, run.env][run.config].append(run)
    common = set.intersection(*(set(run.overrides) for run in runs))
    groups: dict[str, list[Run]] = defaultdict(list)
    for (algo, _), same in cells.items():
        labels = [label(members, common) for members in same.values()]
        if len(set(labels)) < len(same):
            varying = frozenset.union(*same) - frozenset.intersection(*same)
            labels = [" ".join(f"{key}={text}" for key, text in sorted(each & varying)) for each in same]
        for text, members in zip(labels, same.values(), strict=True):
            groups[f"{algo} {text}".strip()] += members
    return dict(sorted(groups.items()))


def label(runs: Sequence[Run], common: set[str]) -> str:
    """The overrides that each of ``runs`` has and that can make a difference, without the ``common`` ones."""
    typed = set.intersection(*(set(run.overrides) for run in runs)) - common
    return " ".join(
        sorted(each for each in typed if key_of(each).split(".")[0] not in NO_DIFFERENCE | {"env"})
    )
