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
from hydrl.metric_names import RETURN_MEAN, RETURN_STD
from hydrl.run.logging.console import console
from hydrl.run.run_folder import summary

COLUMNS = ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error")
LABELS = {"algo": "", "env": "", "seed": "seed"}  # in every folder's name
COMMON_FILE = "left_out.txt"  # in a sweep's folder: overrides that no member's name has, one a line
MAX_NAME = 120  # characters of a member's folder; file systems allow 255 bytes


def folder_name(overrides: Sequence[str], common: Sequence[str] = ()) -> str:
    """Name of a member's folder: algorithm, environment, other overrides in order, seed.

    Overrides that do not affect the result are not in it. The name needs no quoting in a shell or in Hydra.

    Args:
        overrides: overrides of the member.
        common: overrides that no name in the sweep's folder has, see :func:`common_overrides`. A member with
            other values names them all, such as ``total_frames_default`` if it has none.
    """
    cell = "gru" if ("rnn", "gru") in map(key_and_value, overrides) else "lstm"
    labels, unnamed = labels_of(overrides, cell), labels_of(common, cell)
    if unnamed.items() <= labels.items():
        labels = {key: value for key, value in labels.items() if key not in unnamed}
    else:
        labels = dict.fromkeys(unnamed, "default") | labels
    parts = []
    for key in sorted(labels, key=lambda key: (key == "seed", key not in LABELS, key)):
        part = LABELS.get(key, f"{key}_") + labels[key]
        parts.append(re.sub(r"[^a-zA-Z0-9.+-]+", "_", part).strip("_."))
    name = "-".join(parts) or "default"
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}"
    return name


def key_and_value(override: str) -> tuple[str, str]:
    """Key and value of an override."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def labels_of(overrides: Sequence[str], cell: str = "lstm") -> dict[str, str]:
    """Overrides that affect a run's result, by their old keys, which name the RNN's ``cell``."""
    labels = dict(key_and_value(old_word(override)) for override in overrides)
    labels = {re.sub(r"\bmemory\.lstm$", f"memory.{cell}", key): value for key, value in labels.items()}
    ignored = keys_with_scope(KeyScope.PROCESS, KeyScope.RECORD)
    return {key: value for key, value in labels.items() if re.split(r"[./]", key)[0] not in ignored}


def common_overrides(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Overrides that no name in a sweep's folder has: those its first sweep had for all members.

    They are stored in the folder, so that later sweeps give members the same names. In a folder of an early
    version, with members and without the file, names have all overrides.

    Args:
        folder: folder of the sweep.
        overrides: overrides that all members of this sweep share.
    """
    file = folder / COMMON_FILE
    if not file.is_file():
        has_members = any(folder.glob("*.log")) or any(path.is_dir() for path in folder.glob("*"))
        others = [override for override in overrides if labels_of([override]).keys() - LABELS.keys()]
        common = [] if has_members else others
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{override}\n" for override in common), encoding="utf-8")
    return file.read_text(encoding="utf-8").splitlines()


def train_all(
    members: Sequence[Sequence[str]],
    folder: Path,
    pool: ProcessPool,
    arguments: Sequence[str] = (),
    first: int = 0,
    common: Sequence[str] = (),
    on_end: Callable[[Sequence[str], Path], None] = lambda overrides, folder: None,
) -> int:
    """Trains with each list of overrides and prints a table; a failed run does not end the others.

    Args:
        members: overrides of each run.
        folder: parent of the run folders, which :func:`folder_name` names.
        pool: runs them; a pool of one prints to this terminal, others to ``FOLDER.log``.
        arguments: further command-line arguments of each run.
        first: number of the first run.
        common: overrides that no folder's name has.
        on_end: called as each run ends, with its overrides and its folder.

    Returns:
        0 if all finished, else the lowest other exit code (1 is a defect).

    Raises:
        Interrupted: once all have saved.
    """
    several = len(members) > 1
    shared = [word for word in members[0] if several and all(word in overrides for overrides in members)]
    labels = [" ".join(word for word in overrides if word not in shared) for overrides in members]

    def train(number: int, label: str, overrides: Sequence[str]) -> Iterator[None]:
        print_lines(f"#{number} starts: {label}")
        run_folder = folder / folder_name(overrides, common)
        run = pool.start([*arguments, *overrides], run_folder, shown=pool.limit == 1)
        while run.code is None:
            yield
        on_end(overrides, run.folder)
        print_lines(f"#{number} {run.status}: {status_note(run)}")

    try:
        with pool:
            run_concurrently(map(train, count(first), labels, members), pool.limit)
    finally:
        runs, total = pool.started, len(members)
        title = f"{folder}: {sum(run.code == 0 for run in runs)} of {total} finished"
        title += f", {total - len(runs)} not started" * (len(runs) < total)
        print_table(f"{title}\n{' '.join(shared)}".strip(), zip(count(first), labels, runs, strict=False))
    codes = [run.code for run in runs if run.code]
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
    # The folder of a refused run may be of an earlier one.
    values = summary(run.folder) if run.status in ("finished", "diverged", "interrupted") else {}
    mean, solved = values.get(RETURN_MEAN), values.get("solved_at_frames")
    try:
        return [
            f"{values['frames']:,}" if values else "",
            "" if mean is None else f"{mean:,.1f} ± {values[RETURN_STD]:,.1f}",
            "" if solved is None else f"{solved:,} frames, {values['solved_at_seconds']:.0f} s",
            f"{values['wall_seconds']:,.0f}" if values else "",
        ]
    except (LookupError, TypeError, ValueError) as error:
        print_lines(f"warning: {run.folder / 'summary.json'} is damaged: {type(error).__name__}: {error}")
        return [""] * 4


def status_note(run: TrainingProcess) -> str:
    """The error of a failed run, or the name of the run's folder."""
    return run.folder.name if run.status in ("finished", "interrupted") else run.error
