"""The page ``docs/algorithms.md``: each algorithm with its loss and its scores here."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.config import CONFIGS
from hydrl.config.tuned import compose_run
from hydrl.experiments import report
from hydrl.experiments.runs import RunResult
from hydrl.run.logging.html import as_text, table

INTRODUCTION = """\
# Algorithms

Written by `make results` from `configs/algo` and the runs kept in `docs/results`. All have one loop,
`train.py`; what differs is their files. Scores are the closing evaluation of the last policy, mean and
standard deviation over the seeds, after so many frames; [results](results.md) has them beside what others
published. Cost is wall time a frame of the quickest of those runs, evaluations included, on two CPU cores
without a GPU, most of them beside other runs.
"""


def make_page(runs_by_row: Iterable[Sequence[RunResult]]) -> str:
    """Markdown: a row for each algorithm in ``configs/algo``, with what the runs of each row reached."""
    rows = [runs for runs in runs_by_row if runs]
    cells = []
    for file in sorted((CONFIGS / "algo").glob("*.yaml")):
        own = [runs for runs in rows if runs[0].algo == file.stem]
        chosen = composed_settings(file.stem)
        loss = chosen["loss"]["module"]["_target_"].rpartition(".")[2]
        did = "<br>".join(map(score_text, own))
        cost = "<br>".join(f"{milliseconds(runs):.2f} ms" for runs in own)
        cells.append(
            [f"`algo={file.stem}`", file_comment(file), ", ".join(chosen["action_spaces"]), loss, did, cost]
        )
    names = ["", "what it is", "actions", "loss of `torchrl.objectives`", "what it did here", "cost a frame"]
    return f"{INTRODUCTION}\n{table(names, cells)}\n"


def composed_settings(algo: str) -> Mapping[str, Any]:
    """What ``algo=…`` composes to."""
    return compose_run([f"algo={algo}"])


def score_text(runs: Sequence[RunResult]) -> str:
    """The runs of a row in words."""
    frames = np.median([run.curve[-1, 0] for run in runs])
    scores = report.format_mean_std(np.array([run.score for run in runs]))
    return f"{as_text(runs[0].id or runs[0].env)}: {scores} @ {frames:,.0f}"


def milliseconds(runs: Sequence[RunResult]) -> float:
    """Wall time a frame of the quickest run, which other work disturbed least."""
    return float(np.min([1_000 * run.curve[-1, 1] / run.curve[-1, 0] for run in runs]))


def file_comment(file: Path) -> str:
    """What a configuration says of itself at its top, below its package."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    own = lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("# ") for line in own)
