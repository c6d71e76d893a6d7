"""A wrapper that writes the time of a process's first environment step to the file ``HYDRL_FIRST_STEP``."""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

FILE = "HYDRL_FIRST_STEP"


class FirstStep(gymnasium.Wrapper):
    """Writes the system's monotonic time of the first step."""

    def step(self, action: Any) -> Any:
        """The environment's step."""
        now = time.monotonic()
        if file := os.environ.pop(FILE, None):
            Path(file).write_text(str(now))
        return self.env.step(action)
