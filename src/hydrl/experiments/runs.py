"""Results of run folders, in groups of runs that differ only in seed and environment."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import BaseModel, Field, FiniteFloat, PlainSerializer, PlainValidator, ValidationError

from hydrl import metric_names as names
from hydrl.config.migrations import new_config, new_word
from hydrl.config.overrides import key_of
from hydrl.config.schema import KeyScope, keys_with_scope
from hydrl.errors import UserError
from hydrl.run.run_folder import metric_rows, summary

# Keys that form no groups: algorithm, environment and seed are columns, the others do not affect learning.
COLUMN_KEYS = {"algo", "env", "env.id", "env._target_", "seed"}
IGNORED_KEYS = keys_with_scope(KeyScope.PROCESS, KeyScope.RECORD)
# Files of fields that are not in summary.json.
FILE_OF_FIELD: dict[int | str, str] = {
    "overrides": ".hydra/overrides.yaml",
    **dict.fromkeys(["threshold", "id"], "config_resolved.yaml"),
}

Curve = Annotated[np.ndarray, PlainValidator(np.array), PlainSerializer(np.ndarray.tolist)]


class RunResult(BaseModel, arbitrary_types_allowed=True):
    """Result of a finished or diverged run: its ``summary.json`` and more.

    Attributes:
        id: environment id with version, if it has one.
        curve: evaluations by :func:`read_evaluations`, the final one last. Seconds count from the start of
            training, and so does ``solved_at_seconds`` here.
        threshold: return at which the environment counts as solved.
        overrides: command-line arguments of ``train.py``.
        group: label of the runs that differ from this one only in environment and seed.
        objectives: mean episode sum of each objective in the final evaluation; empty without ``env.weights``.
    """

    algo: str
    env: str
    id: str | None
    seed: int
    status: str
    score: FiniteFloat = Field(validation_alias=names.RETURN_MEAN, serialization_alias=names.RETURN_MEAN)
    solved_at_frames: float | None
    solved_at_seconds: float | None
    versions: dict[str, str]
    folder: Path
    curve: Curve
    threshold: float | None
    overrides: list[str]
    group: str = ""
    objectives: list[FiniteFloat] = []

    @property
    def differences(self) -> set[str]:
        """The overrides that form groups."""
        varied = {override for override in self.overrides if key_of(override) not in COLUMN_KEYS}
        return {override for override in varied if key_of(override).partition(".")[0] not in IGNORED_KEYS}


def read_evaluations(folder: Path, column: str = names.RETURN_MEAN, start: float = 0.0) -> np.ndarray:
    """A run's evaluations so far, ``[evaluations, 3]``: frames, seconds of training, mean return.

    ``column`` selects another column of ``metrics.csv`` instead of the return. Seconds leave out what each
    session took to start; where the log does not say, they are those since the run began less ``start``.
    Empty without that file; an incomplete last line is ignored.

    Raises:
        UserError: for a damaged file.
    """
    columns = ("frames", names.ELAPSED, column, names.FRAMES_PER_SECOND)
    rows = np.array(
        [[row.get(name) for name in columns] for row in metric_rows(folder / "metrics.csv")], float
    )
    rows = rows.reshape(-1, 4)
    frames, speed = rows[:, 0], rows[:, 3]
    rows[:, 1] = np.where(speed > 0, frames / np.where(speed > 0, speed, 1), rows[:, 1] - start)
    return rows[np.isfinite(rows[:, :3]).all(1), :3]


def read_objectives(summary: Mapping[str, Any]) -> list[Any]:
    """Each objective's mean episode sum in a run's summary, in order."""
    values = (summary.get(f"eval/{names.OBJECTIVE.format(number)}") for number in count())
    return [*takewhile(lambda value: value is not None, values)]


def read_run(folder: Path) -> RunResult:
    """Reads a run folder without building or running anything in it.

    Raises:
        UserError: saying why the run does not count.
    """
    if not (result := summary(folder)):
        raise UserError("no readable summary.json: it was killed or is still training")
    status, file = result.get("status"), "summary.json"
    has_ended = not isinstance(status, str) or status in ("finished", "diverged")
    if not has_ended or result.get(names.RETURN_MEAN) is None:
        raise UserError(f"{status} after {result.get('frames')} frames, without a score")
    try:
        start = result.get("start_seconds", 0.0)  # for imports and building
        final = [float(result["frames"]), result["wall_seconds"] - start, float(result[names.RETURN_MEAN])]
        if not np.isfinite(final).all():
            raise ValueError(f"frames, seconds and return are {final}")
        curve = read_evaluations(folder, start=start)
        if result["solved_at_seconds"] is not None:
            at_solved = curve[curve[:, 0] == result["solved_at_frames"], 1]
            result["solved_at_seconds"] = float([*at_solved, result["solved_at_seconds"] - start][0])
        result |= {"folder": folder, "curve": np.vstack([curve[curve[:, 0] < final[0]], final])}
        file = "config_resolved.yaml"
        config = new_config(yaml.safe_load((folder / file).read_text(encoding="utf-8")))
        result["threshold"] = config["eval"]["reward_threshold"]
        result["objectives"] = read_objectives(result)
        result["id"] = config.get("env", {}).get("id")
        file = ".hydra/overrides.yaml"
        overrides = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
        result["overrides"] = [*map(new_word, overrides)]
        return RunResult.model_validate(result)
    except UserError:
        raise
    except ValidationError as error:
        wrong = error.errors()[0]
        file, key = FILE_OF_FIELD.get(wrong["loc"][0], "summary.json"), wrong["loc"][0]
        raise UserError(f"{file} is damaged: {key}: {wrong['msg']}") from None
    except Exception as error:  # whatever a damaged file may hold
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UserError(f"{file} is damaged: {reason}") from None


def load_runs(parents: Iterable[Path]) -> tuple[list[RunResult], dict[Path, str]]:
    """Reads every run in and below folders.

    Returns:
        the runs, sorted by environment, group and seed; and the folders that do not count, with the reason.
    """
    folders = [file.parent for parent in parents for file in sorted(parent.rglob("config_resolved.yaml"))]
    runs: list[RunResult] = []
    skipped: dict[Path, str] = {}
    for folder in {folder.resolve(): folder for folder in folders}.values():
        try:
            runs.append(read_run(folder))
        except UserError as error:
            skipped[folder] = str(error)
    name_groups(runs)
    counted: dict[tuple[str, str, int], RunResult] = {}
    for run in runs:
        if (first := counted.setdefault((run.env, run.group, run.seed), run)) is not run:
            skipped[run.folder] = f"repeats {first.folder}, with the same overrides and seed"
    return [counted[key] for key in sorted(counted)], skipped


def name_groups(runs: Sequence[RunResult]) -> None:
    """Labels each run's group: its algorithm and the overrides that not all runs share."""
    common = set.intersection(*(run.differences for run in runs)) if runs else set()
    for run in runs:
        run.group = " ".join([run.algo, *sorted(run.differences - common)])
