"""``curves.png``: return and evaluation against frames."""

from pathlib import Path

import numpy as np

from hydrl.run.files import atomically
from hydrl.run.loggers import MetricsFile

COLUMNS = ("frames", "train/return", "eval/return_mean", "eval/return_std")


def save_curves(
    metrics: MetricsFile,
    path: Path,
    *,
    title: str,
    solved_at: float | None,
    closing: tuple[int, float, float] | None = None,
) -> None:
    """Draws the training and evaluation returns of a run; evaluation with one standard deviation.

    ``closing`` has frames, mean and standard deviation of the closing evaluation.
    """
    from matplotlib.figure import Figure

    rows = np.array([[row.get(name, np.nan) for name in COLUMNS] for row in metrics.rows])
    frames, train, mean, std = rows.reshape(-1, len(COLUMNS)).T
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    if (known := ~np.isnan(train)).any():
        mark = "." if known.sum() < 60 else ""  # where episodes end: a line of few says little
        axes.plot(frames[known], train[known], color="#E69F00", marker=mark, label="training (exploring)")
    if (known := ~np.isnan(mean)).any():
        frames, mean, std = frames[known], mean[known], std[known]
        axes.fill_between(frames, mean - std, mean + std, color="#0072B2", alpha=0.2, linewidth=0)
        axes.plot(frames, mean, color="#0072B2", marker=".", label="evaluation (deterministic), mean ± std")
    if closing is not None:
        axes.errorbar(*closing, fmt="D", color="#009E73", capsize=3, label="closing evaluation")
    if solved_at is not None:
        axes.axhline(solved_at, color="#666666", linestyle="--", label=f"solved at {solved_at:,g}")
    axes.set(title=title, xlabel="environment frames", ylabel="return of an episode")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(edgecolor="none")  # opaque, so that no line strikes it through
    with atomically(path) as partial:
        figure.savefig(partial, format="png")
