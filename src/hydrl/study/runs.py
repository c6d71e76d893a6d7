"""Run folders, read to be compared: what each reached, and which differ in more than seed and task.

A folder may be a stranger's: it is read as numbers and text, and nothing in it is resolved, built or run.
"""

import csv
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from hydrl.config.overrides import key_of
from hydrl.config.settings import Role, keys
from hydrl.errors import UserError
from hydrl.run.folder import refuse_links

# Keys that may differ between repetitions of a run, or are told by its algorithm and task.
NO_DIFFERENCE = keys(Role.PROCESS, Role.RECORD) | {"seed", "algo", "task"}


@dataclass(frozen=True, eq=False)
class Run:
    """A run that counts, ``finished`` or ``diverged``.

    Attributes:
        curve: its evaluations, of shape (evaluations, 3): environment frames, seconds since the start, mean
            return; the closing one is the last.
        start: mean return of the first training episodes, as of a policy that has hardly learned.
        solved: frames and seconds to the first evaluation at ``threshold``; infinite if there was none.
        overrides: what was typed after ``python train.py``.
        config: what can make a difference in ``config_resolved.yaml``, dotted keys and values as text.
    """

    folder: Path
    algo: str
    env: str
    seed: int
    status: str
    curve: np.ndarray
    start: float
    threshold: float | None
    solved: tuple[float, float]
    overrides: Sequence[str] | None
    config: frozenset[tuple[str, str]]

    @property
    def score(self) -> float:
        """Mean return of the closing evaluation; of the last one if it diverged."""
        return float(self.curve[-1, 2])

    @property
    def command(self) -> str:
        """What made it, as a shell reads it."""
        if self.overrides is None:
            return "# its folder does not say by what command it was made"
        return shlex.join(["python", "train.py", *self.overrides])


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
        if not np.isfinite(closing).all():
            raise ValueError(f"its closing evaluation is {closing[-1]}")
        curve = columns(folder, "frames", "time/elapsed", "eval/return_mean")
        config = flat(plain(folder / "config_resolved.yaml"))
        threshold = json.loads(config["eval.solved_at"])
        solved = found["solved_at_frames"], found["solved_at_seconds"]
        typed = folder / ".hydra" / "overrides.yaml"
        return Run(
            folder=folder,
            algo=str(found["algo"]),
            env=str(found["env"]),
            seed=int(found["seed"]),
            status=status,
            curve=np.vstack([curve[curve[:, 0] < closing[0]], closing]),
            start=float([*columns(folder, "train/return").flat, closing[2]][0]),
            threshold=None if threshold is None else float(threshold),
            solved=(np.inf, np.inf) if None in solved else (float(solved[0]), float(solved[1])),
            overrides=[" ".join(str(each).split()) for each in plain(typed)] if typed.is_file() else None,
            config=frozenset(each for each in config.items() if each[0].split(".")[0] not in NO_DIFFERENCE),
        )
    except Exception as error:  # whatever a damaged file or a stranger's may hold
        raise UserError(f"damaged: {' '.join(f'{type(error).__name__}: {error}'.split())[:120]}") from None


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
        the groups, named as :func:`names` says; and for each folder that does not count why.

    Raises:
        UserError: if a place holds no run, or none counts.
    """
    folders: dict[Path, Path] = {}
    for place in places:
        files = [each for name in ("config_resolved.yaml", "summary.json") for each in place.rglob(name)]
        if not files:
            raise UserError(f"{place}: no run lies there or below (no config_resolved.yaml)")
        folders |= {each.parent.resolve(): each.parent for each in sorted(files)}
    runs, left_out = [], {}
    for folder in folders.values():
        try:
            runs.append(read(folder))
        except UserError as error:
            left_out[folder] = str(error)
    if not runs:
        folder, reason = next(iter(left_out.items()))
        raise UserError(f"none of the {len(left_out)} runs there can be counted; {folder}: {reason}")
    groups: dict[str, list[Run]] = defaultdict(list)
    taken: dict[tuple[str, str, int], Run] = {}
    for name, run in sorted(names(runs), key=lambda each: (each[0], each[1].env, each[1].seed)):
        first = taken.setdefault((name, run.env, run.seed), run)
        if first is run:
            groups[name].append(run)
        else:  # not independent of the first, on the CPU even equal to it
            left_out[run.folder] = f"repeats {first.folder}, with the same configuration and seed"
    return dict(groups), left_out


def names(runs: Iterable[Run]) -> list[tuple[str, Run]]:
    """Names each run so that runs of a task share a name exactly if nothing but the seed differs.

    A name is the algorithm with the overrides that not all runs have; where these do not tell the
    configurations of a task apart, with all that differs between them.
    """
    cells: dict[tuple[str, str], dict[frozenset, list[Run]]] = defaultdict(lambda: defaultdict(list))
    typed: dict[Run, list[str]] = {}
    for run in runs:
        cells[run.algo, run.env][run.config].append(run)
        kept = NO_DIFFERENCE | {"env"}
        typed[run] = [each for each in run.overrides or () if key_of(each).split(".")[0] not in kept]
    shared = set.intersection(*map(set, typed.values()))
    found = []
    for (algo, _), same in cells.items():
        told = [
            [[each for each in typed[run] if each not in shared] for run in runs] for runs in same.values()
        ]
        labels = [" ".join(min(lists, key=lambda each: (len(each), each))) for lists in told]
        if len(set(labels)) < len(same):
            varying = frozenset.union(*same) - frozenset.intersection(*same)
            labels = [" ".join(f"{key}={text}" for key, text in sorted(each & varying)) for each in same]
        for label, members in zip(labels, same.values(), strict=True):
            found += [(f"{algo} {label}".strip(), run) for run in members]
    return found
