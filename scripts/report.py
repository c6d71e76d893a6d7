"""Compares runs: python scripts/report.py outputs/… outputs/… out=DIR

Takes run folders and folders that contain some at any depth, such as a sweep's. Writes learning curves,
scores and comparisons as report.md and report.html, and each figure as PNG, SVG and PDF.

Keys: out (output folder, outputs/report-DATE), title (the page's title), seconds (true; false leaves out
what depends on the machine), reward_threshold (true; false leaves out its line), published (false; true
adds published returns of the environments, published=sac,crossq those of some methods, published=FILE.csv
your own, with the columns of docs/published).
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
    reward_threshold: bool = True
    published: str = "false"


def main(words: list[str]) -> None:
    """Reads the runs and writes the report.

    Raises:
        UserError: for wrong arguments, folders without a finished run, and a missing extra.
    """
    from hydrl.experiments import baselines, report, runs  # need the extra

    folders, overrides = split(words)
    arguments = read_arguments(Arguments, overrides, "out=DIR")
    out = Path(arguments.out or f"outputs/report-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    if out.exists() and not (out.is_dir() and ((out / "report.md").is_file() or not any(out.iterdir()))):
        raise UserError(f"out={out}: it exists and is no report. Name a new folder.")
    counted, skipped = runs.load_runs(folders)
    if not counted:
        if not skipped:
            names = ", ".join(map(str, folders))
            raise UserError(f"{names}: no run folder, at any depth. Name folders of runs or sweeps.")
        reasons = "; ".join(f"{folder}: {reason}" for folder, reason in skipped.items())
        raise UserError(f"no finished run there: {reasons}.")
    rows = baselines.select_baselines(arguments.published, counted)
    others = [word for word in overrides if not word.startswith("out=")]
    command = shlex.join(["python", "scripts/report.py", *map(str, folders), *others, f"out={out}"])
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = report.write_report(
            counted,
            skipped,
            out / "report.md",
            command,
            title=" ".join(arguments.title.split()),
            published=rows,
            seconds=arguments.seconds,
            reward_threshold=arguments.reward_threshold,
        )
        write_page(text, out / "report.html")
    except OSError as error:
        raise UserError(f"out={out}: cannot be written: {error.strerror or error}.") from None
    for folder, reason in skipped.items():
        print_lines(f"skipped {folder}: {reason}")
    groups = len({run.group for run in counted})
    counts = f"{len(counted)} run{'s' * (len(counted) != 1)} in {groups} group{'s' * (groups != 1)}"
    print_lines(f"{out / 'report.md'}: {counts}, {len(skipped)} skipped")


def split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Separates folders from ``key=value``; an existing folder's name may contain ``=``.

    Raises:
        UserError: for an argument that is neither, and without any folder.
    """
    keys = [field.name for field in fields(Arguments)]
    folders, overrides = [], []
    for word in words:
        key, equals, _ = word.partition("=")
        if Path(word).is_dir():
            folders.append(Path(word))
        elif equals and key in keys:
            overrides.append(word)
        elif equals and os.sep not in key:
            raise UserError(f"{word}: no such folder and no such key. Keys: {', '.join(keys)}.")
        else:
            raise UserError(f"{word}: no such folder. Name folders of runs or sweeps, and out=DIR.")
    if not folders:
        raise UserError("no folder. Name folders of runs or sweeps: outputs/… out=DIR.")
    return folders, overrides


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
