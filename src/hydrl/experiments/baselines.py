"""Published baseline returns, drawn in reports beside your own runs."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, PositiveInt, ValidationError

from hydrl.config import ROOT
from hydrl.errors import UserError
from hydrl.experiments.runs import RunResult

FILES = ROOT / "docs" / "published"
MARGIN = 1.05  # a figure ends at this multiple of its longest run
MAX_EXTENSION = 5  # or at the first baseline, if that is within this multiple

NonEmpty = Annotated[str, Field(min_length=1)]
MaybeEmpty = BeforeValidator(lambda value: None if value == "" else value)


class PublishedReturn(BaseModel, frozen=True, extra="forbid"):
    """A published return, one line of ``docs/published/*.csv``.

    Attributes:
        task: Gymnasium id without its version.
        version: version of the id, such as v4, if known.
        frames: environment steps before the return was measured.
        std: standard deviation over seeds, if known.
        seeds: number of seeds, or a range such as 2-3; empty if unknown.
        source: ``owner/name@commit:path`` on GitHub, or any text.
        protocol: what was averaged.
    """

    task: NonEmpty
    version: str
    method: NonEmpty
    frames: PositiveInt
    return_mean: FiniteFloat = Field(alias="return")
    std: Annotated[Annotated[FiniteFloat, Field(ge=0)] | None, MaybeEmpty]
    seeds: Annotated[str, Field(pattern=r"^(\d+(-\d+)?)?$")]
    source: NonEmpty
    protocol: NonEmpty
    note: str

    @property
    def by(self) -> str:
        """Name of the source's repository, or the source itself."""
        match = re.match(r"[\w.-]+/([\w.-]+)@", self.source)
        return match[1] if match else self.source

    @property
    def link(self) -> str:
        """URL of the source, or an empty text."""
        match = re.fullmatch(r"([\w.-]+/[\w.-]+)@(\w+):(\S+)", self.source)
        if match:
            return f"https://github.com/{match[1]}/blob/{match[2]}/{match[3]}"
        return self.source if re.fullmatch(r"https?://\S+", self.source) else ""


COLUMNS = [field.alias or name for name, field in PublishedReturn.model_fields.items()]


def read_baselines(file: Path) -> list[PublishedReturn]:
    """Reads a CSV file of published returns.

    Raises:
        UserError: naming the unreadable line and column.
    """
    try:
        lines = csv.DictReader(
            file.read_text(encoding="utf-8-sig").splitlines(), restkey="beyond the columns"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"published={file}: cannot be read: {error}.") from None
    if sorted(lines.fieldnames or []) != sorted(COLUMNS):
        raise UserError(f"published={file}: wrong header. Write {','.join(COLUMNS)} as the first line.")
    rows = []
    for line in lines:
        try:
            rows.append(PublishedReturn.model_validate(line))
        except ValidationError as error:
            wrong = error.errors()[0]
            message = f"{wrong['loc'][0]}={wrong['input']}: {wrong['msg']}"
            raise UserError(f"published={file}: line {lines.line_num}: {message}.") from None
    return rows


def task_of(run: RunResult) -> tuple[str, str]:
    """Gymnasium id and version of a run's environment: ``HalfCheetah``, ``v4``."""
    task, version = re.fullmatch(r"(.*?)(?:-(v\d+))?", run.id or run.env, re.DOTALL).groups()  # type: ignore[union-attr]
    return task, version or ""


def select_baselines(choice: str, runs: Iterable[RunResult]) -> list[PublishedReturn]:
    """Selects published returns of the runs' environments.

    Args:
        choice: ``true``, or methods and CSV files separated by commas; ``false`` for none.
        runs: runs of the report.

    Raises:
        UserError: for a method or file without any such return.
    """
    names = [name.strip().strip("'\"") for name in choice.strip("[]").split(",")]
    if choice.lower() == "false":
        return []
    tasks = {task_of(run)[0] for run in runs}
    included = [row for file in sorted(FILES.glob("*.csv")) for row in read_baselines(file)]
    rows: list[PublishedReturn] = []
    for name in names:
        available = read_baselines(Path(name).expanduser()) if name.lower().endswith(".csv") else included
        all_methods = available is not included or name.lower() == "true"
        fit = [row for row in available if row.task in tasks]
        matching = [row for row in fit if all_methods or normalize_name(row.method) == normalize_name(name)]
        if not matching:
            known = {row.method for row in fit} or {row.task for row in available}
            choices = f"{'Methods' if fit else 'Environments'}: {', '.join(sorted(known))}"
            where = f"published returns for {', '.join(sorted(tasks))}"
            raise UserError(f"published={name}: no such {where}. {choices}.")
        rows += [row for row in matching if row not in rows]
    return rows


def normalize_name(method: str) -> str:
    """A method's name for comparison: ``TD-MPC2`` becomes ``tdmpc2``."""
    return re.sub(r"[\W_]", "", method).lower()


def baseline_curves(
    rows: Iterable[PublishedReturn], runs: Sequence[RunResult]
) -> dict[str, list[PublishedReturn]]:
    """Rows of the runs' environment by label: method, source and seeds, and version if it differs."""
    run_tasks = [task_of(run) for run in runs]
    by_source: dict[tuple[Any, ...], list[PublishedReturn]] = {}
    for row in rows:
        if row.task in {task for task, _ in run_tasks}:
            by_source.setdefault((row.method, row.source, row.version, row.seeds), []).append(row)
    named: dict[str, list[PublishedReturn]] = {}
    for (method, _, version, seeds), members in sorted(by_source.items()):
        details = [version] if version and {version} != {used for _, used in run_tasks} else []
        details += [f"{seeds} seed{'s' * (seeds != '1')}"] if seeds else []
        name = f"{method}, {members[0].by}" + (f" ({', '.join(details)})" if details else "")
        named.setdefault(name, []).extend(members)
    return {name: sorted(members, key=lambda row: row.frames) for name, members in named.items()}


def last_frame(curves: dict[str, list[PublishedReturn]], longest: float) -> float:
    """Last frame of a figure: slightly past the longest run, or at the first baseline if that is near."""
    first = min((row.frames for members in curves.values() for row in members), default=0)
    return MARGIN * (first if longest * MARGIN < first <= longest * MAX_EXTENSION else longest)
