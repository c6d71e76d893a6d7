"""The table of results: declared runs, reported on beside what others published."""

from pathlib import Path

import numpy as np
import yaml

from hydrl.errors import DivergedError, RunError
from hydrl.study import report, runs
from hydrl.study.sweep import folder_name, train_all


def make(declared: Path, fast: bool, jobs: int, out: Path, page: Path) -> None:
    """Runs what has not finished yet, then writes the page of all that has.

    Args:
        declared: a YAML file as ``scripts/results.yaml``.
        fast: only the smaller table's runs and seeds.
        jobs: runs at a time.
        out: the run folders lie or come to lie in it.
        page: a Markdown file, with its pictures beside it.

    Raises:
        RunError: if a run failed, once all others have ended and the page is written; to diverge is a result.
    """
    said = yaml.safe_load(declared.read_text())
    seeds = said["fast_seeds" if fast else "seeds"]
    rows = [row for row in said["runs"] if row.get("fast") or not fast]
    lists = [[*row["overrides"], f"seed={seed}"] for row in rows for seed in seeds]
    code = train_all(lists, out, jobs, ["resume=auto"])
    counted, left_out = runs.load(out / folder_name(each) for each in lists)
    cells = []
    for row in rows:
        folders = [out / folder_name([*row["overrides"], f"seed={seed}"]) for seed in seeds]
        scores = [run.score for run in counted if run.folder in folders]
        ours = f"**{report.spread(np.array(scores))}**" if scores else "-"
        published = [row["published"].get(each, "") for each in said["sources"]]
        cells.append([report.code(" ".join(row["overrides"])), ours, *published])
    table = report.table(["`python train.py`", "hydrl", *said["sources"].values()], cells)
    command = f"make results{' fast=true' if fast else ''}"
    section = f"## Beside what others published\n\n{table}\n\n{said['notes'].strip()}"
    if counted:
        report.save(counted, left_out, page, command, section)
    if code not in (0, DivergedError.exit_code):
        raise RunError(f"not all runs have finished; what they printed is in {out}/*.log")
