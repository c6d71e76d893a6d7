"""PyTorch's shared libraries, loaded on a second core while the configuration is composed."""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

LIBRARIES = ("libtorch_global_deps.so", "libtorch.so")  # in the order in which `import torch` loads them


def load_in_background() -> None:
    """Starts a thread that loads PyTorch's libraries; a later ``import torch`` finds them loaded.

    They take 0.3 of the 4.4 seconds of processor time until the first environment step. The system's own
    ``dlopen`` is called, for that leaves Python's lock to other threads. No effect without a second core.
    """
    if "torch" in sys.modules or sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return
    if (spec := find_spec("torch")) is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "lib"
        Thread(target=load, args=[folder], daemon=True).start()


def load(folder: Path) -> None:
    """Loads the libraries in a folder; the errors are left to ``import torch``, which explains them."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    for name in LIBRARIES:
        is_global = "global" in name
        dlopen(bytes(folder / name), os.RTLD_NOW | (os.RTLD_GLOBAL if is_global else os.RTLD_LOCAL))
