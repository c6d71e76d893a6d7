"""Compares runs: python scripts/report.py outputs/… outputs/… out=DIR

Takes run folders, and folders that hold some at any depth, as a sweep's. Writes report.md with learning
curves, scores and comparisons, and each picture as PNG and SVG, to DIR: outputs/report-DATE unless named.
Needs pip install -e '.[report]'.
"""

import importlib.util
import shlex
import sys
from datetime import datetime
from pathlib import Path

from hydrl.config.command_line import script
from hydrl.errors import UserError
from hydrl.run.screen import console
from hydrl.study import runs


def main(words: list[str]) -> None:
    """Reads the runs and writes the report.

    Raises:
        UserError: for words that do not fit, folders without a run that counts, and a missing extra.
    """
    places, out = read(words)
    if importlib.util.find_spec("scipy") is None:
        raise UserError("a report needs an extra: pip install -e '.[report]'")
    found, left_out = runs.load(places)
    groups, repeated = runs.group(found)

    from hydrl.study.report import Report

    try:
        out.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["python", "scripts/report.py", *map(str, places), f"out={out}"])
        page = Report(groups, left_out | repeated, out).write(command)
    except OSError as error:
        raise UserError(f"out={out} cannot be written: {error.strerror or error}") from None
    for folder, reason in (left_out | repeated).items():
        console().print(f"left out {folder}: {reason}", highlight=False, markup=False, soft_wrap=True)
    counted = sum(map(len, groups.values()))
    said = f"{page}: {counted} runs in {len(groups)} groups, {len(left_out | repeated)} left out"
    console().print(said, highlight=False, markup=False, soft_wrap=True)


def read(words: list[str]) -> tuple[list[Path], Path]:
    """Folders and ``out=DIR``.

    Returns:
        the folders to look in, and the one to write to.

    Raises:
        UserError: for an unknown key, no folder at all, or a folder to write to that holds something else.
    """
    places, out = [], Path(f"outputs/report-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    for word in words:
        key, equals, value = word.partition("=")
        if key == "out" and value:
            out = Path(value)
        elif equals and not Path(word).exists():
            raise UserError(f"{word}: the only key is out, as out=DIR; all else are folders of runs")
        else:
            places.append(Path(word))
    if not places:
        raise UserError("no folder was given; name run folders or those of sweeps, as outputs/…")
    if out.exists() and not (out.is_dir() and ((out / "report.md").is_file() or not any(out.iterdir()))):
        raise UserError(f"out={out}: there is something other than a report; name another folder")
    return places, out


if __name__ == "__main__":
    sys.exit(script(main, __doc__))
