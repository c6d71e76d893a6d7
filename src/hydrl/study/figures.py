"""Learning curves, legible at half size and in colours that the colour-blind tell apart as well."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from hydrl.study.runs import Groups, Run
from hydrl.study.scores import FEW, estimate, iqm

# Okabe and Ito's colours without the yellow, too faint for a line; marker and dashes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Matplotlib's settings under which pictures are drawn and saved.
LOOK: dict[Any, Any] = {
    "font.size": 12,
    "figure.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "text.parse_math": False,  # names are text, whatever is in them
    "svg.hashsalt": "hydrl",
}
Style = Mapping[str, Any]
Panel = tuple[str, Groups, int]  # a task, its groups, and 0 for frames or 1 for seconds


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Colour, dashes and marker of each name, for every picture of a page."""
    looks = zip(names, cycle(COLOURS), cycle(("-", "--", "-.", ":")), cycle("osD^vP*X"), strict=False)
    return {name: {"color": colour, "linestyle": dash, "marker": mark} for name, colour, dash, mark in looks}


@matplotlib.rc_context(LOOK)
def save(panels: Sequence[Panel], columns: int, looks: Mapping[str, Style], *to: Path) -> None:
    """Draws panels in lines of ``columns``; the names of the files say in which format."""
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.6 * lines + 0.8), layout="constrained")
    figure.supylabel("evaluation return, IQM")
    for place, (env, groups, against) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, place + 1, title=env)
        for name, runs in groups.items():
            curve(axes, runs, name, looks[name], against)
        thresholds = {run.threshold for runs in groups.values() for run in runs}
        for threshold in filter(None, thresholds):
            axes.axhline(threshold, color="#666666", linestyle=":", label="solved")
    legend(figure)
    for file in to:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def curve(axes: Axes, runs: Sequence[Run], name: str, look: Style, against: int = 0) -> None:
    """Draws a group's learning curve, with its band or, where seeds are too few for one, the seeds.

    Each run is carried on at its end to the end of the longest.
    """
    start = max(run.curve[0, against] for run in runs)
    points = np.unique(np.concatenate([run.curve[:, against] for run in runs]))
    points = points[points >= start]
    returns = np.array([np.interp(points, run.curve[:, against], run.curve[:, 2]) for run in runs])
    middle, low, high = estimate(iqm, returns)
    axes.plot(points, middle, label=name, markevery=[-1], **look)
    axes.fill_between(points, low, high, color=look["color"], alpha=0.12, linewidth=0, zorder=1)
    for thin in (low, high) if len(runs) >= FEW else returns:  # edges tell bands apart that overlap
        axes.plot(points, thin, **{**look, "marker": ""}, linewidth=0.8, alpha=0.6, zorder=1)
    axes.set_xlabel(("environment frames", "seconds since the start")[against])
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter((EngFormatter(sep=""), StrMethodFormatter("{x:,.10g}"))[against])
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def legend(figure: Figure) -> None:
    """Names all lines below the panels, where nothing can be hidden."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        named |= zip((textwrap.fill(name, 60) for name in names), handles, strict=True)
    longest = max(len(line) for name in named for line in name.splitlines())
    columns = int(max(1, min(len(named), figure.get_figwidth() * 11 // (longest + 8))))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, handlelength=3.5)
