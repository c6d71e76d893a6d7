"""Run folders, read to be compared: what each reached, and groups that differ in more than seed and task."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from pydantic import BaseModel, Field, FiniteFloat, PlainSerializer, PlainValidator, ValidationError

from hydrl.config.migrations import new_config, new_word
from hydrl.config.overrides import key_of
from hydrl.config.schema import Role, keys
from hydrl.errors import UserError
from hydrl.run.run_folder import metric_rows, summary

# Keys that set no groups apart: algorithm, task and seed are told, the others shape nothing that is learned.
TOLD = {"algo", "env", "env.id", "env._target_", "seed"}
NO_DIFFERENCE = keys(Role.PROCESS, Role.RECORD)
# Where what is read of a run lies that is not in its summary.json.
FILES: dict[int | str, str] = {
    "overrides": ".hydra/overrides.yaml",
    **dict.fromkeys(["threshold", "id"], "config_resolved.yaml"),
}

Curve = Annotated[np.ndarray, PlainValidator(np.array), PlainSerializer(np.ndarray.tolist)]


class Run(BaseModel, arbitrary_types_allowed=True):
    """A run that counts: its summary, and

    Attributes:
        id: of the task with its version, where it has one.
        curve: its evaluations as :func:`evaluations` gives them; the closing one is the last. Seconds count
            from when all was built, as ``solved_at_seconds`` does here.
        overrides: what was typed after ``python train.py``.
        group: of those it was loaded with, the ones that differ in no more than task and seed.
    """

    algo: str
    env: str
    id: str | None
    seed: int
    status: str
    score: FiniteFloat = Field(alias="eval/return_mean")
    solved_at_frames: float | None
    solved_at_seconds: float | None
    versions: dict[str, str]
    folder: Path
    curve: Curve
    threshold: float | None
    overrides: list[str]
    group: str = ""

    @property
    def differences(self) -> set[str]:
        """The overrides that set groups apart."""
        words = {each for each in self.overrides if key_of(each) not in TOLD}
        return {each for each in words if key_of(each).partition(".")[0] not in NO_DIFFERENCE}


def evaluations(folder: Path, column: str = "eval/return_mean") -> np.ndarray:
    """A run's evaluations so far, of shape (evaluations, 3): frames, seconds since the start, mean return.

    Another ``column`` of ``metrics.csv`` may stand in the place of the return. None where there is no such
    file; a last line that is still being written is left out.

    Raises:
        UserError: for a damaged file.
    """
    names = ("frames", "time/elapsed", column)
    rows = np.array([[row.get(name) for name in names] for row in metric_rows(folder / "metrics.csv")], float)
    rows = rows.reshape(-1, 3)
    return rows[np.isfinite(rows).all(1)]


def read(folder: Path) -> Run:
    """Reads a run folder; nothing in it is resolved, built or run.

    Raises:
        UserError: saying why the run cannot count.
    """
    if not (found := summary(folder)):
        raise UserError("has no summary.json that can be read: it was killed, or is still training")
    status, file = found.get("status"), "summary.json"
    ended = not isinstance(status, str) or status in ("finished", "diverged")
    if not ended or found.get("eval/return_mean") is None:
        raise UserError(f"{status} after {found.get('frames')} frames, without a score")
    try:
        start = found.get("start_seconds", 0.0)  # of the process, with its imports, and of building all
        closing = [float(found["frames"]), found["wall_seconds"] - start, float(found["eval/return_mean"])]
        if not np.isfinite(closing).all():
            raise ValueError(f"frames, seconds and return are {closing}")
        curve = evaluations(folder) - [0.0, start, 0.0]
        if found["solved_at_seconds"] is not None:
            found["solved_at_seconds"] -= start
        file = "config_resolved.yaml"
        config = new_config(yaml.safe_load((folder / file).read_text(encoding="utf-8")))
        made = {
            "folder": folder,
            "curve": np.vstack([curve[curve[:, 0] < closing[0]], closing]),
            "threshold": config["eval"]["reward_threshold"],
            "id": config.get("env", {}).get("id"),
        }
        file = ".hydra/overrides.yaml"
        typed = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
        made["overrides"] = [*map(new_word, typed)]
        return Run.model_validate(found | made)
    except UserError:
        raise
    except ValidationError as error:
        wrong = error.errors()[0]
        file, key = FILES.get(wrong["loc"][0], "summary.json"), wrong["loc"][0]
        raise UserError(f"{file} is damaged: {key}: {wrong['msg']}") from None
    except Exception as error:  # whatever a damaged file may hold
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UserError(f"{file} is damaged: {reason}") from None


def load(places: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Reads every run in and below ``places``, each once.

    Returns:
        the runs by task, group and seed; and the folders that do not count, with the reason.
    """
    found = [each.parent for place in places for each in sorted(place.rglob("config_resolved.yaml"))]
    runs: list[Run] = []
    left_out: dict[Path, str] = {}
    for folder in {each.resolve(): each for each in found}.values():
        try:
            runs.append(read(folder))
        except UserError as error:
            left_out[folder] = str(error)
    name_groups(runs)
    counted: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        if (first := counted.setdefault((run.env, run.group, run.seed), run)) is not run:
            left_out[run.folder] = f"repeats {first.folder}, with the same overrides and seed"
    return [counted[each] for each in sorted(counted)], left_out


def name_groups(runs: Sequence[Run]) -> None:
    """Names each run's group: its algorithm, with the overrides that set it apart and not all runs have."""
    common = set.intersection(*(run.differences for run in runs)) if runs else set()
    for run in runs:
        run.group = " ".join([run.algo, *sorted(run.differences - common)])
