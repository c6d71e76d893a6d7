"""What others published of a task, to be drawn beside runs of one's own."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, PositiveInt, ValidationError

from hydrl.config import ROOT
from hydrl.errors import UserError
from hydrl.experiments.runs import Run

FILES = ROOT / "docs" / "published"
MARGIN = 1.05  # of the longest run, up to which a picture shows them
FAR = 5  # times the longest run, beyond which the first of them would leave no room for it

Told = Annotated[str, Field(min_length=1)]
MaybeEmpty = BeforeValidator(lambda value: None if value == "" else value)


class Row(BaseModel, frozen=True, extra="forbid"):
    """A return that somebody published, as a line of ``docs/published/*.csv``.

    Attributes:
        task: Gymnasium's id without its version, and ``version``, as v4, where it is known.
        frames: after which the return was taken, of the environment.
        std: over seeds, where it is known.
        seeds: how many; 2-3 where that differs, and empty where it is not said.
        source: ``owner/name@commit:path`` on GitHub, or any text.
        protocol: what was averaged.
    """

    task: Told
    version: str
    method: Told
    frames: PositiveInt
    return_mean: FiniteFloat = Field(alias="return")
    std: Annotated[Annotated[FiniteFloat, Field(ge=0)] | None, MaybeEmpty]
    seeds: Annotated[str, Field(pattern=r"^(\d+(-\d+)?)?$")]
    source: Told
    protocol: Told
    note: str

    @property
    def by(self) -> str:
        """Whose figure it is: the name of the repository, or the source as it stands."""
        found = re.match(r"[\w.-]+/([\w.-]+)@", self.source)
        return found[1] if found else self.source

    @property
    def link(self) -> str:
        """Where it stands, or an empty text."""
        found = re.fullmatch(r"([\w.-]+/[\w.-]+)@(\w+):(\S+)", self.source)
        if found:
            return f"https://github.com/{found[1]}/blob/{found[2]}/{found[3]}"
        return self.source if re.fullmatch(r"https?://\S+", self.source) else ""


COLUMNS = [field.alias or name for name, field in Row.model_fields.items()]


def read(file: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        UserError: naming the line and the column that cannot be read.
    """
    try:
        lines = csv.DictReader(
            file.read_text(encoding="utf-8-sig").splitlines(), restkey="beyond the columns"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"published={file}: cannot be read: {error}") from None
    if sorted(lines.fieldnames or []) != sorted(COLUMNS):
        raise UserError(f"published={file}: its first line has to be {','.join(COLUMNS)}")
    rows = []
    for line in lines:
        try:
            rows.append(Row.model_validate(line))
        except ValidationError as error:
            wrong = error.errors()[0]
            said = f"{wrong['loc'][0]}={wrong['input']}: {wrong['msg']}"
            raise UserError(f"published={file}, line {lines.line_num}: {said}") from None
    return rows


def task_of(run: Run) -> tuple[str, str]:
    """A run's task by Gymnasium's id, and its version: ``HalfCheetah`` and ``v4``."""
    task, version = re.fullmatch(r"(.*?)(?:-(v\d+))?", run.id or run.env, re.DOTALL).groups()  # type: ignore[union-attr]
    return task, version or ""


def asked(words: str, runs: Iterable[Run]) -> list[Row]:
    """The rows of the runs' tasks that were asked for.

    Args:
        words: ``true``, methods and CSV files, with commas between them; ``false`` for none.
        runs: to be drawn beside.

    Raises:
        UserError: for a word of which there is nothing.
    """
    names = [each.strip().strip("'\"") for each in words.strip("[]").split(",")]
    if words.lower() == "false":
        return []
    tasks = {task_of(run)[0] for run in runs}
    kept = [row for file in sorted(FILES.glob("*.csv")) for row in read(file)]
    rows: list[Row] = []
    for name in names:
        there = read(Path(name).expanduser()) if name.lower().endswith(".csv") else kept
        all_methods = there is not kept or name.lower() == "true"
        fit = [row for row in there if row.task in tasks]
        found = [row for row in fit if all_methods or plain(row.method) == plain(name)]
        if not found:
            what = f"of {', '.join(sorted(tasks))} there is "
            what += f"by {', '.join(sorted({row.method for row in fit}))}" if fit else "none; tasks are "
            what += "" if fit else ", ".join(sorted({row.task for row in there}))
            raise UserError(f"published={name}: there is no such figure; {what}")
        rows += [row for row in found if row not in rows]
    return rows


def plain(method: str) -> str:
    """A method's name as it compares: ``TD-MPC2`` is ``tdmpc2``."""
    return re.sub(r"[\W_]", "", method).lower()


def curves(rows: Iterable[Row], runs: Sequence[Run]) -> dict[str, list[Row]]:
    """The rows of the runs' task, by method, source and seeds, with the version where theirs is another."""
    ours = [task_of(run) for run in runs]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.task in {task for task, _ in ours}:
            found.setdefault((row.method, row.source, row.version, row.seeds), []).append(row)
    named: dict[str, list[Row]] = {}
    for (method, _, version, seeds), members in sorted(found.items()):
        told = [version] if version and {version} != {each for _, each in ours} else []
        told += [f"{seeds} seed{'s' * (seeds != '1')}"] if seeds else []
        name = f"{method}, {members[0].by}" + (f" ({', '.join(told)})" if told else "")
        named.setdefault(name, []).extend(members)
    return {name: sorted(members, key=lambda row: row.frames) for name, members in named.items()}


def reach(found: dict[str, list[Row]], longest: float) -> float:
    """Up to which frame a picture shows them: a little past the longest run, or the first if it is near."""
    first = min((row.frames for members in found.values() for row in members), default=0)
    return MARGIN * (first if longest * MARGIN < first <= longest * FAR else longest)
