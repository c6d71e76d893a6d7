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
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
}
LOG_RATIO = 20  # of the longest run to the shortest, from which the horizontal axis is logarithmic
THRESHOLD_MARGIN = 0.5  # a threshold this share of the curves' range away is still drawn


@matplotlib.rc_context(STYLE)
def draw_curves(
    runs: Sequence[RunResult],
    style_numbers: Mapping[str, int],
    *files: Path,
    published: Iterable[PublishedReturn] = (),
    seconds: bool = True,
    reward_threshold: bool = True,
) -> None:
    """Figure of an environment's learning curves against frames and against seconds.

    Args:
        runs: runs of the environment.
        style_numbers: number of each group's style, by :func:`assign_styles`.
        files: files to write; their suffixes choose the formats.
        published: published returns; those of the environment are drawn against frames.
        seconds: adds the panel against seconds.
        reward_threshold: draws the return at which the environment counts as solved.
    """
    figure = Figure(figsize=(9.6, 3.8) if seconds else (6.4, 3.8), layout="constrained")
    panels = figure.subplots(1, 1 + seconds, squeeze=False, sharey=True)[0]
    for column, axes in enumerate(panels):
        for name in sorted({run.group for run in runs}):
            members = [run for run in runs if run.group == name]
            style = [styles[style_numbers[name] % len(styles)] for styles in (COLOURS, DASHES, MARKERS)]
            draw_curve(axes, members, column, legend_label(name), *style)
        ends = [run.curve[-1, column] for run in runs]
        if max(ends) > LOG_RATIO * max(1, min(ends)):
            formatter = axes.xaxis.get_major_formatter()
            axes.set_xscale("log")  # which has a formatter of its own
            axes.xaxis.set_major_formatter(formatter)
    panels[0].set_ylabel("evaluation return (IQM)")
    draw_baselines(panels[0], baseline_curves(published, runs), max(run.curve[-1, 0] for run in runs))
    if reward_threshold:
        draw_thresholds(panels, sorted({run.threshold for run in runs if run.threshold is not None}))
    save_with_legend(figure, panels[0], files)


def save_with_legend(figure: Figure, axes: Axes, files: Iterable[Path]) -> None:
    """Writes a figure with the legend of ``axes`` below it; the file grows to hold it."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(4, max(1, 100 // (max(map(len, labels)) + 8)))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "handlelength": 3.5}
    figure.legend(handles, labels, ncols=columns, **place)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # none: the same runs, the same file
    for file in files:
        figure.savefig(file, dpi=150, bbox_inches="tight", metadata=dates.get(file.suffix))


def draw_thresholds(panels: Sequence[Axes], thresholds: Sequence[float]) -> None:
    """Draws reward thresholds near the curves; the legend names them all.

    One that is far from the curves would flatten them.
    """
    low, high = panels[0].dataLim.intervaly
    margin = THRESHOLD_MARGIN * (high - low)
    for threshold in thresholds:
        is_near = low - margin <= threshold <= high + margin
        label = f"reward threshold {threshold:,g}" + ", outside the figure" * (not is_near)
        for axes in panels if is_near else ():
            axes.axhline(threshold, color="#666666", linestyle=":", label=label)
        if not is_near:
            panels[0].plot([], [], linestyle="none", label=label)


def legend_label(name: str) -> str:
    """A name wrapped and shortened for a legend."""
    return textwrap.fill(printable(name), 90, max_lines=4, placeholder=" ...")


def assign_styles(runs: Iterable[RunResult]) -> dict[str, int]:
    """Style number of each group: the same in all figures, and different from the others of a figure."""
    envs: dict[str, set[str]] = {}
    for run in runs:
        envs.setdefault(run.group, set()).add(run.env)
    numbers: dict[str, int] = {}
    for name in sorted(envs):
        used = {number for other, number in numbers.items() if envs[other] & envs[name]}
        numbers[name] = next(number for number in count() if number not in used)
    return numbers


def draw_curve(
    axes: Axes, runs: Sequence[RunResult], column: int, label: str, colour: str, dashes: str, marker: str
) -> None:
    """Draws a group's IQM with its 95% interval or, with too few seeds, the curve of each seed.

    A run that ended early keeps its last value. ``column`` of the curves is 0 for frames, 1 for seconds.
    """
    start = max(run.curve[0, column] for run in runs)
    points = np.unique(np.concatenate([run.curve[:, column] for run in runs]))
    points = points[points >= start]
    returns = np.array([np.interp(points, run.curve[:, column], run.curve[:, 2]) for run in runs])
    middle, low, high = estimate(iqm, returns)
    axes.plot(points, middle, dashes, color=colour, marker=marker, label=label, markevery=[-1])
    axes.fill_between(points, low, high, color=colour, alpha=0.12, linewidth=0, zorder=1)
    for edge in (low, high) if len(runs) >= MIN_RUNS else returns:  # edges separate bands that overlap
        axes.plot(points, edge, dashes, color=colour, linewidth=0.8, alpha=0.6, zorder=1)
    axes.set_xlabel(("environment steps", "training time [s]")[column])
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter((EngFormatter(sep=""), StrMethodFormatter("{x:,.10g}"))[column])
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
    rows_at = Counter(row.frames for rows in near.values() for row in rows)
    for number, (name, rows) in enumerate(near.items()):
        grey, marker = (styles[number % len(styles)] for styles in (GREYS, HOLLOW))
        shift = ((number + 0.5) / len(near) - 0.5) * 0.06 * end
        frames = [row.frames + shift * (rows_at[row.frames] > 1) for row in rows]
        stds = [np.nan if row.std is None else row.std for row in rows]
        style: dict[str, Any] = {"color": grey, "marker": marker, "markersize": 8, "markerfacecolor": "none"}
        axes.errorbar(
            frames,
            [row.return_mean for row in rows],
            None if np.isnan(stds).all() else stds,
            label=legend_label(name),
            capsize=3,
            linewidth=0.8,
            zorder=1.5,
            **style,
        )
    axes.set_xlim(axes.get_xlim()[0], end)
