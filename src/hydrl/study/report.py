"""A report on any set of runs: learning curves, scores and comparisons, with their uncertainty over seeds."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np

from hydrl.study import figures
from hydrl.study.pages import between, cell, code, number, spread, table, write
from hydrl.study.runs import Run
from hydrl.study.scores import FEW, RESAMPLES, estimate, improvement, iqm, mean, scale

METHOD = f"""## How it was computed

- **Score** of a run: mean return of its closing evaluation, fresh episodes played by the last policy; of its
  last evaluation if it diverged, since diverging is part of how a method does.
- **Group**: an algorithm and the overrides that not all runs have. On a task its runs differ in the seed only.
- **IQM**: the mean of the middle half of the runs, those of all tasks together; of fewer than four, of all.
- **Intervals** are 95%, by percentile bootstrap over runs ({RESAMPLES:,} resamples, stratified by task), and
  need {FEW} seeds on each task. From few seeds they come out narrower than they should.
- **Curves** carry a run that ended early on at its end. Thin lines are the seeds where they are too few for a
  band. Seconds count from the start of the process, evaluations included, and depend on the machine.
- **To solve**: medians of frames and seconds to the first evaluation at the threshold; "-" where half of the
  runs did not get there.
- **Normalised**, linearly: 1 is the threshold that counts as solved, or the best score of a task without one;
  0 is what the runs began with, the median of their first training returns.
- **Probability of improvement**: that a run of one group scores higher than one of the other, on average over
  the tasks both have; ties count half. An interval that holds 0.5 shows no difference."""

Groups = Mapping[str, Sequence[Run]]
Tasks = Mapping[str, Groups]


def save(groups: Groups, left_out: Mapping[Path, str], folder: Path, command: str) -> Path:
    """Writes ``report.md`` and its pictures, each as PNG and SVG.

    Args:
        groups: and
        left_out: as :func:`hydrl.study.runs.load` gives them.
        folder: where the report goes; it exists.
        command: what makes the report again.

    Returns:
        the page.
    """
    tasks: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for name, runs in groups.items():
        for run in runs:
            tasks[run.env][name].append(run)
    looks = figures.styles(groups)
    parts = head(tasks, left_out)
    for env in sorted(tasks):
        picture = "curves-" + re.sub(r"[^\w.-]", "_", env)
        with matplotlib.rc_context(figures.LOOK):
            figure = figures.task(tasks[env], looks)
            figure.savefig(folder / f"{picture}.png", dpi=150)
            figure.savefig(folder / f"{picture}.svg", metadata={"Date": None})
        parts += [f"## {cell(env)}", f"![{picture}]({picture}.png)", f"As [SVG]({picture}.svg)."]
        parts += [returns(tasks[env])]
    parts += [*normalised(groups, tasks), *improvements(groups, tasks), METHOD, "## Commands"]
    made = [f"# {run.folder}\n{run.command}" for runs in groups.values() for run in runs]
    write(folder / "report.md", [*parts, "\n".join(["```", command, *made, "```"])])
    return folder / "report.md"


def head(tasks: Tasks, left_out: Mapping[Path, str]) -> list[str]:
    """Title, warnings, and which runs do not count."""
    cells = [(runs, f"{code(name)} on {cell(env)}") for env in tasks for name, runs in tasks[env].items()]
    counted = [run for runs, _ in cells for run in runs]
    parts = [f"# Runs on {cell(', '.join(sorted(tasks)))}"]
    parts += [f"{len(counted)} of {len(counted) + len(left_out)} runs count."]
    if few := [f"{name} ({len(runs)})" for runs, name in cells if len(runs) < FEW]:
        parts += [f"**Too few seeds for an interval**, {FEW} are needed: {', '.join(few)}."]
    if diverged := [code(run.folder) for run in counted if run.status == "diverged"]:
        parts += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}."]
    if left_out:
        parts += [table(["left out", "because"], ([code(each), cell(left_out[each])] for each in left_out))]
    return parts


def scores(runs: Sequence[Run]) -> np.ndarray:
    """Of shape (runs,)."""
    return np.array([run.score for run in runs])


def returns(groups: Groups) -> str:
    """The table of a task, in the environment's own units."""
    rows = []
    for name, runs in groups.items():
        times = np.median([run.solved for run in runs], axis=0)
        took = [f"{each:,.0f}" if np.isfinite(each) else "-" for each in times]
        share = f"{np.isfinite([run.solved[0] for run in runs]).sum()} of {len(runs)}"
        values = scores(runs)
        rows.append(
            [code(name), str(len(runs)), between(estimate(iqm, values)), spread(values), share, *took]
        )
    names = ["group", "seeds", "IQM [95%]", "mean ± std", "solved", "frames to solve", "seconds to solve"]
    return table(names, rows)


def normalised(groups: Groups, tasks: Tasks) -> list[str]:
    """The table of normalised scores over the tasks that all groups have."""
    common = [env for env in sorted(tasks) if len(tasks[env]) == len(groups)]
    if not common:
        return ["## Normalised scores", "There are none: no task was run by every group."]
    scales = {env: scale([run for runs in tasks[env].values() for run in runs]) for env in common}
    rows = []
    for name in groups:
        values = [(scores(tasks[env][name]) - zero) / (one - zero) for env, (zero, one) in scales.items()]
        rows.append([code(name), *(between(estimate(each, *values)) for each in (iqm, mean))])
    units = ", ".join(
        f"{cell(env)} (0: {number(zero)}, 1: {number(one)})" for env, (zero, one) in scales.items()
    )
    text = f"Over the tasks that every group was run on: {units}."
    return ["## Normalised scores", text, table(["group", "IQM [95%]", "mean [95%]"], rows)]


def improvements(groups: Groups, tasks: Tasks) -> list[str]:
    """The table of how probably a run of one group beats one of another."""
    rows = []
    for pair in combinations(groups, 2):
        if shared := [env for env in sorted(tasks) if set(pair) <= set(tasks[env])]:
            found = estimate(improvement, *(scores(tasks[env][name]) for name in pair for env in shared))
            rows.append([*map(code, pair), cell(", ".join(shared)), between(found)])
    names = ["group", "over", "tasks", "probability [95%]"]
    return ["## Probability of improvement", table(names, rows)] if rows else []
