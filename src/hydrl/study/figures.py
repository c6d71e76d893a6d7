"""Learning curves, legible at half size and in colours that the colour-blind tell apart as well."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from hydrl.study.runs import Run
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


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Colour, dashes and marker of each name, the same in every picture."""
    looks = zip(names, cycle(COLOURS), cycle(("-", "--", "-.", ":")), cycle("osD^vP*X"), strict=False)
    return {name: {"color": colour, "linestyle": dash, "marker": mark} for name, colour, dash, mark in looks}


def panels(titles: Sequence[str], columns: int) -> tuple[Figure, list[Axes]]:
    """A panel for each title, in lines of ``columns``."""
    lines = -(-len(titles) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.6 * lines + 0.8), layout="constrained")
    figure.supylabel("evaluation return, IQM")
    every = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, title in zip(every, titles, strict=False):
        axes.set_title(title)
    for axes in every[len(titles) :]:
        axes.remove()
    return figure, every[: len(titles)]


def curve(axes: Axes, runs: Sequence[Run], name: str, look: Style, against: int = 0) -> None:
    """Draws a group's learning curve on a task, with its band or, where seeds are too few, the seeds.

    Args:
        axes: where.
        runs: each is carried on at its end to the end of the longest.
        name: for the legend.
        look: see :func:`styles`.
        against: 0 for frames, 1 for seconds.
    """
    start = max(run.curve[0, against] for run in runs)
    points = np.linspace(start, max(run.curve[-1, against] for run in runs), 100)
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
    named = {
        textwrap.fill(name, 60): handle
        for axes in figure.axes
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    longest = max(len(line) for name in named for line in name.splitlines())
    columns = int(max(1, min(len(named), figure.get_figwidth() * 11 // (longest + 8))))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, handlelength=3.5)
