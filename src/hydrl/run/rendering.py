"""Rendering with or without a display. MuJoCo and pygame read this when imported, so it comes first."""

import os
import sys
from ctypes.util import find_library
from importlib.util import find_spec

from hydrl.errors import UserError


def prepare(key: str = "video", *, wanted: bool = True) -> None:
    """Lets MuJoCo render through EGL and pygame into memory, unless the user chose something else.

    Args:
        key: the setting that needs it, for the message.
        wanted: whether anything is rendered.

    Raises:
        UserError: where a package is missing.
    """
    if not wanted:
        return
    if find_spec("av") is None:
        raise UserError(f"{key}=true: PyAV is not installed. Run pip install 'hydrl[video]'.")
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL") and find_library("EGL"):
        os.environ["MUJOCO_GL"] = "egl"  # without the library its import would fail, whatever is rendered
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def require_display(key: str) -> None:
    """Refuses to open a window without a display, unless the user chose SDL's driver.

    Raises:
        UserError: naming the setting, and what works without a display.
    """
    known = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(os.environ.get(name) for name in known):
        raise UserError(
            f"{key}: no display to open a window on (DISPLAY and WAYLAND_DISPLAY are not set). "
            "Use video=true to record a video."
        )
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
