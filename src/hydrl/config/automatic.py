"""What ``compile=auto`` comes to, from the configuration and the machine alone: a command repeats itself."""

import os
import shutil
import sys


def compiler() -> str:
    """The C++ compiler that PyTorch compiles with."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def compiling(loss: str, updates: int, least: int | None, *, memory: bool) -> tuple[bool, str]:
    """Whether the update is to be compiled, and why; docs/performance.md has the measurements.

    Args:
        loss: the name of its class.
        updates: in the whole run.
        least: updates from which on it pays; ``None`` where it never does.
        memory: whether the actor has one.
    """
    if memory:
        return False, "a memory cannot be compiled"
    if least is None:
        return False, f"{loss} is not known to gain by it (loss.compile_from)"
    if updates < least:
        return False, f"{updates:,} updates are too few to pay for it"
    if shutil.which(compiler()) is None:
        return False, f"it needs the C++ compiler {compiler()}, which is not there"
    return True, f"it pays in {updates:,} updates"
