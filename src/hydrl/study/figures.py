"""Learning curves, legible at half size and in colours that the colour-blind tell apart as well."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from hydrl.study import scores
from hydrl.study.runs import Run

# Okabe and Ito's colours without the yellow, too faint for a line; marker and dashes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
# Matplotlib's settings under which pictures are drawn and saved.
LOOK: dict[Any, Any] = {
    "font.size": 12,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "axes.unicode_minus": False,
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
    looks = zip(cycle(COLOURS), cycle(DASHES), cycle("osD^vP*X"), strict=False)
    return {
        name: {"color": color, "linestyle": dashes, "marker": marker}
        for name, (color, dashes, marker) in zip(names, looks, strict=False)
    }


def panels(count: int, columns: int) -> tuple[Figure, list[Axes]]:
    """So many panels in lines of ``columns``."""
    lines = -(-count // columns)
    figure = Figure(figsize=(4.8 * columns, 3.6 * lines + 0.8), layout="constrained")
    figure.supylabel("evaluation return, IQM")
    every = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]


def curve(axes: Axes, runs: Sequence[Run], look: Style, *, against: int = 0, label: str = "") -> None:
    """The learning curve of a group on a task, with its band or, where seeds are too few, the seeds.

    Args:
        axes: where.
        runs: of the group on the task.
        look: see :func:`styles`.
        against: 0 for frames, 1 for seconds.
        label: for the legend.
    """
    points, returns = scores.curve(runs, against)
    middle, low, high = scores.estimate(scores.iqm, returns)
    axes.plot(points, middle, label=label, markevery=[-1], **look)
    axes.fill_between(points, low, high, color=look["color"], alpha=0.12, linewidth=0, zorder=1)
    thin = [low, high] if len(runs) >= scores.FEW else returns  # edges tell bands apart that overlap
    for each in thin:
        axes.plot(points, each, **{**look, "marker": ""}, linewidth=0.8, alpha=0.6, zorder=1)
    axes.set_xlabel(("environment frames", "seconds since the start")[against])
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter((EngFormatter(sep=""), StrMethodFormatter("{x:,.10g}"))[against])
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def task(groups: Mapping[str, Sequence[Run]], looks: Mapping[str, Style]) -> Figure:
    """Learning curves of the groups on one task, against frames and against seconds."""
    figure, both = panels(2, 2)
    for against, axes in enumerate(both):
        for name, runs in groups.items():
            curve(axes, runs, looks[name], against=against, label=f"{name} (seeds: {len(runs)})")
        for each in {run.threshold for runs in groups.values() for run in runs if run.threshold is not None}:
            axes.axhline(each, color="#666666", linestyle=":", label=f"solved at {each:,g}")
    both[1].sharey(both[0])
    legend(figure, both[0].get_legend_handles_labels()[0])
    return figure


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Names the lines below the panels, where nothing can be hidden."""
    labels = [textwrap.fill(str(each.get_label()), 60) for each in handles]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = int(max(1, min(len(labels), figure.get_figwidth() * 11 // (longest + 8))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.5)
