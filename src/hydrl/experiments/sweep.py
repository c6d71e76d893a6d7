"""Many runs, a process for each, and a table of them at the end: Hydra's sweeps and others."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from rich.table import Table
from rich.text import Text

from hydrl.config.migrations import old_word
from hydrl.config.schema import Role, keys
from hydrl.errors import print_lines, printable, printable_lines
from hydrl.experiments.processes import Training, Trainings, side_by_side
from hydrl.run.logging.console import console
from hydrl.run.run_folder import summary

COLUMNS = ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error")
LABELS = {"algo": "", "env": "", "seed": "seed"}  # what people look for, in every name
LEFT_OUT = "left_out.txt"  # of a sweep's folder: what no member's name says, a line each
LONGEST = 120  # characters of a member's folder; file systems take 255 bytes


def folder_name(overrides: Sequence[str], left_out: Sequence[str] = ()) -> str:
    """A member's folder by its overrides in an order of its own: algorithm, environment, ..., seed.

    What makes no other run is left out, and nothing in it needs quotes in a shell or in Hydra's grammar.

    Args:
        overrides: the member's.
        left_out: what the names in its folder do without, see :func:`shared`. A member that has it otherwise
            says so of each, that no name is another's: ``total_frames_default`` where it says nothing.
    """
    given, without = named(overrides), named(left_out)
    if without.items() <= given.items():
        given = {key: value for key, value in given.items() if key not in without}
    else:
        given = dict.fromkeys(without, "default") | given
    parts = []
    for key in sorted(given, key=lambda key: (key == "seed", key not in LABELS, key)):
        part = LABELS.get(key, f"{key}_") + given[key]
        parts.append(re.sub(r"[^a-zA-Z0-9.+-]+", "_", part).strip("_."))
    name = "-".join(parts) or "default"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}"
    return name


def named(overrides: Sequence[str]) -> dict[str, str]:
    """What a member may be named by: the overrides that make another run, by their first keys."""
    given = dict(old_word(each.lstrip("+~")).partition("=")[::2] for each in overrides)
    unnamed = keys(Role.PROCESS, Role.RECORD)
    return {key: value for key, value in given.items() if re.split(r"[./]", key)[0] not in unnamed}


def shared(folder: Path, overrides: Sequence[str]) -> list[str]:
    """What names in a sweep's folder leave out: what its first sweep said of all members, but who they are.

    It is kept there, so that any later list finds the members again. A folder from before, with members and
    without that file, leaves nothing out.

    Args:
        folder: of the sweep.
        overrides: of a member, those that the sweep says of all.
    """
    kept = folder / LEFT_OUT
    if not kept.is_file():
        begun = any(folder.glob("*.log")) or any(each.is_dir() for each in folder.glob("*"))
        found = [] if begun else [each for each in overrides if named([each]).keys() - LABELS.keys()]
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(f"{each}\n" for each in found), encoding="utf-8")
    return kept.read_text(encoding="utf-8").splitlines()


def train_all(
    lists: Sequence[Sequence[str]],
    folder: Path,
    pool: Trainings,
    words: Sequence[str] = (),
    first: int = 0,
    left_out: Sequence[str] = (),
    ended: Callable[[Sequence[str], Path], None] = lambda overrides, folder: None,
) -> int:
    """Trains with each list of overrides and prints the table; a run that fails ends no other.

    Args:
        lists: the overrides of each run.
        folder: each gets a folder in it, named by :func:`folder_name`.
        pool: has them side by side; a single one prints where this process does, others to ``FOLDER.log``.
        words: of the command line that each takes as well.
        first: the number of the first run.
        left_out: what names do without.
        ended: called as each run ends, with its overrides and its folder.

    Returns:
        0 if all have finished; else the least of the other exit codes, as 1, a defect's, weighs most.

    Raises:
        Interrupted: once all have saved.
    """
    common = [word for word in lists[0] if len(lists) > 1 and all(word in each for each in lists)]
    labels = [" ".join(word for word in each if word not in common) for each in lists]

    def member(number: int, label: str, overrides: Sequence[str]) -> Iterator[None]:
        print_lines(f"#{number} begins: {label}")
        run = pool.start(
            [*words, *overrides], folder / folder_name(overrides, left_out), shown=pool.limit == 1
        )
        while run.code is None:
            yield
        ended(overrides, run.folder)
        print_lines(f"#{number} {run.status}: {note(run)}")

    try:
        with pool:
            side_by_side(map(member, count(first), labels, lists), pool.limit)
    finally:
        begun = pool.started
        title = f"{folder}: {sum(each.code == 0 for each in begun)} of {len(lists)} finished"
        title += f", {len(lists) - len(begun)} not begun" * (len(begun) < len(lists))
        show(f"{title}\n{' '.join(common)}".strip(), zip(count(first), labels, begun, strict=False))
    codes = [each.code for each in begun if each.code]
    return max(1, min(codes)) if codes else 0


def show(title: str, rows: Iterable[tuple[int, str, Training]]) -> None:
    """Prints the table: the number of each run, its overrides and what became of it."""
    table = Table(title=Text(printable_lines(title)))
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for number, label, each in rows:
        row = [str(number), label, each.status, *cells(each), note(each)]
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)


def cells(run: Training) -> list[str]:
    """A run's frames, evaluation, when it was solved, and seconds, for the table."""
    # One that was refused may have found an earlier run there.
    found = summary(run.folder) if run.status in ("finished", "diverged", "interrupted") else {}
    mean, solved = found.get("eval/return_mean"), found.get("solved_at_frames")
    try:
        return [
            f"{found['frames']:,}" if found else "",
            "" if mean is None else f"{mean:,.1f} ± {found['eval/return_std']:,.1f}",
            "" if solved is None else f"{solved:,} frames, {found['solved_at_seconds']:.0f} s",
            f"{found['wall_seconds']:,.0f}" if found else "",
        ]
    except (LookupError, TypeError, ValueError) as error:
        print_lines(f"warning: {run.folder / 'summary.json'} is damaged: {type(error).__name__}: {error}")
        return [""] * 4


def note(run: Training) -> str:
    """The error of a run that has ended, or the name of its folder."""
    return run.folder.name if run.status in ("finished", "interrupted") else run.error
