"""Compares runs: python scripts/report.py outputs/… outputs/… out=DIR

Takes run folders, and folders that hold some at any depth, as a sweep's. Writes learning curves, scores and
comparisons as report.md, and as report.html for a browser, and each picture as PNG and SVG, to DIR:
outputs/report-DATE unless named. Needs pip install 'hydrl[report]'.
"""

import shlex
import sys
from datetime import datetime
from pathlib import Path

from hydrl.config.command_line import script
from hydrl.errors import UserError
from hydrl.run.pages import write_page
from hydrl.run.screen import outlive_readers


def main(words: list[str]) -> None:
    """Reads the runs and writes the report.

    Raises:
        UserError: for words that do not fit, folders without a run that counts, and a missing extra.
    """
    from hydrl.study import report, runs  # need the extra

    places = [Path(word) for word in words if not word.startswith("out=")]
    named = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    out = Path((named or [f"outputs/report-{datetime.now():%Y-%m-%d_%H-%M-%S}"])[-1])
    if not places:
        raise UserError("no folder was given; name run folders or those of sweeps, as outputs/… out=DIR")
    if wrong := next((each for each in places if not each.is_dir()), None):
        raise UserError(
            f"{wrong}: there is no such folder; give those of runs or sweeps, and out=DIR for the report"
        )
    if out.exists() and not (out.is_dir() and ((out / "report.md").is_file() or not any(out.iterdir()))):
        raise UserError(f"out={out}: there is something other than a report; name another folder")
    counted, left_out = runs.load(places)
    if not counted:
        said = "; ".join(f"{folder}: {reason}" for folder, reason in left_out.items())
        raise UserError(f"none of the runs there can be counted; {said or 'no run lies there or below'}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["python", "scripts/report.py", *map(str, places), f"out={out}"])
        text = report.save(counted, left_out, out / "report.md", command)
        write_page(text, out / "report.html")
    except OSError as error:
        raise UserError(f"out={out} cannot be written: {error.strerror or error}") from None
    for folder, reason in left_out.items():
        print(f"left out {folder}: {reason}")
    groups = len({run.group for run in counted})
    print(f"{out / 'report.md'}: {len(counted)} runs in {groups} groups, {len(left_out)} left out")


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
