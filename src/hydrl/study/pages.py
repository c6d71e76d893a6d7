"""Pieces of a Markdown page; whatever text a run folder brought, it breaks no table and is no markup."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.run.files import atomically


def cell(text: Any) -> str:
    """Text of a table or paragraph."""
    return re.sub(r"([|\\`*\[<])", r"\\\1", " ".join(str(text).split()))


def code(text: Any) -> str:
    """Text set as code, in a table too."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def number(value: Any) -> str:
    """About three digits, the thousands set apart."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def between(found: np.ndarray) -> str:
    """A value with its interval, if it has one."""
    value, low, high = found
    return number(value) if np.isnan(low) else f"{number(value)} [{number(low)}, {number(high)}]"


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation."""
    return number(np.mean(values)) + (f" ± {number(np.std(values, ddof=1))}" if len(values) > 1 else "")


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells as they stand."""
    return "\n".join(f"| {' | '.join(each)} |" for each in [names, ["---"] * len(names), *rows])


def write(page: Path, parts: Iterable[str]) -> None:
    """Writes a page of paragraphs, tables and the like."""
    with atomically(page) as partial:
        partial.write_text("\n\n".join(parts) + "\n")
