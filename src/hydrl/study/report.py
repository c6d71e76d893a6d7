"""A report on any set of runs: learning curves, scores and comparisons, with their uncertainty over seeds."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np

from hydrl.run.files import atomically
from hydrl.study import figures
from hydrl.study.pages import between, cell, code, number, spread, table
from hydrl.study.runs import Run
from hydrl.study.scores import FEW, RESAMPLES, estimate, improvement, iqm, mean

METHOD = f"""## How it was computed

- **Score** of a run: mean return of its closing evaluation, fresh episodes played by the last policy; of its
  last evaluation if it diverged. Runs of a **group** differ on each task in nothing but the seed.
- **IQM**: the mean of the middle half of the runs, those of all tasks together; of fewer than four, of all.
- **Intervals** are 95%, by percentile bootstrap over runs ({RESAMPLES:,} resamples, stratified by task), and
  need {FEW} seeds on each task. From few seeds they come out narrower than they should.
- **Curves** carry a run that ended early on at its end; where seeds are too few for a band, thin lines are
  the seeds. Seconds count from the start of the process and depend on the machine.
- **To solve**: medians up to the first evaluation at the threshold; "-" where half of the runs got to none.
- **Normalised**, linearly: 1 is the threshold that counts as solved, or the best score of a task without one;
  0 is what the runs began with, the median of their first training returns, or 1 less if that is no lower.
- **Probability of improvement**: that a run of one group scores higher than one of the other, on average over
  the tasks both have; ties count half. An interval that holds 0.5 shows no difference."""

Groups = Mapping[str, Sequence[Run]]
Tasks = Mapping[str, Groups]  # by task, sorted


def save(groups: Groups, left_out: Mapping[Path, str], out: Path, command: str) -> Path:
    """Writes ``report.md`` and its pictures, each as PNG and SVG, to ``out``, which exists; the page.

    Args:
        groups: and
        left_out: as :func:`hydrl.study.runs.load` gives them.
        out: the folder.
        command: what makes the report again.
    """
    tasks: dict[str, dict[str, list[Run]]] = {}
    for env in sorted({run.env for runs in groups.values() for run in runs}):
        members = {name: [run for run in runs if run.env == env] for name, runs in groups.items()}
        tasks[env] = {name: runs for name, runs in members.items() if runs}
    parts = [*head(tasks, left_out), *(task(env, tasks[env], figures.styles(groups), out) for env in tasks)]
    parts += [normalised(groups, tasks), improvements(groups, tasks), METHOD, "## Commands"]
    typed = [(run.folder, run.overrides) for runs in groups.values() for run in runs]
    made = [
        f"# {' '.join(str(folder).split())}\n{shlex.join(['python', 'train.py', *each])}"
        for folder, each in typed
    ]
    with atomically(out / "report.md") as partial:
        commands = "\n".join(["```", command, *made, "```"])
        partial.write_text("\n\n".join(part for part in [*parts, commands] if part) + "\n")
    return out / "report.md"


def scores(runs: Sequence[Run]) -> np.ndarray:
    """Of shape (runs,)."""
    return np.array([run.score for run in runs])


def head(tasks: Tasks, left_out: Mapping[Path, str]) -> list[str]:
    """Title, warnings, and which runs do not count."""
    cells = [(runs, f"{code(name)} on {cell(env)}") for env in tasks for name, runs in tasks[env].items()]
    counted = [run for runs, _ in cells for run in runs]
    parts = [f"# Runs on {cell(', '.join(tasks))}"]
    parts += [f"{len(counted)} of {len(counted) + len(left_out)} runs count."]
    if few := [f"{name} ({len(runs)})" for runs, name in cells if len(runs) < FEW]:
        parts += [f"**Too few seeds for an interval**, {FEW} are needed: {', '.join(few)}."]
    if diverged := [code(run.folder) for run in counted if run.status == "diverged"]:
        parts += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}."]
    if left_out:
        parts += [table(["left out", "because"], ([code(each), cell(left_out[each])] for each in left_out))]
    return parts


def task(env: str, groups: Groups, looks: Mapping[str, figures.Style], out: Path) -> str:
    """The curves of a task and its table, in the environment's own units."""
    every = [run for runs in groups.values() for run in runs]
    thresholds = {run.threshold for run in every if run.threshold is not None}
    picture = "curves-" + re.sub(r"[^\w.-]", "_", env)
    with matplotlib.rc_context(figures.LOOK):
        figure, panels = figures.panels([env, env], 2)
        for against, axes in enumerate(panels):
            for name, runs in groups.items():
                figures.curve(axes, runs, name, looks[name], against)
            for threshold in thresholds:
                axes.axhline(threshold, color="#666666", linestyle=":", label="solved")
        figures.legend(figure)
        figure.savefig(out / f"{picture}.png", dpi=150)
        figure.savefig(out / f"{picture}.svg", metadata={"Date": None})
    rows = []
    for name, runs in groups.items():
        solved = [(run.solved_at_frames or np.inf, run.solved_at_seconds or np.inf) for run in runs]
        took = [f"{each:,.0f}" if np.isfinite(each) else "-" for each in np.median(solved, axis=0)]
        share = f"{np.isfinite(solved).all(axis=1).sum()} of {len(runs)}"
        ours = between(estimate(iqm, scores(runs))), spread(scores(runs))
        rows.append([code(name), str(len(runs)), *ours, share, *took])
    names = ["group", "seeds", "IQM [95%]", "mean ± std", "solved", "frames to solve", "seconds to solve"]
    text = f"## {cell(env)}\n\n![{picture}]({picture}.png)\n\nAs [SVG]({picture}.svg).\n\n"
    return text + table(names, rows)


def normalised(groups: Groups, tasks: Tasks) -> str:
    """The table of normalised scores over the tasks that all groups have."""
    values: dict[str, list[np.ndarray]] = {name: [] for name in groups}
    units = []
    for env in [env for env in tasks if len(tasks[env]) == len(groups)]:
        runs = [run for runs in tasks[env].values() for run in runs]
        one = max([run.threshold for run in runs if run.threshold is not None] or scores(runs))
        zero = float(np.median([run.start for run in runs]))
        zero = zero if zero < one else one - 1
        units.append(f"{cell(env)} (0 is {number(zero)}, 1 is {number(one)})")
        for name in groups:
            values[name].append((scores(tasks[env][name]) - zero) / (one - zero))
    if not units:
        return "## Normalised scores\n\nThere are none: no task was run by every group."
    rows = [
        [code(name), *(between(estimate(each, *values[name])) for each in (iqm, mean))] for name in groups
    ]
    text = f"## Normalised scores\n\nOver the tasks that every group was run on: {', '.join(units)}.\n\n"
    return text + table(["group", "IQM [95%]", "mean [95%]"], rows)


def improvements(groups: Groups, tasks: Tasks) -> str:
    """The table of how probably a run of one group beats one of another."""
    rows = []
    for pair in combinations(groups, 2):
        if shared := [env for env in tasks if set(pair) <= set(tasks[env])]:
            found = estimate(improvement, *(scores(tasks[env][name]) for name in pair for env in shared))
            rows.append([*map(code, pair), cell(", ".join(shared)), between(found)])
    names = ["group", "over", "tasks", "probability [95%]"]
    return f"## Probability of improvement\n\n{table(names, rows)}" if rows else ""
