"""How well groups of runs score and how sure that is, given few seeds.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (2021), for each task alone.
"""

from collections.abc import Callable

import numpy as np

from hydrl.errors import UserError

try:
    from scipy import stats
except ImportError:
    raise UserError("intervals over seeds need SciPy: pip install 'hydrl[report]'") from None

RESAMPLES = 2_000
FEW = 3  # runs of a group below which there is no interval


def iqm(runs: np.ndarray, axis: int = 0) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of the runs; of all, if they are fewer than four."""
    return stats.trim_mean(runs, 0.25, axis=axis)


def improvement(one: np.ndarray, other: np.ndarray, axis: int = 0) -> np.ndarray:
    """Probability that a run of ``one`` scores higher than one of ``other``; ties count half."""
    one, other = (np.moveaxis(each, axis, -1) for each in (one, other))
    return (np.sign(one[..., :, None] - other[..., None, :]).mean((-2, -1)) + 1) / 2


def estimate(statistic: Callable[..., np.ndarray], *groups: np.ndarray) -> np.ndarray:
    """A statistic and its 95% interval, each group's runs drawn anew with replacement.

    Args:
        statistic: of arrays of shape (runs, …) to one of shape (…).
        groups: one array each, of its own number of runs.

    Returns:
        value, low and high, of shape (3, …); low and high are NaN if a group has fewer than ``FEW`` runs.
    """
    value = statistic(*groups)
    if min(map(len, groups)) < FEW:
        return np.array([value, value * np.nan, value * np.nan])
    size = {"n_resamples": RESAMPLES, "batch": 200}  # the batch bounds memory
    found = stats.bootstrap(groups, statistic, **size, vectorized=True, method="percentile", rng=0)
    return np.array([value, *found.confidence_interval])
