"""Overrides as they are typed: ``key=value``."""

from pathlib import Path


def key_of(override: str) -> str:
    """``+optim.lr=1`` to ``optim.lr``."""
    return override.partition("=")[0].lstrip("+~")


def quoted(path: Path) -> str:
    """A path as Hydra reads it back, whatever is in it."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
