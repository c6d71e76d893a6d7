"""Scores of runs and how sure they are, given few seeds.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), and agree with those of its library rliable; intervals are SciPy's bootstrap, stratified by
task, which unlike that library takes tasks with different numbers of runs.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from hydrl.study.runs import Run

RESAMPLES = 2_000
FEW = 3  # runs of a task below which there is no interval

Statistic = Callable[..., np.ndarray]
# A value and the low and high of its interval, if it has one.
Estimate = tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]


def iqm(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of all runs; of all, if they are fewer than four."""
    return stats.trim_mean(np.concatenate(tasks, axis), 0.25, axis=axis)


def mean(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean over tasks of the mean over runs."""
    return np.mean([each.mean(axis) for each in tasks], axis=0)


def median(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Median over tasks of the mean over runs; of one task, the median over its runs."""
    return (
        np.median([each.mean(axis) for each in tasks], axis=0)
        if len(tasks) > 1
        else np.median(tasks[0], axis)
    )


def gap(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Optimality gap: how far scores stay below 1 on average, those above it counted as 1."""
    return 1 - mean(*(np.minimum(each, 1) for each in tasks), axis=axis)


def improvement(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Probability that a run of the first half of ``tasks`` beats one of the second; ties count half."""
    half = len(tasks) // 2
    pairs = zip(tasks[:half], tasks[half:], strict=True)
    return np.mean([wins(np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1)) for x, y in pairs], axis=0)


def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The share of pairs that ``x`` wins, of shape (…) from (…, runs) and (…, other runs)."""
    return (np.sign(x[..., :, None] - y[..., None, :]).mean((-2, -1)) + 1) / 2


AGGREGATES: Mapping[str, Statistic] = {
    "IQM": iqm,
    "mean": mean,
    "median": median,
    "optimality gap": gap,
}


def interval(statistic: Statistic, *tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """95% interval of a statistic, each task's runs drawn anew with replacement.

    Args:
        statistic: of arrays of shape (runs, …) to one of shape (…).
        tasks: one array a task, each of its own number of runs.

    Returns:
        low and high, or ``None`` where a task has too few runs to say.
    """
    if min(map(len, tasks)) < FEW:
        return None
    found = stats.bootstrap(
        tasks,
        statistic,
        n_resamples=RESAMPLES,
        batch=200,  # resamples in memory at once
        axis=0,
        vectorized=True,
        method="percentile",
        rng=0,
    ).confidence_interval
    return found.low, found.high


def estimate(statistic: Statistic, *tasks: np.ndarray) -> Estimate:
    """A statistic with its 95% interval; arguments as of :func:`interval`."""
    return statistic(*tasks), interval(statistic, *tasks)


def curve(runs: Sequence[Run], against: int) -> tuple[np.ndarray, np.ndarray]:
    """The runs' evaluations at common points, each run's last one carried on to the end of the longest.

    Args:
        runs: of one group and task.
        against: 0 for frames, 1 for seconds.

    Returns:
        points of shape (100,) and returns of shape (runs, 100).
    """
    start = max(run.curve[against, 0] for run in runs)
    points = np.linspace(start, max(run.curve[against, -1] for run in runs), 100)
    return points, np.array([np.interp(points, run.curve[against], run.curve[2]) for run in runs])


def scale(runs: Iterable[Run]) -> tuple[float, float]:
    """The returns that a task's normalised 0 and 1 stand for.

    1 is the threshold that counts as solved, or the best score of a task that has none; 0 is what the runs
    began with, the median of their first training returns, or the lowest evaluation if they began with 1.
    """
    runs = list(runs)
    thresholds = [run.threshold for run in runs if run.threshold is not None]
    one = max(thresholds or [run.score for run in runs])
    lows = statistics.median(run.start for run in runs), min(run.curve[2].min() for run in runs)
    return next((float(low) for low in lows if low < one), one - 1), one


def of_task(runs: Iterable[Run], env: str) -> np.ndarray:
    """Scores of the runs on a task, of shape (runs,)."""
    return np.array([run.score for run in runs if run.env == env])
