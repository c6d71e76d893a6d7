"""Statistics of groups of runs with few seeds.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), for each task alone.
"""

from collections.abc import Callable

import numpy as np

from hydrl.errors import UserError

try:
    from scipy import stats
except ImportError:
    raise UserError("intervals need SciPy, which is not installed: pip install 'hydrl[report]'") from None

RESAMPLES = 2_000
# Runs that a group needs for an interval. The range of n runs holds the median with probability 1 - 2^(1-n):
# 94% for five, 75% for three, and a resample never leaves that range.
MIN_RUNS = 5


def iqm(runs: np.ndarray, axis: int = 0) -> np.ndarray:
    """Interquartile mean: mean of the middle half of the runs; of all if there are fewer than four."""
    return stats.trim_mean(runs, 0.25, axis=axis)


def probability_of_improvement(one: np.ndarray, other: np.ndarray, axis: int = 0) -> np.ndarray:
    """Probability that a run of ``one`` scores higher than one of ``other``; ties count half."""
    one, other = (np.moveaxis(scores, axis, -1) for scores in (one, other))
    return (np.sign(one[..., :, None] - other[..., None, :]).mean((-2, -1)) + 1) / 2


def estimate(statistic: Callable[..., np.ndarray], *groups: np.ndarray) -> np.ndarray:
    """A statistic and its 95% bootstrap interval over runs.

    Args:
        statistic: maps arrays ``[runs, ...]`` to one ``[...]``.
        groups: one array a group, each with its own number of runs.

    Returns:
        value, low and high, ``[3, ...]``; low and high are NaN if a group has fewer than ``MIN_RUNS`` runs.
    """
    value = statistic(*groups)
    if min(map(len, groups)) < MIN_RUNS:
        return np.array([value, value * np.nan, value * np.nan])
    size = {"n_resamples": RESAMPLES, "batch": 200}  # the batch bounds memory
    result = stats.bootstrap(groups, statistic, **size, vectorized=True, method="percentile", rng=0)
    return np.array([value, *result.confidence_interval])


def is_on_front(points: np.ndarray) -> np.ndarray:
    """Which points no other dominates: ``[points]`` booleans, the Pareto front.

    One point dominates another if it is at least as high in every objective, and higher in one.

    Args:
        points: ``[points, objectives]``.
    """
    at_least = (points[:, None] >= points).all(-1)
    higher = (points[:, None] > points).any(-1)
    return np.asarray(~(at_least & higher).any(0))


def format_number(value: float) -> str:
    """About three digits, with thousands separators."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
