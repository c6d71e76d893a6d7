"""OpenMP's spinning: how long its threads busy-wait, which is read once, when PyTorch is imported."""

import os
import sys

SPINS = "0"  # docs/notes/performance.md, "Two threads beside other work"
OWN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # either says it


def limit_spinning() -> None:
    """Makes waiting threads sleep soon, so that two of them do not keep each other from a core.

    The user's own variables stay, and child processes inherit these. No effect once PyTorch is imported.
    """
    if "torch" not in sys.modules and not is_limited():
        os.environ["GOMP_SPINCOUNT"] = SPINS


def is_limited() -> bool:
    """Whether spinning was limited in time, here or by the user."""
    return bool(OWN & os.environ.keys())
