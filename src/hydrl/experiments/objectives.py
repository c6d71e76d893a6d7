"""What runs with ``env.weights`` reach in each objective: the Pareto front, as a figure and a table."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from hydrl.experiments.figures import COLOURS, MARKERS, STYLE, legend_label, save_with_legend
from hydrl.experiments.runs import RunResult
from hydrl.experiments.statistics import format_number, is_on_front
from hydrl.metric_names import OBJECTIVE
from hydrl.run.logging.html import code, table

NOTE = """Returns are weighted sums: those of different `env.weights` are different quantities. A group is on
the Pareto front if no other is at least as good in every objective and better in one. Weights find only the
convex part of the environment's front."""
LARGEST = 13.0  # points of a group's marker; each later one at the same place is two points smaller


def has_objectives(runs: Sequence[RunResult]) -> bool:
    """Whether all runs have several objectives, as many as each other."""
    counts = {len(run.objectives) for run in runs}
    return len(counts) == 1 and min(counts) > 1


def group_means(runs: Sequence[RunResult]) -> dict[str, np.ndarray]:
    """Each group's mean of every objective over its seeds, ``[objectives]``; runs are sorted by group."""
    groups = groupby(runs, lambda run: run.group)
    return {name: np.mean([run.objectives for run in members], axis=0) for name, members in groups}


@matplotlib.rc_context(STYLE)
def draw_front(runs: Sequence[RunResult], style_numbers: Mapping[str, int], *files: Path) -> set[str]:
    """Figure of the first two objectives: a marker for each group, filled on the front, a dot for each seed.

    With two objectives a line joins the groups on the front.

    Args:
        runs: runs of an environment, with their objectives.
        style_numbers: number of each group's style, by :func:`hydrl.experiments.figures.assign_styles`.
        files: files to write; their suffixes choose the formats.

    Returns:
        the groups on the Pareto front of all objectives.
    """
    means = group_means(runs)
    mask = is_on_front(np.array([*means.values()]))
    front = {name for name, on_front in zip(means, mask, strict=True) if on_front}
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, (name, mean) in enumerate(means.items()):
        seeds = np.array([run.objectives for run in runs if run.group == name])
        colour, marker = (styles[style_numbers[name] % len(styles)] for styles in (COLOURS, MARKERS))
        axes.plot(*seeds[:, :2].T, ".", color=colour, markersize=4)
        same_place = sum(np.allclose(mean, other) for other in [*means.values()][:number])
        style: dict[str, Any] = {"color": colour, "markerfacecolor": colour if name in front else "none"}
        style |= {"markersize": max(5.0, LARGEST - 2.0 * same_place), "linestyle": "none"}
        axes.plot(*mean[:2], marker=marker, label=legend_label(name), **style)
    if len(runs[0].objectives) == 2:
        corners = np.array(sorted(tuple(means[name]) for name in front))
        axes.plot(*corners.T, "--", color="#666666", linewidth=1, zorder=1, label="front of these groups")
    axes.set(xlabel=OBJECTIVE.format(0), ylabel=OBJECTIVE.format(1))
    save_with_legend(figure, axes, files)
    return front


def objective_table(runs: Sequence[RunResult], front: set[str]) -> list[str]:
    """Table of what groups reach in each objective, with its heading."""
    means = group_means(runs)
    rows = [
        [code(name), *map(format_number, values), "yes" if name in front else "no"]
        for name, values in means.items()
    ]
    columns = ["group", *map(OBJECTIVE.format, range(len(runs[0].objectives))), "on the Pareto front"]
    return ["**Objectives**, mean sums of an episode in the final evaluation", table(columns, rows), NOTE]
