"""Runs the table of scripts/results.yaml and rewrites docs/results.md and docs/algorithms.md:

    python scripts/results.py rows=ppo-hopper

Keys: rows (names of rows, as ppo-hopper,dqn-cartpole; default: all), jobs (runs at a time; default: all
cores), out (folder of the runs, outputs/results), page (the Markdown file, docs/results.md). Each finished
run is stored as a line of docs/results/ROW.jsonl and not repeated while that line is there. The same command
resumes a stopped table; the page is written then and at the end. Needs pip install 'hydrl[report]'.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hydrl.config.command_line import read_arguments, script
from hydrl.errors import Interrupted, UserError
from hydrl.run.logging.console import outlive_readers

TABLE = Path(__file__).with_suffix(".yaml")


@dataclass
class Arguments:
    """What the command line can set."""

    rows: str = ""
    jobs: int = os.cpu_count() or 1
    out: str = "outputs/results"
    page: str = "docs/results.md"


def main(arguments: Arguments) -> None:
    """Runs what is missing and writes the page.

    Raises:
        UserError: for a value out of range, or a missing extra.
    """
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of `scripts`
    from scripts.docs import results_page  # needs the extra

    if arguments.jobs < 1:
        raise UserError(f"jobs={arguments.jobs}: out of range. Use 1 or more.")
    page = Path(arguments.page)
    if page.is_dir() or page.suffix != ".md" or not os.access(page.parent, os.W_OK):
        raise UserError(f"page={page}: cannot be written. Use a .md file in an existing folder.")
    try:
        names = [name.strip() for name in arguments.rows.split(",") if name.strip()]
        results_page.make_page(TABLE, names, arguments.jobs, Path(arguments.out), page)
    except Interrupted:
        print(f"stopped; the same command resumes with {arguments.out} and {page.with_suffix('')}")
        raise
    except OSError as error:
        raise UserError(f"out={arguments.out}: cannot be written: {error.strerror or error}.") from None
    print(page)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(lambda words: main(read_arguments(Arguments, words, "rows=ppo-hopper jobs=2")), __doc__))
