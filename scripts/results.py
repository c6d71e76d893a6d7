"""Runs the table of configs/results.yaml and rewrites docs/results.md: python scripts/results.py fast=true

Keys: fast (true: the smaller table, minutes), jobs (runs at a time; all cores), out (where the runs lie,
outputs/results), page (the Markdown file to write, docs/results.md). Stopped, it goes on where it was.
Needs pip install -e '.[report]'.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hydrl.config import CONFIGS
from hydrl.config.command_line import read, script
from hydrl.errors import Interrupted, UserError


@dataclass
class Arguments:
    """What the command line can set."""

    fast: bool = False
    jobs: int = os.cpu_count() or 1
    out: str = "outputs/results"
    page: str = "docs/results.md"


def main(arguments: Arguments) -> None:
    """Runs what is missing and writes the page.

    Raises:
        UserError: for a value out of range, or a missing extra.
    """
    if arguments.jobs < 1:
        raise UserError(f"jobs={arguments.jobs}: give 1 or more")
    page = Path(arguments.page)
    if page.is_dir() or page.suffix != ".md" or not os.access(page.parent, os.W_OK):
        raise UserError(f"page={page}: give a .md file in a folder that can be written to")
    if importlib.util.find_spec("scipy") is None:
        raise UserError("results need an extra: pip install -e '.[report]'")

    from hydrl.study import results

    declared = results.load(CONFIGS / "results.yaml", fast=arguments.fast)
    command = f"make results{' fast=true' if arguments.fast else ''}"
    try:
        found = results.run_all(declared, Path(arguments.out), arguments.jobs)
    except Interrupted:
        results.say(f"stopped; {command} goes on with what lies in {arguments.out}")
        raise
    except OSError as error:
        raise UserError(f"out={arguments.out} cannot be written: {error.strerror or error}") from None
    results.write(declared, found, page, command)
    results.say(f"{page}: {sum(map(len, found))} runs")


if __name__ == "__main__":
    sys.exit(script(lambda words: main(read(Arguments, words, "fast=true jobs=2")), __doc__))
