"""Rendering without a display. MuJoCo and pygame look at this when they are imported, so it comes before."""

import ctypes
import os
import sys
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
    if sys.platform == "linux" and has_egl() and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl"  # without the library the import below would fail, whatever is filmed
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import mujoco  # noqa: F401
    except Exception as error:
        chosen = os.environ.get("MUJOCO_GL", "")
        raise UserError(f"MUJOCO_GL={chosen}: MuJoCo cannot load it: {explain(error)}; unset it") from error


def has_egl() -> bool:
    """Whether the library that renders without a display is there."""
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


def explain(error: Exception) -> str:
    """What a graphics library raised, in a line; MuJoCo without libEGL raises what names neither."""
    text = " ".join(str(error).split()) or type(error).__name__
    if sys.platform == "linux" and "gl" in text.lower() and not has_egl():
        return "MuJoCo renders through libEGL, which is not installed (Debian, Ubuntu: apt install libegl1)"
    return text
