"""``curves.png``: return and evaluation against frames, and below them what a task tells of its episodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.run.atomic_files import atomically
from hydrl.run.logging.loggers import MetricsFile

COLUMNS = ("frames", "train/return", "eval/return_mean", "eval/return_std")


def save_curves(
    metrics: MetricsFile,
    path: Path,
    *,
    title: str,
    solved_at: float | None,
    frames_are: str = "environment frames",
    training: str = "training (exploring)",
    closing: tuple[int, float, float] | None = None,
    followed: Sequence[str] = (),
    ends: Mapping[str, tuple[int, float]] | None = None,
) -> None:
    """Draws the training and evaluation returns of a run; evaluation with one standard deviation.

    ``frames_are`` says what a frame is, ``training`` whose the training returns are. ``closing`` has frames,
    mean and standard deviation of the closing evaluation. Each of ``followed``, what is followed of
    Gymnasium's ``info``, has a panel of its own; ``ends`` has frames and value of its ``eval/NAME`` in the
    closing evaluation.
    """
    from matplotlib.figure import Figure

    frames, train, mean, std = (np.array([row.get(each, np.nan) for row in metrics.rows]) for each in COLUMNS)
    there = {*(ends or {})}.union(*metrics.rows)
    panels = [name for name in followed if {f"train/{name}", f"eval/{name}"} & there]
    heights = [4.0, *(1.6 for _ in panels)]
    figure = Figure(figsize=(7, sum(heights)), dpi=150, layout="constrained")
    axes, *below = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    if (known := ~np.isnan(train)).any():
        mark = "." if known.sum() < 60 else ""  # where episodes end: a line of few says little
        axes.plot(frames[known], train[known], color="#E69F00", marker=mark, label=training)
    if (known := ~np.isnan(mean)).any():
        draw_evaluations(axes, frames[known], mean[known], std[known])
    if closing is not None:
        axes.errorbar(*closing, fmt="D", color="#009E73", capsize=3, label="closing evaluation")
    if not axes.has_data():
        axes.text(0.5, 0.5, "no episode ended, none was evaluated", transform=axes.transAxes, ha="center")
    if solved_at is not None:
        axes.axhline(solved_at, color="#666666", linestyle="--", label=f"solved at {solved_at:,g}")
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


def draw_evaluations(axes: Any, frames: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Means, and one standard deviation beside them: a band, or a bar where there is but one."""
    if len(frames) == 1:
        axes.errorbar(frames, mean, std, fmt="none", ecolor="#0072B2", capsize=3)
    axes.fill_between(frames, mean - std, mean + std, color="#0072B2", alpha=0.2, linewidth=0)
    axes.plot(frames, mean, color="#0072B2", marker=".", label="evaluation (deterministic), mean ± std")


def draw_followed(axes: Any, metrics: MetricsFile, name: str, end: tuple[int, float] | None) -> None:
    """One panel: training, evaluation and the closing one, in the colours of the returns."""
    for key, color in ((f"train/{name}", "#E69F00"), (f"eval/{name}", "#0072B2")):
        points = [(row["frames"], row[key]) for row in metrics.rows if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker="." if len(points) < 60 else "")
    if end is not None:
        axes.plot(*end, marker="D", color="#009E73")
    axes.set_ylabel(name)
