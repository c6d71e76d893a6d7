"""A report on any set of runs: learning curves, scores and comparisons, with their uncertainty over seeds."""

import math
import re
import shlex
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from hydrl.run.files import atomically
from hydrl.study import figures
from hydrl.study.runs import Run
from hydrl.study.scores import (
    AGGREGATES,
    FEW,
    RESAMPLES,
    Estimate,
    estimate,
    improvement,
    iqm,
    of_task,
    scale,
)

METHOD = f"""## How it was computed

- **Score** of a run: the mean return of its closing evaluation, fresh episodes played by the last policy.
  A run that diverged counts with its last evaluation, since diverging is part of how the method does.
  One that was interrupted, killed or damaged says nothing about it and is left out.
- **Group**: the algorithm with the overrides that not all runs have. Seed and task aside, the runs of a group
  have the same configuration on each task; of runs with the same seed one counts.
- **IQM**: interquartile mean, the mean of the middle half of the runs, those of all tasks together; of fewer
  than four, the mean.
- **Intervals** are 95%, by percentile bootstrap over runs ({RESAMPLES:,} resamples, stratified by task), and
  need {FEW} seeds on each task. From few seeds they come out narrower than they should.
- **Learning curves**: IQM of the evaluation returns at 100 common points, from where every run of the group
  has been evaluated; the closing evaluation is a run's end. A run that ended before the longest of its group,
  as it does once it has solved the task, is carried on at its end. Bands are intervals point by point; of
  fewer than {FEW} seeds, thin lines are the seeds.
- **Seconds** are of wall time since the run started, evaluations included; they depend on the machine.
- **Solved**: an evaluation in training reached the task's threshold. Medians of frames and seconds are over
  all runs, one that did not solve its task counting as longer than any; "-" where half did not.
- **Mean** is over the tasks' means, and **median** too, but with one task it is the median of its runs.
  **Optimality gap**: how far scores stay below 1 on average, those above it counted as 1.
- **Probability of improvement**: that a run of the one group scores higher than one of the other, on average
  over the tasks both have; ties count half. An interval that holds 0.5 shows no difference.
"""
NORMALISED = """Each task's scores are normalised, linearly. 1 is the return that counts as solved, or the
best score here of a task without such a threshold; 0 is what the runs began with, the median of their first
training returns, or the lowest evaluation where they began with 1. With one task only the unit changes."""
MOST_PAIRS = 15  # that a picture can show
LONGEST = 60  # characters of a group's name that fit into one


class Report:
    """Draws and writes the report.

    Args:
        groups: as :func:`hydrl.study.runs.group` gives them.
        left_out: run folders that do not count, and why.
        folder: where the report goes; it exists.
    """

    def __init__(
        self, groups: Mapping[str, Sequence[Run]], left_out: Mapping[Path, str], folder: Path
    ) -> None:
        self.letters = letters(list(groups))
        groups = {self.letters.get(name, name): runs for name, runs in groups.items()}
        self.groups, self.left_out, self.folder = groups, left_out, folder
        self.runs = [run for runs in groups.values() for run in runs]
        self.envs = sorted({run.env for run in self.runs})
        self.common = [env for env in self.envs if len(self.on(env)) == len(groups)]
        self.looks = figures.styles(list(groups))

    def on(self, env: str) -> dict[str, list[Run]]:
        """The groups that were run on a task, with their runs there."""
        found = {name: [run for run in runs if run.env == env] for name, runs in self.groups.items()}
        return {name: runs for name, runs in found.items() if runs}

    def write(self, command: str) -> Path:
        """Writes the pictures and ``report.md``.

        Args:
            command: what makes the report again.

        Returns:
            the page.

        Raises:
            UserError: if the page cannot be written; an ``OSError`` if a picture cannot.
        """
        with matplotlib.rc_context(figures.LOOK):
            parts = [self.head(), *map(self.task, self.envs), self.aggregates(), self.comparisons()]
        parts += [[METHOD], self.commands(command)]
        page = self.folder / "report.md"
        with atomically(page) as partial:
            partial.write_text("\n".join(line for part in parts for line in part))
        return page

    def head(self) -> list[str]:
        """Title, warnings, and which runs do not count."""
        algos = ", ".join(sorted({run.algo for run in self.runs}))
        lines = [f"# {cell(algos)} on {cell(', '.join(self.envs))}", ""]
        lines += [f"{len(self.runs)} of {len(self.runs) + len(self.left_out)} runs count.", ""]
        few = [
            f"{code(name)} on {cell(env)} ({len(runs)})"
            for env in self.envs
            for name, runs in self.on(env).items()
            if len(runs) < FEW
        ]
        if self.letters:
            lines += table(["group", "is"], ([code(each), code(name)] for name, each in self.letters.items()))
        diverged = [code(run.folder) for run in self.runs if run.status == "diverged"]
        if few:
            lines += [f"**Too few seeds for an interval**, {FEW} are needed: {', '.join(few)}.", ""]
        if diverged:
            lines += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}.", ""]
        if self.left_out:
            reasons = ([code(folder), cell(reason)] for folder, reason in self.left_out.items())
            lines += table(["left out", "because"], reasons)
        return lines

    def task(self, env: str) -> list[str]:
        """Learning curves of a task and its table, in the environment's own units."""
        groups = self.on(env)
        picture = self.save(figures.curves(env, groups, self.looks), f"curves-{env}")
        names = ["group", "seeds", "IQM [95%]", "mean ± std", "solved", "frames to solve", "seconds to solve"]
        return [f"## {cell(env)}", "", *picture, *table(names, (row(*each, env) for each in groups.items()))]

    def aggregates(self) -> list[str]:
        """IQM, mean, median, optimality gap and performance profile over the tasks that all groups have."""
        lines = ["## Scores over tasks", ""]
        if not self.common:
            return [*lines, "There are none: no task was run by every group.", ""]
        lines += [f"Over {cell(', '.join(self.common))}."]
        lines[-1] += " Other tasks were not run by every group." if self.common != self.envs else ""
        lines += [NORMALISED, ""]
        scales = {env: scale(run for run in self.runs if run.env == env) for env in self.common}
        lines += table(["task", "0 is", "1 is"], ([cell(env), *map(number, scales[env])] for env in scales))
        normalised = {
            name: [(of_task(runs, env) - zero) / (one - zero) for env, (zero, one) in scales.items()]
            for name, runs in self.groups.items()
        }
        found = {
            title: {name: estimate(statistic, *tasks) for name, tasks in normalised.items()}
            for title, statistic in AGGREGATES.items()
        }
        lines += self.save(figures.scores(found, self.looks), "scores")
        cells = ([code(name), *(between(found[title][name]) for title in found)] for name in self.groups)
        lines += table(["group", *(f"{title} [95%]" for title in found)], cells)
        every = np.concatenate([task for tasks in normalised.values() for task in tasks])
        margin = 0.05 * np.ptp(every) or 0.05
        bounds = np.linspace(every.min() - margin, every.max() + margin, 201)
        lines += ["Performance profile, the share of runs that score higher than τ:", ""]
        return [*lines, *self.save(figures.profile(normalised, self.looks, bounds), "profile")]

    def comparisons(self) -> list[str]:
        """The probability that a run of one group beats one of another."""
        found: dict[tuple[str, str], Estimate] = {}
        shared: dict[tuple[str, str], list[str]] = {}
        for pair in combinations(self.groups, 2):
            shared[pair] = [env for env in self.envs if set(pair) <= set(self.on(env))]
            tasks = [of_task(self.groups[name], env) for name in pair for env in shared[pair]]
            if tasks:
                found[pair] = estimate(improvement, *tasks)
        if not found:
            return []
        few = len(found) <= MOST_PAIRS
        picture = self.save(figures.comparison(found, self.looks), "improvement") if few else []
        cells = ([*map(code, pair), cell(", ".join(shared[pair])), between(found[pair])] for pair in found)
        names = ["group", "over", "tasks", "probability [95%]"]
        return ["## Probability of improvement", "", *picture, *table(names, cells)]

    def commands(self, command: str) -> list[str]:
        """What made the report, and each run."""
        lines = ["## Commands", "", "```", line(command), "```", ""]
        for name, runs in self.groups.items():
            made = [text for run in runs for text in (line(f"# {run.folder}"), made_by(run))]
            lines += [f"{code(name)}:", "", "```", *made, "```", ""]
        return lines

    def save(self, figure: Figure, name: str) -> list[str]:
        """Saves a picture as PNG and SVG; the page's lines that show it."""
        name = re.sub(r"[^\w.-]", "_", name)
        figure.savefig(self.folder / f"{name}.png", dpi=150)
        figure.savefig(self.folder / f"{name}.svg", metadata={"Date": None})
        return [f"![{name}]({name}.png)", "", f"As [SVG]({name}.svg).", ""]


def letters(names: Sequence[str]) -> dict[str, str]:
    """A letter for each group, or a number where there are too many; none if the names fit into pictures."""
    if max(map(len, names)) <= LONGEST:
        return {}
    short = string.ascii_uppercase if len(names) <= 26 else map(str, range(1, len(names) + 1))
    return dict(zip(names, short, strict=False))


def row(name: str, runs: Sequence[Run], env: str) -> list[str]:
    """A group's row in its task's table."""
    values = of_task(runs, env)
    solved = [run.solved or (math.inf, math.inf) for run in runs]
    frames, seconds = map(statistics.median, zip(*solved, strict=True))
    return [
        code(name),
        str(len(runs)),
        between(estimate(iqm, values)),
        number(values.mean()) + (f" ± {number(values.std(ddof=1))}" if len(runs) > 1 else ""),
        f"{sum(run.solved is not None for run in runs)} of {len(runs)}",
        f"{frames:,.0f}" if math.isfinite(frames) else "-",
        f"{seconds:,.1f}" if math.isfinite(seconds) else "-",
    ]


def made_by(run: Run) -> str:
    """The command that made a run, as a shell reads it."""
    if run.overrides is None:
        return "# its folder does not say by what command it was made"
    return shlex.join(["python", "train.py", *run.overrides])


def between(found: Estimate) -> str:
    """A value with its interval, if it has one."""
    value, limits = found
    return f"{number(value)} [{number(limits[0])}, {number(limits[1])}]" if limits else number(value)


def number(value: Any) -> str:
    """About three digits, the thousands set apart."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return [*(f"| {' | '.join(each)} |" for each in lines), ""]


def line(text: Any) -> str:
    """Text on one line, whatever a folder brought."""
    return " ".join(str(text).split())


def cell(text: Any) -> str:
    """Text that breaks no table and is no markup."""
    return re.sub(r"([|\\`*\[<])", r"\\\1", line(text))


def code(text: Any) -> str:
    """Text set as code, in a table too."""
    return f"`{line(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
