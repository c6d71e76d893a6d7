"""Compares runs: python scripts/report.py outputs/… outputs/… out=DIR

Takes run folders and folders that contain some at any depth, such as a sweep's. Writes learning curves,
scores and comparisons as report.md and report.html, and each figure as PNG and SVG.

Keys: out (output folder, outputs/report-DATE), title (the page's title), seconds (true; false leaves out
what depends on the machine), published (false; true adds published baselines of the tasks,
published=sac,crossq those of some methods, published=FILE.csv your own, with the columns of docs/published).
Needs pip install 'hydrl[report]'.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from hydrl.config.command_line import read_arguments, script
from hydrl.errors import UserError, print_lines
from hydrl.run.logging.console import outlive_readers
from hydrl.run.logging.html import write_page


@dataclass
class Arguments:
    """What the command line can set."""

    out: str = ""
    title: str = ""
    seconds: bool = True
    published: str = "false"


def main(words: list[str]) -> None:
    """Reads the runs and writes the report.

    Raises:
        UserError: for wrong arguments, folders without a finished run, and a missing extra.
    """
    from hydrl.experiments import baselines, report, runs  # need the extra

    places, typed = sort(words)
    arguments = read_arguments(Arguments, typed, "out=DIR")
    out = Path(arguments.out or f"outputs/report-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    if out.exists() and not (out.is_dir() and ((out / "report.md").is_file() or not any(out.iterdir()))):
        raise UserError(f"out={out}: there is something other than a report; name another folder")
    counted, left_out = runs.load_runs(places)
    if not counted:
        why = "; ".join(f"{folder}: {reason}" for folder, reason in left_out.items())
        raise UserError(f"none of the runs there can be counted; {why or 'no run lies there or below'}")
    rows = baselines.select_baselines(arguments.published, counted)
    repeated = [word for word in typed if not word.startswith("out=")]
    command = shlex.join(["python", "scripts/report.py", *map(str, places), *repeated, f"out={out}"])
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = report.write_report(
            counted,
            left_out,
            out / "report.md",
            command,
            title=" ".join(arguments.title.split()),
            published=rows,
            seconds=arguments.seconds,
        )
        write_page(text, out / "report.html")
    except OSError as error:
        raise UserError(f"out={out} cannot be written: {error.strerror or error}") from None
    for folder, reason in left_out.items():
        print_lines(f"left out {folder}: {reason}")
    groups = len({run.group for run in counted})
    print_lines(f"{out / 'report.md'}: {len(counted)} runs in {groups} groups, {len(left_out)} left out")


def sort(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Separates folders from ``key=value``; an existing folder's name may contain ``=``.

    Raises:
        UserError: for an argument that is neither, and without any folder.
    """
    keys = [field.name for field in fields(Arguments)]
    places, typed = [], []
    for word in words:
        key, equals, _ = word.partition("=")
        if Path(word).is_dir():
            places.append(Path(word))
        elif equals and key in keys:
            typed.append(word)
        elif equals and os.sep not in key:
            raise UserError(f"{word}: there is no such folder, and no such key; keys are {', '.join(keys)}")
        else:
            raise UserError(f"{word}: there is no such folder; give those of runs or sweeps, and out=DIR")
    if not places:
        raise UserError("no folder was given; name run folders or those of sweeps, as outputs/… out=DIR")
    return places, typed


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
