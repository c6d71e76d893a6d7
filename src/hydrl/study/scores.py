"""How well groups of runs score and how sure that is, given few seeds.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021); unlike in its library rliable, tasks may have different numbers of runs.
"""

from collections.abc import Callable

import numpy as np

from hydrl.errors import UserError

try:
    from scipy import stats
except ImportError:
    raise UserError("intervals over seeds need SciPy: pip install -e '.[report]'") from None

RESAMPLES = 2_000
FEW = 3  # runs of a task below which there is no interval


def iqm(runs: np.ndarray, axis: int = 0) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of the runs; of all, if they are fewer than four."""
    return stats.trim_mean(runs, 0.25, axis=axis)


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
        value, low and high, of shape (3, …); low and high are NaN if a task has fewer than ``FEW`` runs.
    """
    value = statistic(*tasks)
    if min(map(len, tasks)) < FEW:
        return np.array([value, value * np.nan, value * np.nan])
    size = {"n_resamples": RESAMPLES, "batch": 200}  # the batch bounds memory
    found = stats.bootstrap(tasks, statistic, **size, vectorized=True, method="percentile", rng=0)
    return np.array([value, *found.confidence_interval])
