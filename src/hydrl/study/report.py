"""A report on any set of runs: learning curves, scores and comparisons, with their uncertainty over seeds."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from hydrl.run.files import atomically
from hydrl.study import figures
from hydrl.study.pages import between, code, spread, table
from hydrl.study.runs import Groups, Run
from hydrl.study.scores import FEW, RESAMPLES, estimate, improvement, iqm

METHOD = f"""## How it was computed

- **Score** of a run: mean return of its closing evaluation, fresh episodes played by the last policy; of its
  last evaluation if it diverged. Runs of a **group** were started with the same overrides but task and seed.
- **IQM**: the mean of the middle half of the runs; of fewer than four, of all.
- **Intervals** are 95%, by percentile bootstrap over runs ({RESAMPLES:,} resamples, stratified by task), and
  need {FEW} seeds on each task. From few seeds they come out narrower than they should.
- **Curves** carry a run that ended early on at its end; where seeds are too few for a band, thin lines are
  the seeds. Seconds count from the start of the process and depend on the machine.
- **To solve**: medians up to the first evaluation at the threshold; "-" where half of the runs got to none.
- **Probability of improvement**: that a run of one group scores higher than one of the other, on average over
  the tasks both have; ties count half. An interval that holds 0.5 shows no difference."""


def save(groups: Groups, left_out: Mapping[Path, str], out: Path, command: str) -> Path:
    """Writes ``report.md`` and its pictures, each as PNG and SVG, to ``out``, which exists; the page.

    Args:
        groups: and
        left_out: as :func:`hydrl.study.runs.load` gives them.
        out: the folder.
        command: what makes the report again.
    """
    runs = [run for members in groups.values() for run in members]
    tasks: dict[str, dict[str, list[Run]]] = {}
    for env in sorted({run.env for run in runs}):
        members = {name: [run for run in each if run.env == env] for name, each in groups.items()}
        tasks[env] = {name: each for name, each in members.items() if each}
    looks = figures.styles([*groups])
    parts = [*head(tasks, left_out), *(task(env, tasks[env], looks, out) for env in tasks)]
    parts += [improvements(groups, tasks), METHOD, "## Commands"]
    typed = [f"# {run.folder}\n{shlex.join(['python', 'train.py', *run.overrides])}" for run in runs]
    parts += ["\n".join(["```", command, *typed, "```"])]
    with atomically(out / "report.md") as partial:
        partial.write_text("\n\n".join(filter(None, parts)) + "\n")
    return out / "report.md"


def scores(runs: Sequence[Run]) -> np.ndarray:
    """Of shape (runs,)."""
    return np.array([run.score for run in runs])


def head(tasks: Mapping[str, Groups], left_out: Mapping[Path, str]) -> list[str]:
    """Title, warnings, and which runs do not count."""
    cells = [(runs, f"{code(name)} on {env}") for env in tasks for name, runs in tasks[env].items()]
    counted = [run for runs, _ in cells for run in runs]
    parts = [f"# Runs on {', '.join(tasks)}", f"{len(counted)} of {len(counted) + len(left_out)} runs count."]
    if few := [f"{name} ({len(runs)})" for runs, name in cells if len(runs) < FEW]:
        parts += [f"**Too few seeds for an interval**, {FEW} are needed: {', '.join(few)}."]
    if diverged := [code(run.folder) for run in counted if run.status == "diverged"]:
        parts += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}."]
    if left_out:
        parts += [table(["left out", "because"], ([*map(code, each)] for each in left_out.items()))]
    return parts


def task(env: str, groups: Groups, looks: Mapping[str, figures.Style], out: Path) -> str:
    """The curves of a task and its table, in the environment's own units."""
    picture = "curves-" + re.sub(r"[^\w.-]", "_", env)
    files = [out / f"{picture}.{kind}" for kind in ("png", "svg")]
    figures.save([(env, groups, 0), (env, groups, 1)], 2, looks, *files)
    rows = []
    for name, runs in groups.items():
        solved = [(run.solved_at_frames or np.inf, run.solved_at_seconds or np.inf) for run in runs]
        took = [f"{each:,.0f}" if np.isfinite(each) else "-" for each in np.median(solved, axis=0)]
        share = f"{np.isfinite(solved).all(axis=1).sum()} of {len(runs)}"
        ours = between(estimate(iqm, scores(runs))), spread(scores(runs))
        rows.append([code(name), str(len(runs)), *ours, share, *took])
    names = ["group", "seeds", "IQM [95%]", "mean ± std", "solved", "frames to solve", "seconds to solve"]
    text = f"## {env}\n\n![{picture}]({picture}.png)\n\nAs [SVG]({picture}.svg).\n\n"
    return text + table(names, rows)


def improvements(groups: Groups, tasks: Mapping[str, Groups]) -> str:
    """The table of how probably a run of one group beats one of another."""
    rows = []
    for pair in combinations(groups, 2):
        if shared := [env for env in tasks if set(pair) <= set(tasks[env])]:
            found = estimate(improvement, *(scores(tasks[env][name]) for name in pair for env in shared))
            rows.append([*map(code, pair), ", ".join(shared), between(found)])
    names = ["group", "over", "tasks", "probability [95%]"]
    return f"## Probability of improvement\n\n{table(names, rows)}" if rows else ""
