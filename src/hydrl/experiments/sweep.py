"""Sweeps: many runs, each in its own process, with a table of results at the end."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from rich.table import Table
from rich.text import Text

from hydrl.config.migrations import old_word
from hydrl.config.schema import KeyScope, keys_with_scope
from hydrl.errors import print_lines, printable, printable_lines
from hydrl.experiments.processes import ProcessPool, TrainingProcess, run_concurrently
from hydrl.run.logging.console import console
from hydrl.run.run_folder import summary

COLUMNS = ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error")
LABELS = {"algo": "", "env": "", "seed": "seed"}  # in every folder's name
COMMON_FILE = "left_out.txt"  # in a sweep's folder: overrides that are in no member's name, one a line
MAX_NAME = 120  # characters of a member's folder; file systems allow 255 bytes


def folder_name(overrides: Sequence[str], left_out: Sequence[str] = ()) -> str:
    """Name of a member's folder: algorithm, environment, other overrides in order, seed.

    Overrides that do not affect the result are left out. The name needs no quoting in a shell or in Hydra.

    Args:
        overrides: overrides of the member.
        left_out: overrides left out of all names in the folder, see :func:`common_overrides`. A member with
            other values names them all, such as ``total_frames_default`` if it has none.
    """
    cell = "gru" if "rnn=gru" in overrides else "lstm"
    labels, without = labels_of(overrides, cell), labels_of(left_out, cell)
    if without.items() <= labels.items():
        labels = {key: value for key, value in labels.items() if key not in without}
    else:
        labels = dict.fromkeys(without, "default") | labels
    parts = []
    for key in sorted(labels, key=lambda key: (key == "seed", key not in LABELS, key)):
        part = LABELS.get(key, f"{key}_") + labels[key]
        parts.append(re.sub(r"[^a-zA-Z0-9.+-]+", "_", part).strip("_."))
    name = "-".join(parts) or "default"
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}"
    return name


def labels_of(overrides: Sequence[str], cell: str = "lstm") -> dict[str, str]:
    """Overrides that affect a run's result, by their old keys; ``cell`` is that of the run's RNN."""
    values = dict(old_word(override.lstrip("+~"), cell).partition("=")[::2] for override in overrides)
    unnamed = keys_with_scope(KeyScope.PROCESS, KeyScope.RECORD)
    return {key: value for key, value in values.items() if re.split(r"[./]", key)[0] not in unnamed}


def common_overrides(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Overrides left out of the names in a sweep's folder: those its first sweep had for all members.

    They are stored in the folder, so that later sweeps give members the same names. A folder of an early
    version, with members and without the file, leaves nothing out.

    Args:
        folder: folder of the sweep.
        overrides: overrides that all members of this sweep share.
    """
    file = folder / COMMON_FILE
    if not file.is_file():
        begun = any(folder.glob("*.log")) or any(path.is_dir() for path in folder.glob("*"))
        named = [override for override in overrides if labels_of([override]).keys() - LABELS.keys()]
        common = [] if begun else named
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{override}\n" for override in common), encoding="utf-8")
    return file.read_text(encoding="utf-8").splitlines()


def train_all(
    lists: Sequence[Sequence[str]],
    folder: Path,
    pool: ProcessPool,
    words: Sequence[str] = (),
    first: int = 0,
    left_out: Sequence[str] = (),
    ended: Callable[[Sequence[str], Path], None] = lambda overrides, folder: None,
) -> int:
    """Trains with each list of overrides and prints a table; a failed run does not end the others.

    Args:
        lists: overrides of each run.
        folder: parent of the run folders, which :func:`folder_name` names.
        pool: runs them; a pool of one prints to this terminal, others to ``FOLDER.log``.
        words: further command-line arguments of each run.
        first: number of the first run.
        left_out: overrides left out of folder names.
        ended: called as each run ends, with its overrides and its folder.

    Returns:
        0 if all finished, else the lowest other exit code (1 is a defect).

    Raises:
        Interrupted: once all have saved.
    """
    common = [word for word in lists[0] if len(lists) > 1 and all(word in overrides for overrides in lists)]
    labels = [" ".join(word for word in overrides if word not in common) for overrides in lists]

    def member(number: int, label: str, overrides: Sequence[str]) -> Iterator[None]:
        print_lines(f"#{number} begins: {label}")
        run = pool.start(
            [*words, *overrides], folder / folder_name(overrides, left_out), shown=pool.limit == 1
        )
        while run.code is None:
            yield
        ended(overrides, run.folder)
        print_lines(f"#{number} {run.status}: {status_note(run)}")

    try:
        with pool:
            run_concurrently(map(member, count(first), labels, lists), pool.limit)
    finally:
        begun = pool.started
        title = f"{folder}: {sum(run.code == 0 for run in begun)} of {len(lists)} finished"
        title += f", {len(lists) - len(begun)} not begun" * (len(begun) < len(lists))
        print_table(f"{title}\n{' '.join(common)}".strip(), zip(count(first), labels, begun, strict=False))
    codes = [run.code for run in begun if run.code]
    return max(1, min(codes)) if codes else 0


def print_table(title: str, rows: Iterable[tuple[int, str, TrainingProcess]]) -> None:
    """Prints the table of runs: number, overrides and result."""
    table = Table(title=Text(printable_lines(title)))
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for number, label, run in rows:
        row = [str(number), label, run.status, *result_cells(run), status_note(run)]
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)


def result_cells(run: TrainingProcess) -> list[str]:
    """Table cells of a run: frames, evaluation, when it was solved, and seconds."""
    # A refused run's folder may hold an earlier run.
    values = summary(run.folder) if run.status in ("finished", "diverged", "interrupted") else {}
    mean, solved = values.get("eval/return_mean"), values.get("solved_at_frames")
    try:
        return [
            f"{values['frames']:,}" if values else "",
            "" if mean is None else f"{mean:,.1f} ± {values['eval/return_std']:,.1f}",
            "" if solved is None else f"{solved:,} frames, {values['solved_at_seconds']:.0f} s",
            f"{values['wall_seconds']:,.0f}" if values else "",
        ]
    except (LookupError, TypeError, ValueError) as error:
        print_lines(f"warning: {run.folder / 'summary.json'} is damaged: {type(error).__name__}: {error}")
        return [""] * 4


def status_note(run: TrainingProcess) -> str:
    """The error of a failed run, or the name of the run's folder."""
    return run.folder.name if run.status in ("finished", "interrupted") else run.error
