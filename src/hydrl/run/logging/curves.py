"""``curves.png``: training and evaluation returns against frames, and below them metrics of ``info``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.metric_names import RETURN_MEAN, RETURN_STD, TRAIN_RETURN
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.loggers import MetricsFile

COLUMNS = ("frames", TRAIN_RETURN, RETURN_MEAN, RETURN_STD)


def save_curves(
    metrics: MetricsFile,
    path: Path,
    *,
    title: str,
    solved_return: float | None,
    frames_are: str = "environment frames",
    training: str = "training (exploring)",
    final: tuple[int, float, float] | None = None,
    followed: Sequence[str] = (),
    ends: Mapping[str, tuple[int, float]] | None = None,
) -> None:
    """Draws the training and evaluation returns of a run.

    Args:
        metrics: the rows of ``metrics.csv``.
        path: of the PNG file.
        title: above the curves.
        solved_return: return of the dashed line; ``None`` draws none.
        frames_are, training: labels of the frames and of the training returns.
        final: frames, mean and standard deviation of the final evaluation.
        followed: metrics of Gymnasium's ``info``; each has a panel of its own.
        ends: frames and value of ``eval/NAME`` in the final evaluation.
    """
    from matplotlib.figure import Figure

    columns = {*(ends or {})}.union(*metrics.rows)
    panels = [name for name in followed if {f"train/{name}", f"eval/{name}"} & columns]
    heights = [4.0, *(1.6 for _ in panels)]
    figure = Figure(figsize=(7, sum(heights)), dpi=150, layout="constrained")
    axes, *below = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    draw_returns(axes, metrics, training)
    if final is not None:
        axes.errorbar(*final, fmt="D", color="#009E73", capsize=3, label="final evaluation")
    if not axes.has_data():
        axes.text(0.5, 0.5, "no episode ended, none was evaluated", transform=axes.transAxes, ha="center")
    if solved_return is not None:
        axes.axhline(solved_return, color="#666666", linestyle="--", label=f"solved at {solved_return:,g}")
    for panel, name in zip(below, panels, strict=True):
        draw_followed(panel, metrics, name, (ends or {}).get(f"eval/{name}"))
    axes.set(title=title, ylabel="return of an episode")
    (below or [axes])[-1].set_xlabel(frames_are)
    for panel in (axes, *below):
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)  # where it hides no line
    with atomically(path) as partial:
        figure.savefig(partial, format="png")


def draw_returns(axes: Any, metrics: MetricsFile, training: str) -> None:
    """Draws training returns, and evaluations with one standard deviation: a band, or a bar for only one."""
    frames, train, mean, std = (
        np.array([row.get(column, np.nan) for row in metrics.rows]) for column in COLUMNS
    )
    if (known := ~np.isnan(train)).any():
        mark = "." if known.sum() < 60 else ""  # where episodes end: a line of few says little
        axes.plot(frames[known], train[known], color="#E69F00", marker=mark, label=training)
    if not (known := ~np.isnan(mean)).any():
        return
    frames, mean, std = frames[known], mean[known], std[known]
    if len(frames) == 1:
        axes.errorbar(frames, mean, std, fmt="none", ecolor="#0072B2", capsize=3)
    axes.fill_between(frames, mean - std, mean + std, color="#0072B2", alpha=0.2, linewidth=0)
    axes.plot(frames, mean, color="#0072B2", marker=".", label="evaluation (deterministic), mean ± std")


def draw_followed(axes: Any, metrics: MetricsFile, name: str, end: tuple[int, float] | None) -> None:
    """Draws one panel: training, evaluation and final evaluation, in the colours of the returns."""
    for key, color in ((f"train/{name}", "#E69F00"), (f"eval/{name}", "#0072B2")):
        points = [(row["frames"], row[key]) for row in metrics.rows if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker="." if len(points) < 60 else "")
    if end is not None:
        axes.plot(*end, marker="D", color="#009E73")
    axes.set_ylabel(name)
