"""Pieces of a Markdown page."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def code(text: Any) -> str:
    """Text set as it is, in a table too."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def number(value: Any) -> str:
    """About three digits, the thousands set apart."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def between(found: np.ndarray) -> str:
    """A value with its interval, if it has one."""
    value, low, high = found
    return number(value) if np.isnan(low) else f"{number(value)} [{number(low)}, {number(high)}]"


def spread(values: np.ndarray) -> str:
    """Mean and sample standard deviation."""
    return number(values.mean()) + (f" ± {number(values.std(ddof=1))}" if len(values) > 1 else "")


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells as they stand."""
    return "\n".join(f"| {' | '.join(each)} |" for each in [names, ["---"] * len(names), *rows])
