"""How long OpenMP's threads spin while they wait, which they read once, as PyTorch is imported."""

import os
import sys

SPINS = "0"  # docs/performance.md, "Two threads beside other work"
OWN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # either says it


def limit_spinning() -> None:
    """Has waiting threads sleep soon, so that two of them do not keep each other from a core.

    The user's own variables stay, and processes that are started inherit what is set. Where PyTorch is
    there already it would change nothing, and is left alone.
    """
    if "torch" not in sys.modules and not is_limited():
        os.environ["GOMP_SPINCOUNT"] = SPINS


def is_limited() -> bool:
    """Whether that was set in time, here or by the user."""
    return bool(OWN & os.environ.keys())
