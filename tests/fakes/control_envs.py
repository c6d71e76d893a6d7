"""Control Suite tasks of the tests' own, as hydrl's environments."""

from typing import Any

import gymnasium

from hydrl.envs.dm_control import ControlEnv
from tests.envs.families.dm_control import load_track


def make(id: str, repeat: int, render_mode: str | None = None, **others: Any) -> gymnasium.Env:
    """The task of :func:`load_track`; ``others`` are for images."""
    return ControlEnv(load_track(), id, repeat, None, 0, render_mode)
