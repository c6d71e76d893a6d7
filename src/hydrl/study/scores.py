"""Scores of runs and how sure they are, given few seeds.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), and agree with those of its library rliable; intervals are SciPy's bootstrap, stratified by
task, which unlike that library takes tasks with different numbers of runs.
"""

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from hydrl.errors import UserError
from hydrl.study.runs import Run

try:
    from scipy import stats
except ImportError:
    raise UserError("intervals over seeds need SciPy: pip install -e '.[report]'") from None

RESAMPLES = 2_000
FEW = 3  # runs of a task below which there is no interval


def iqm(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of all runs; of all, if they are fewer than four."""
    return stats.trim_mean(np.concatenate(tasks, axis), 0.25, axis=axis)


def mean(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean over tasks of the mean over runs."""
    return np.mean([each.mean(axis) for each in tasks], axis=0)


def improvement(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Probability that a run of the first half of ``tasks`` beats one of the second; ties count half."""
    runs = [np.moveaxis(each, axis, -1) for each in tasks]
    pairs = zip(runs[: len(runs) // 2], runs[len(runs) // 2 :], strict=True)
    wins = [np.sign(x[..., :, None] - y[..., None, :]).mean((-2, -1)) for x, y in pairs]
    return (np.mean(wins, axis=0) + 1) / 2


def estimate(statistic: Callable[..., np.ndarray], *tasks: np.ndarray) -> np.ndarray:
    """A statistic and its 95% interval, each task's runs drawn anew with replacement.

    Args:
        statistic: of arrays of shape (runs, …) to one of shape (…).
        tasks: one array a task, each of its own number of runs.

    Returns:
        value, low and high, of shape (3, …); no numbers for low and high if a task has fewer than ``FEW`` runs.
    """
    value = statistic(*tasks)
    if min(map(len, tasks)) < FEW:
        return np.array([value, value * np.nan, value * np.nan])
    few = {"n_resamples": RESAMPLES, "batch": 200}  # so many resamples in memory at once
    found = stats.bootstrap(tasks, statistic, **few, vectorized=True, method="percentile", rng=0)
    return np.array([value, *found.confidence_interval])


def curve(runs: Sequence[Run], against: int) -> tuple[np.ndarray, np.ndarray]:
    """The runs' evaluations at common points, each run's last one carried on to the end of the longest.

    Args:
        runs: of one group and task.
        against: 0 for frames, 1 for seconds.

    Returns:
        points of shape (100,) and returns of shape (runs, 100).
    """
    start = max(run.curve[0, against] for run in runs)
    points = np.linspace(start, max(run.curve[-1, against] for run in runs), 100)
    return points, np.array([np.interp(points, run.curve[:, against], run.curve[:, 2]) for run in runs])


def scale(runs: Sequence[Run]) -> tuple[float, float]:
    """The returns that a task's normalised 0 and 1 stand for.

    1 is the threshold that counts as solved, or the best score of a task that has none; 0 is what the runs
    began with, the median of their first training returns, or one less than 1 if they began there already.
    """
    one = max([run.threshold for run in runs if run.threshold is not None] or [run.score for run in runs])
    zero = statistics.median(run.start for run in runs)
    return zero if zero < one else one - 1, one
