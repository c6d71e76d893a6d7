"""Rendering without a display. MuJoCo and pygame look at this when they are imported, so it comes before."""

import os
import sys
from ctypes.util import find_library
from importlib.util import find_spec

from hydrl.errors import UserError


def prepare(key: str = "video") -> None:
    """Lets MuJoCo render through EGL and pygame into memory, except where the user chose something else.

    Args:
        key: what asks for it, to be named where it cannot be.

    Raises:
        UserError: where a package is missing, or MuJoCo refuses the user's ``MUJOCO_GL``.
    """
    if find_spec("av") is None:
        raise UserError(f"{key}=true needs PyAV, which is not installed: pip install -e '.[video]'")
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL") and find_library("EGL"):
        os.environ["MUJOCO_GL"] = "egl"  # without the library the import below would fail, whatever is filmed
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import mujoco  # noqa: F401
    except Exception as error:
        chosen, reason = os.environ.get("MUJOCO_GL", ""), " ".join(str(error).split())
        raise UserError(f"MUJOCO_GL={chosen}: MuJoCo cannot load it: {reason}; unset it") from error
