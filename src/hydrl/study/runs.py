"""Run folders, read to be compared: what each reached, and which of them differ in more than the seed.

A folder may be a stranger's: it is read as numbers and text, and nothing in it is resolved, built or run.
"""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import OmegaConf

from hydrl.config.mistakes import find, paths, show
from hydrl.config.overrides import key_of
from hydrl.errors import UserError
from hydrl.run.folder import refuse_links

# What may differ between runs that are repetitions of one another, or is told by their task.
NO_DIFFERENCE = (
    "seed",
    "run_dir",
    "resume",
    "trust",
    "logger",
    "log_every_frames",
    "checkpoint_every_frames",
    "keep_checkpoints",
    "hydra",
    "algo",
    "task",
)
CURVE = ["frames", "time/elapsed", "eval/return_mean"]


@dataclass(frozen=True, eq=False)
class Run:
    """A run that counts.

    Attributes:
        folder: where it lies.
        algo: the algorithm.
        env: the task.
        seed: of the run.
        status: ``finished`` or ``diverged``.
        score: mean return of the closing evaluation, in the environment's own units; the last one's if it
            diverged.
        curve: of shape (3, evaluations): environment frames, seconds since the start, mean return; the
            score is its end.
        start: mean return of the first training episodes, as of a policy that has hardly learned.
        threshold: the mean return that counts as solved, if the task has one.
        solved: frames and seconds to the first evaluation at the threshold, if there was one.
        overrides: what was typed after ``python train.py``; ``None`` if the folder does not say.
        config: ``config_resolved.yaml``.
        versions: of what it was made with.
    """

    folder: Path
    algo: str
    env: str
    seed: int
    status: str
    score: float
    curve: np.ndarray
    start: float
    threshold: float | None
    solved: tuple[float, float] | None
    overrides: Sequence[str] | None
    config: Mapping[str, Any]
    versions: Mapping[str, str]


def folders(places: Iterable[Path]) -> list[Path]:
    """The run folders in and below ``places``, each once: those with a configuration or a summary.

    Raises:
        UserError: if a place is no folder or holds no run.
    """
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place}: there is no such folder")
        files = [each for name in ("config_resolved.yaml", "summary.json") for each in place.rglob(name)]
        if not files:
            raise UserError(f"{place}: no run lies there or below (none has a config_resolved.yaml)")
        found |= {each.parent.resolve(): each.parent for each in sorted(files)}
    return list(found.values())


def read(folder: Path) -> Run:
    """Reads a run folder.

    Raises:
        UserError: saying why the run cannot count.
    """
    refuse_links(folder)
    if not (folder / "summary.json").is_file():
        raise UserError("has no summary.json: it was killed, or is still training")
    try:
        summary = json.loads((folder / "summary.json").read_text())
        status = summary.get("status", "finished")  # early runs wrote a summary only at their end
        if status not in ("finished", "diverged"):
            raise UserError(f"{status} after {summary['frames']:,} frames")
        if summary["eval/return_mean"] is None:
            raise UserError(f"{status} before its first evaluation")
        config = cast(dict[str, Any], plain(folder / "config_resolved.yaml"))
        curve = columns(folder / "metrics.csv", CURVE)
        training = columns(folder / "metrics.csv", ["train/return"])
        threshold = find(config, "eval.solved_at")
        closing = [[float(summary[key])] for key in ("frames", "wall_seconds", "eval/return_mean")]
        if not np.isfinite(closing).all():
            raise UserError(f"damaged: its closing evaluation is {summary['eval/return_mean']}")
        curve = np.hstack([curve[:, curve[0] < closing[0][0]], closing])
        solved = summary["solved_at_frames"], summary["solved_at_seconds"]
        return Run(
            folder=folder,
            algo=str(summary["algo"]),
            env=str(summary["env"]),
            seed=int(summary["seed"]),
            status=status,
            score=float(closing[2][0]),
            curve=curve,
            start=float(training[0, 0] if training.size else curve[2, 0]),
            threshold=None if threshold is None else float(threshold),
            solved=None if None in solved else (float(solved[0]), float(solved[1])),
            overrides=read_overrides(folder),
            config=config,
            versions={name: str(each) for name, each in summary.get("versions", {}).items()},
        )
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file or a stranger's may hold
        raise UserError(f"damaged: {' '.join(f'{type(error).__name__}: {error}'.split())[:120]}") from None


def columns(path: Path, names: Sequence[str]) -> np.ndarray:
    """The rows of a CSV file that have a finite number in each of ``names``, of shape (names, rows)."""
    with path.open(newline="") as file:
        rows = [[float(row.get(name) or "nan") for name in names] for row in csv.DictReader(file)]
    return np.array([row for row in rows if np.isfinite(row).all()]).reshape(-1, len(names)).T


def plain(path: Path) -> Any:
    """A YAML file as it stands, references unresolved."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def read_overrides(folder: Path) -> list[str] | None:
    """What was typed for the run, if its folder says."""
    path = folder / ".hydra" / "overrides.yaml"
    return [" ".join(str(each).split()) for each in plain(path)] if path.is_file() else None


def load(places: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Reads every run in and below ``places``.

    Returns:
        the runs that count, and for each other folder why it does not.

    Raises:
        UserError: if a place holds no run, or none counts.
    """
    runs: list[Run] = []
    left_out: dict[Path, str] = {}
    for folder in folders(places):
        try:
            runs.append(read(folder))
        except UserError as error:
            left_out[folder] = str(error)
    if not runs:
        folder, reason = next(iter(left_out.items()))
        raise UserError(f"none of the {len(left_out)} runs there can be counted; {folder}: {reason}")
    return runs, left_out


def group(runs: Sequence[Run]) -> tuple[dict[str, list[Run]], dict[Path, str]]:
    """Runs that differ only in seed and task, by the name of what they share and others do not.

    A name is the algorithm with the overrides that not all runs have. Where what was typed and the resolved
    configurations disagree, the latter decide: equal ones share the name that more runs have, and those of
    one name that differ, as two versions of hydrl may make them, are told apart by the keys that differ.

    Returns:
        the groups, and the runs left out because another one has their group, task and seed.
    """
    typed = {run: words(run) for run in runs}
    shared = set.intersection(*(set(each) for each in typed.values()))
    names = {run: " ".join([run.algo, *(each for each in typed[run] if each not in shared)]) for run in runs}
    values = {run: flat(run.config) for run in runs}
    common = Counter(names.values())
    equal = gather(runs, lambda run: (run.algo, run.env, frozenset(values[run].items())))
    for same in equal:
        name = min((names[run] for run in same), key=lambda name: (-common[name], len(name), name))
        names |= dict.fromkeys(same, name)
    for cell in gather(runs, lambda run: (names[run], run.env)):
        keys = sorted(set().union(*(values[run] for run in cell)))
        varying = [key for key in keys if len({values[run].get(key) for run in cell}) > 1]
        for run in cell:
            names[run] = " ".join([names[run], *(f"{key}={values[run].get(key, 'none')}" for key in varying)])
    groups: dict[str, list[Run]] = defaultdict(list)
    left_out: dict[Path, str] = {}
    taken: dict[tuple[str, str, int], Run] = {}
    for run in sorted(runs, key=lambda run: (names[run], run.env, run.seed)):
        first = taken.setdefault((names[run], run.env, run.seed), run)
        if first is run:
            groups[names[run]].append(run)
        else:  # not independent of the first, on the CPU even equal to it
            left_out[run.folder] = f"repeats {first.folder}, with the same configuration and seed"
    return dict(groups), left_out


def gather(runs: Sequence[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    """The runs in lists of equal ``key``."""
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return list(found.values())


def words(run: Run) -> list[str]:
    """The overrides that can make a difference, numbers as they were understood."""
    kept = []
    for override in run.overrides or ():
        key = key_of(override)
        if (
            key in ("env", "env.id", "env._target_")
            or key.replace("/", ".").partition(".")[0] in NO_DIFFERENCE
        ):
            continue
        value = find(run.config, key)
        is_value = "=" in override and isinstance(value, int | float | str)
        kept.append(f"{key}={show(value)}" if is_value else override.lstrip("+"))
    return kept


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """What can make a difference, as text by its dotted key."""
    kept = [key for key in paths(config) if key.partition(".")[0] not in NO_DIFFERENCE]
    leaves = {key: find(config, key) for key in kept}
    return {key: json.dumps(value) for key, value in leaves.items() if not isinstance(value, Mapping)}
