"""``curves.png``: return and evaluation against frames."""

from pathlib import Path

from hydrl.run.loggers import MetricsFile


def save_curves(metrics: MetricsFile, path: Path, *, title: str, solved_at: float | None) -> None:
    """Draws the training and evaluation returns of a run; evaluation with one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    train = [(row["frames"], row["train/return"]) for row in metrics.rows if "train/return" in row]
    evals = [
        (row["frames"], row["eval/return_mean"], row["eval/return_std"])
        for row in metrics.rows
        if "eval/return_mean" in row
    ]
    if train:
        axes.plot(*zip(*train, strict=True), color="#E69F00", linewidth=1.2, label="training return")
    if evals:
        frames, means, deviations = (list(column) for column in zip(*evals, strict=True))
        low = [mean - std for mean, std in zip(means, deviations, strict=True)]
        high = [mean + std for mean, std in zip(means, deviations, strict=True)]
        axes.fill_between(frames, low, high, color="#0072B2", alpha=0.2, linewidth=0)
        axes.plot(frames, means, color="#0072B2", marker="o", markersize=4, label="evaluation, mean ± std")
    if solved_at is not None:
        axes.axhline(
            solved_at, color="#666666", linestyle="--", linewidth=1, label=f"solved at {solved_at:,g}"
        )
    axes.set_title(title)
    axes.set_xlabel("environment frames")
    axes.set_ylabel("return of an episode")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)
