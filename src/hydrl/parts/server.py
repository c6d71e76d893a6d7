"""Imported by the process whose copies are workers and what evaluates, for the seconds that imports take.

Nothing here opens what a copy could not share, as MuJoCo does a display.
"""

import ctypes
import signal
import sys

import gymnasium  # noqa: F401
import torchrl.checkpoint
import torchrl.collectors
import torchrl.envs
import torchrl.modules  # noqa: F401

if sys.argv[:1] == [
    "-c"
]:  # so Python starts it; PR_SET_PDEATHSIG: it ends with the run, and its copies with it
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
