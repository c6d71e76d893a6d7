"""Sweeps: a process for each member, and the table of them at the end."""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from hydrl.config.overrides import key_of
from hydrl.config.settings import Role, keys
from hydrl.errors import UserError
from hydrl.run.screen import console
from hydrl.study import runs
from hydrl.study.pool import Training, Trainings

OF_THE_SWEEP = r"hydra[./](launcher|mode|run|sweep|sweeper)\b"  # Hydra's keys that no member takes
NUMBERS = ("#", "frames", "evaluation", "seconds")  # columns of the table
LONGEST = 120  # characters of a member's folder; file systems take 255 bytes


def folder_name(overrides: Sequence[str]) -> str:
    """A member's folder by its overrides in an order of its own: algorithm, environment, ..., seed.

    What makes no other run is left out, and nothing in it needs quotes in a shell or in Hydra's grammar.
    """
    given = dict(each.lstrip("+~").partition("=")[::2] for each in overrides)
    labels = {"algo": "", "env": "", "seed": "seed"}
    parts = []
    for key in sorted(given, key=lambda key: (key == "seed", key not in labels, key)):
        if re.split(r"[./]", key)[0] not in keys(Role.PROCESS, Role.RECORD):
            part = labels.get(key, f"{key}_") + given[key]
            parts.append(re.sub(r"[^a-zA-Z0-9.+-]+", "_", part).strip("_."))
    name = "-".join(parts) or "default"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}"
    return name


def launch(config: DictConfig, lists: Sequence[Sequence[str]], limit: int, first: int) -> None:
    """Runs the members of a sweep and prints their table; a member that fails ends no other.

    Args:
        config: what Hydra composed for the sweep.
        lists: the overrides of each member.
        limit: members at a time; a single one prints where this process does, others to ``FOLDER.log``.
        first: the number of the first member.

    Raises:
        SystemExit: with the exit code, if one has not finished; of several members' the least, as 1, a
            defect's, weighs most.
        Interrupted: once all have saved.
    """
    if type(limit) is not int or limit < 1:
        raise UserError(f"hydra.launcher.n_jobs={limit}: give a whole number, 1 or more")
    folder, passed_on, alone = Path(config.hydra.sweep.dir), arguments(config), limit == 1
    common = [word for word in lists[0] if len(lists) > 1 and all(word in each for each in lists)]
    labels = [" ".join(word for word in each if word not in common) for each in lists]
    begun: list[Training] = []

    def begin(pool: Trainings) -> Iterator[Training]:
        for number, (label, each) in enumerate(zip(labels, lists, strict=True), first):
            print("\n" * alone + f"#{number} begins: {label}", flush=True)
            begun.append(pool.start([*passed_on, *each], folder / folder_name(each), alone))
            yield begun[-1]

    try:
        with Trainings(limit) as pool:
            for ended in pool.each(begin(pool)):
                if not alone:
                    print(f"#{first + begun.index(ended)} {ended.status}: {note(ended)}", flush=True)
                elif ended.printed or ended.code:
                    print(ended.printed, end="", file=sys.stderr, flush=True)
                else:
                    ended.log.unlink()
    finally:
        title = f"{folder}: {sum(each.status == 'finished' for each in begun)} of {len(lists)} finished"
        title += f", {len(lists) - len(begun)} not begun" * (len(begun) < len(lists))
        rows = [[str(first + n), labels[n], each.status, *cells(each)] for n, each in enumerate(begun)]
        show(f"{title}\n{' '.join(common)}".strip(), rows)
        if len(begun) < len(lists) or any(each.status == "interrupted" for each in begun):
            print(f"go on with the same command and hydra.sweep.dir={folder} resume=auto")
    if codes := [each.code for each in begun if each.code]:
        raise SystemExit(max(1, min(codes)))


def arguments(config: DictConfig) -> list[str]:
    """What of the sweep's own command line each member takes as well: where configs are, and Hydra's keys."""
    added = [each.path for each in config.hydra.runtime.config_sources if each.provider == "command-line"]
    hydras = [each for each in config.hydra.overrides.hydra if not re.match(OF_THE_SWEEP, key_of(each))]
    return [f"--config-dir={path}" for path in added] + hydras


def note(run: Training) -> str:
    """The error of a member that has ended, or the name of its folder."""
    if run.status in ("finished", "interrupted"):
        return run.folder.name
    return run.error if len(run.error) <= 100 else f"{run.error[:99]}…"


def cells(run: Training) -> list[str]:
    """A member's row of the table from the frames on; a refused one may have found an earlier run there."""
    found = runs.summary(run.folder) if run.status in ("finished", "diverged", "interrupted") else {}
    mean, solved = found.get("eval/return_mean"), found.get("solved_at_frames")
    return [
        f"{found['frames']:,}" if found else "",
        "" if mean is None else f"{mean:,.1f} ± {found['eval/return_std']:,.1f}",
        "" if solved is None else f"{solved:,} frames, {found['solved_at_seconds']:.0f} s",
        f"{found['wall_seconds']:,.0f}" if found else "",
        note(run),
    ]


def show(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Prints the table."""
    table = Table(title=Text(title))
    for name in ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error"):
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)
