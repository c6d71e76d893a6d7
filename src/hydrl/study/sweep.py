"""Sweeps: a process for each member, and the table of them at the end."""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from hydrl.config.command_line import Options
from hydrl.config.overrides import key_of
from hydrl.config.settings import Role, keys
from hydrl.errors import UserError
from hydrl.run.screen import console
from hydrl.study import runs
from hydrl.study.pool import Training, Trainings

STATUS = {0: "finished", 2: "refused", 3: "diverged", 143: "interrupted", -15: "interrupted"}  # by exit code
WHERE = ("config_path", "config_name", "config_dir")  # Hydra's options that each member takes as well
OF_THE_SWEEP = r"hydra[./](launcher|mode|run|sweep|sweeper)\b"  # and its keys that none does
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


@dataclass
class Member:
    """A run of a sweep.

    Attributes:
        label: its number and the overrides that not all members have.
        training: its process, once it has begun.
    """

    number: int
    overrides: Sequence[str]
    label: str
    folder: Path
    training: Training | None = None

    @property
    def code(self) -> int:
        """The exit code, minus the signal that killed it."""
        return (self.training and self.training.code) or 0

    @property
    def status(self) -> str:
        """What became of it, in a word."""
        return STATUS.get(self.code, "failed")

    @property
    def told(self) -> str:
        """Its error, or the name of its folder."""
        error = self.training.error if self.training and self.code and self.status != "interrupted" else ""
        return (error if len(error) <= 100 else f"{error[:99]}…") or self.folder.name

    def cells(self) -> list[str]:
        """Its row of the table, from the frames on; others than these may have found an earlier run there."""
        ended = self.status in ("finished", "diverged", "interrupted")
        summary = runs.summary(self.folder) if ended else {}
        mean, solved = summary.get("eval/return_mean"), summary.get("solved_at_frames")
        return [
            f"{summary['frames']:,}" if summary else "",
            "" if mean is None else f"{mean:,.1f} ± {summary['eval/return_std']:,.1f}",
            "" if solved is None else f"{solved:,} frames, {summary['solved_at_seconds']:.0f} s",
            f"{summary['wall_seconds']:,.0f}" if summary else "",
            self.told,
        ]


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
    folder, passed_on = Path(config.hydra.sweep.dir), arguments(config)
    common = [word for word in lists[0] if len(lists) > 1 and all(word in each for each in lists)]
    members = []
    for number, each in enumerate(lists, first):
        label = " ".join(word for word in each if word not in common)
        members.append(Member(number, each, label, folder / folder_name(each)))
    alone = limit == 1

    def begin(pool: Trainings) -> Iterator[Training]:
        for member in members:
            print("\n" * alone + f"#{member.number} begins: {member.label}", flush=True)
            member.training = pool.start([*passed_on, *member.overrides], member.folder, alone)
            yield member.training

    try:
        with Trainings(limit) as pool:
            for ended in pool.each(begin(pool)):
                member = next(each for each in members if each.training is ended)
                if not alone:
                    print(f"#{member.number} {member.status}: {member.told}", flush=True)
                elif ended.printed or ended.code:
                    print(ended.printed, end="", file=sys.stderr, flush=True)
                else:
                    ended.log.unlink()
    finally:
        show(folder, common, members)
    if codes := [each.code for each in members if each.code]:
        raise SystemExit(max(1, min(codes)))


def arguments(config: DictConfig) -> list[str]:
    """What of the sweep's own command line each member takes as well: where configs are, and Hydra's keys."""
    typed = vars(Options().parse_args(sys.argv[1:]))
    options = [(f"--{name.replace('_', '-')}", typed[name]) for name in WHERE if typed[name]]
    hydras = [each for each in config.hydra.overrides.hydra if not re.match(OF_THE_SWEEP, key_of(each))]
    return [word for option in options for word in option] + hydras


def show(folder: Path, common: Sequence[str], members: Sequence[Member]) -> None:
    """Prints the table, and how to go on where a member has not ended."""
    begun = [each for each in members if each.training]
    done, waiting = sum(each.status == "finished" for each in begun), len(members) - len(begun)
    title = f"{folder}: {done} of {len(members)} finished" + f", {waiting} not begun" * bool(waiting)
    table = Table(title=Text(f"{title}\n{' '.join(common)}".strip()))
    for name in ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error"):
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for each in begun:
        table.add_row(*map(Text, [str(each.number), each.label, each.status, *each.cells()]))
    console().print(table)
    if waiting or any(each.status == "interrupted" for each in begun):
        print(f"go on with the same command and hydra.sweep.dir={folder} resume=auto")
