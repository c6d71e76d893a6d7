"""Learning curves, legible at half size and for colour-blind readers."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from hydrl.errors import printable
from hydrl.experiments.baselines import PublishedReturn, baseline_curves, last_frame
from hydrl.experiments.runs import RunResult
from hydrl.experiments.statistics import MIN_RUNS, estimate, iqm

# Okabe and Ito's colours without yellow, too faint for lines; markers and dashes differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"
# Baselines have hollow markers, to differ from black runs too.
GREYS = ("#333333", "#8a8a8a", "#5f5f5f")
HOLLOW = "os^vD<p*>h"
# Matplotlib's settings.
STYLE: dict[Any, Any] = {
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "text.parse_math": False,  # names may contain $
    "svg.hashsalt": "hydrl",  # the same runs give the same file
}


@matplotlib.rc_context(STYLE)
def draw_curves(
    runs: Sequence[RunResult],
    places: Mapping[str, int],
    *files: Path,
    published: Iterable[PublishedReturn] = (),
    seconds: bool = True,
) -> None:
    """Draws a task's learning curves against frames and against seconds.

    Args:
        runs: runs of the task.
        places: as :func:`assign_styles` gives them.
        files: whose names say in which format.
        published: figures of others, of which those of the task are drawn, against frames.
        seconds: whether to draw against seconds, too.
    """
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    panels = figure.subplots(1, 1 + seconds, squeeze=False)[0]
    for against, axes in enumerate(panels):
        for name in sorted({run.group for run in runs}):
            members = [run for run in runs if run.group == name]
            look = [styles[places[name] % len(styles)] for styles in (COLOURS, DASHES, MARKERS)]
            draw_curve(axes, members, against, legend_label(name), *look)
        for threshold in filter(None, {run.threshold for run in runs}):
            axes.axhline(threshold, color="#666666", linestyle=":", label="solved")
        axes.set_ylabel("evaluation return, IQM")
    draw_baselines(panels[0], baseline_curves(published, runs), max(run.curve[-1, 0] for run in runs))
    handles, labels = panels[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))  # thresholds that differ have one name
    # Below the figure, which the picture grows to hold.
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "handlelength": 3.5}
    columns = min(4, max(1, 100 // (max(map(len, named)) + 8)))
    figure.legend(named.values(), named, ncols=columns, **place)
    for file in files:
        dateless = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, bbox_inches="tight", metadata=dateless)


def legend_label(name: str) -> str:
    """A name wrapped and shortened for a legend."""
    return textwrap.fill(printable(name), 90, max_lines=4, placeholder=" ...")


def assign_styles(runs: Iterable[RunResult]) -> dict[str, int]:
    """Of each group the look that it has on all of its tasks, on none of which another group has it."""
    tasks: dict[str, set[str]] = {}
    for run in runs:
        tasks.setdefault(run.group, set()).add(run.env)
    places: dict[str, int] = {}
    for name in sorted(tasks):
        taken = {place for other, place in places.items() if tasks[other] & tasks[name]}
        places[name] = next(place for place in count() if place not in taken)
    return places


def draw_curve(
    axes: Axes, runs: Sequence[RunResult], against: int, label: str, colour: str, dashes: str, marker: str
) -> None:
    """Draws a group's learning curve with its interval or, with too few seeds, each seed.

    A shorter run continues at its last value. ``against`` is 0 for frames, 1 for seconds.
    """
    start = max(run.curve[0, against] for run in runs)
    points = np.unique(np.concatenate([run.curve[:, against] for run in runs]))
    points = points[points >= start]
    returns = np.array([np.interp(points, run.curve[:, against], run.curve[:, 2]) for run in runs])
    middle, low, high = estimate(iqm, returns)
    axes.plot(points, middle, dashes, color=colour, marker=marker, label=label, markevery=[-1])
    axes.fill_between(points, low, high, color=colour, alpha=0.12, linewidth=0, zorder=1)
    for thin in (low, high) if len(runs) >= MIN_RUNS else returns:  # edges tell bands apart that overlap
        axes.plot(points, thin, dashes, color=colour, linewidth=0.8, alpha=0.6, zorder=1)
    axes.set_xlabel(("environment frames", "seconds of the loop")[against])
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter((EngFormatter(sep=""), StrMethodFormatter("{x:,.10g}"))[against])
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def draw_baselines(axes: Axes, published: dict[str, list[PublishedReturn]], longest: float) -> None:
    """Draws published baselines up to the end of the figure.

    Baselines at the same frame are drawn slightly apart, so that error bars stay readable.
    """
    if not published:
        return
    end = last_frame(published, longest)
    near = {name: [row for row in rows if row.frames <= end] for name, rows in published.items()}
    near = {name: rows for name, rows in near.items() if rows}
    alike = Counter(row.frames for rows in near.values() for row in rows)
    for place, (name, shown) in enumerate(near.items()):
        grey, marker = (styles[place % len(styles)] for styles in (GREYS, HOLLOW))
        apart = ((place + 0.5) / len(near) - 0.5) * 0.06 * end
        frames = [row.frames + apart * (alike[row.frames] > 1) for row in shown]
        returns, std = ([getattr(row, key) for row in shown] for key in ("return_mean", "std"))
        look: dict[str, Any] = {
            "color": grey,
            "marker": marker,
            "markersize": 8,
            "markerfacecolor": "none",
            "linewidth": 0.8,
        }
        known = any(deviation is not None for deviation in std)
        errors = [np.nan if deviation is None else deviation for deviation in std] if known else None
        axes.errorbar(frames, returns, errors, label=legend_label(name), capsize=3, zorder=1.5, **look)
    axes.set_xlim(axes.get_xlim()[0], end)
