"""Imported by the forkserver alone, so that it and its worker processes end with the run."""

import ctypes
import signal
import sys

if sys.argv[:1] == ["-c"]:  # as Python starts it
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
