"""The pictures of a report: legible at half size, in colours that the colour-blind tell apart as well."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hydrl.study.runs import Run
from hydrl.study.scores import Estimate, curve, interval, iqm, mean

# Okabe and Ito's colours without the yellow, too faint for a line; marker and dashes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
REFERENCE: dict[str, Any] = {"color": "#666666", "linestyle": (0, (2, 2)), "linewidth": 1.2}
# Matplotlib's settings under which the pictures are drawn and saved.
LOOK: dict[Any, Any] = {
    "font.size": 12,
    "lines.linewidth": 1.8,
    "axes.titlesize": 13,
    "axes.unicode_minus": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.titlesize": 14,
    "figure.labelsize": 12,
    "legend.frameon": False,
    "text.parse_math": False,  # names are text, whatever is in them
    "svg.hashsalt": "hydrl",
}
Style = Mapping[str, Any]


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Colour, marker and dashes of each group, the same in every picture."""
    return {
        name: {
            "color": COLOURS[position % len(COLOURS)],
            "marker": MARKERS[position % len(MARKERS)],
            "linestyle": DASHES[position % len(DASHES)],
        }
        for position, name in enumerate(names)
    }


def subplots(width: float, height: float, count: int) -> tuple[Figure, list[Axes]]:
    """Panels side by side, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def curves(env: str, groups: Mapping[str, Sequence[Run]], looks: Mapping[str, Style]) -> Figure:
    """Learning curves on a task, against frames and against seconds.

    Args:
        env: the task.
        groups: the runs on it.
        looks: see :func:`styles`.
    """
    figure, panels = subplots(10, 4.4 + 0.25 * len(groups), 2)
    thresholds = {run.threshold for runs in groups.values() for run in runs if run.threshold is not None}
    for against, axes in enumerate(panels):
        for position, (name, runs) in enumerate(groups.items()):
            points, returns = curve(runs, against)
            label = wrap(f"{name} ({len(runs)}\N{NO-BREAK SPACE}seed{'s' if len(runs) > 1 else ''})", 60)
            marks = (5 * position % 16, 16)  # so that markers of one height do not hide each other
            axes.plot(points, iqm(returns), label=label, markevery=marks, markersize=7, **looks[name])
            if band := interval(iqm, returns):
                shade(axes, points, band, looks[name])
            elif len(runs) > 1:
                axes.plot(points, returns.T, color=looks[name]["color"], linewidth=0.9, alpha=0.6)
        for threshold in sorted(thresholds):
            axes.axhline(threshold, label=f"solved at {threshold:,g}", **REFERENCE)
        axes.set_xlabel(("environment frames", "wall-clock time since the start, s")[against])
        axes.set_ylabel("evaluation return, IQM" if axes is panels[0] else "")
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    panels[1].sharey(panels[0])
    figure.suptitle(env)
    legend(figure, panels[0])
    return figure


def shade(axes: Axes, points: np.ndarray, band: tuple[np.ndarray, np.ndarray], look: Style) -> None:
    """A band below all lines, with edges by which it can be told from another that it lies on."""
    axes.fill_between(points, *band, color=look["color"], alpha=0.12, linewidth=0, zorder=1)
    dashes = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 0.8}
    for edge in band:
        axes.plot(points, edge, alpha=0.6, zorder=1, **dashes)


def legend(figure: Figure, axes: Axes) -> None:
    """Names the lines below the panels, where nothing can be hidden."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = int(min(len(labels), max(1, figure.get_figwidth() * 11 // (longest + 8))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.5)


def scores(estimates: Mapping[str, Mapping[str, Estimate]], looks: Mapping[str, Style]) -> Figure:
    """Aggregate scores, a panel each.

    Args:
        estimates: by name of the aggregate and of the group.
        looks: see :func:`styles`.
    """
    names = [wrap(name, 36) for name in looks]
    figure, panels = subplots(12, 1.5 + height_of(names), len(estimates))
    for axes, (title, groups) in zip(panels, estimates.items(), strict=True):
        for height, (name, estimate) in enumerate(groups.items()):
            bar(axes, height, estimate, looks[name])
        rows(axes, names if axes is panels[0] else [""] * len(names))
        axes.set_title(title)
        axes.set_xlabel("lower is better" if title == "optimality gap" else "higher is better", fontsize=11)
    figure.supxlabel("normalised score")
    return figure


def profile(
    normalised: Mapping[str, Sequence[np.ndarray]], looks: Mapping[str, Style], bounds: np.ndarray
) -> Figure:
    """The share of runs that score above each bound.

    Args:
        normalised: by group, scores of shape (runs,) for each task.
        looks: see :func:`styles`.
        bounds: of shape (bounds,).
    """
    figure, (axes,) = subplots(8, 4.6 + 0.2 * len(normalised), 1)
    for position, (name, tasks) in enumerate(normalised.items()):
        above = [task[:, None] > bounds for task in tasks]
        marks = (5 * position % 24, 24)
        axes.plot(bounds, mean(*above), label=wrap(name, 60), markevery=marks, markersize=7, **looks[name])
        if band := interval(mean, *above):
            shade(axes, bounds, band, looks[name])
    axes.set_xlabel("normalised score τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_ylim(-0.03, 1.03)
    legend(figure, axes)
    return figure


def comparison(pairs: Mapping[tuple[str, str], Estimate], looks: Mapping[str, Style]) -> Figure:
    """How probably a run of the first group scores higher than one of the second."""
    names = [f"{wrap(first, 36)}\n{wrap(f'over {second}', 36)}" for first, second in pairs]
    figure, (axes,) = subplots(9, 1.2 + height_of(names), 1)
    for height, ((first, _), estimate) in enumerate(pairs.items()):
        bar(axes, height, estimate, looks[first])
    rows(axes, names)
    axes.axvline(0.5, **REFERENCE)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("probability that the first scores higher")
    return figure


def bar(axes: Axes, height: float, estimate: Estimate, look: Style) -> None:
    """A value and its interval at a height."""
    value, limits = estimate
    if limits:
        axes.barh(height, limits[1] - limits[0], left=limits[0], height=0.5, color=look["color"], alpha=0.35)
    axes.plot(value, height, color=look["color"], marker=look["marker"], markersize=9)


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the rows of a panel, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.use_sticky_edges = False  # bars would end at the frame and markers be cut
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=4)


def height_of(names: Sequence[str]) -> float:
    """Inches that rows need for all their lines to be read."""
    return len(names) * (0.25 + 0.2 * max(name.count("\n") + 1 for name in names))


def wrap(text: str, width: int) -> str:
    """Lines of at most ``width`` characters."""
    return textwrap.fill(text, width)
