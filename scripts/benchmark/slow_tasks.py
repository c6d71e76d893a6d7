"""Tasks whose simulators take as long as they are told to, waiting or computing."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 100  # steps of an episode


class SlowTask(gymnasium.Env):
    """Sixteen numbers are observed, two actions do nothing, and each step takes its time.

    Args:
        wait: milliseconds that a step waits, as for a game's server or a robot.
        busy: milliseconds that it computes, as a physics engine does.
    """

    observation_space, action_space = Box(-1, 1, (16,), np.float32), Discrete(2)

    def __init__(self, wait: float = 0, busy: float = 0) -> None:
        self.wait, self.busy, self.steps = wait / 1_000, busy / 1_000, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        """Takes its time."""
        time.sleep(self.wait)
        until = time.thread_time() + self.busy  # its own seconds, whatever else is computed on this core
        while time.thread_time() < until:
            pass
        self.steps += 1
        return self.observation(), 1.0, False, self.steps == LENGTH, {}

    def observation(self) -> np.ndarray:
        """``[16]``, drawn at random."""
        return self.np_random.uniform(-1, 1, 16).astype(np.float32)


class Waiting(gymnasium.Wrapper):
    """Waits so many milliseconds in each step."""

    def __init__(self, env: gymnasium.Env, wait: float) -> None:
        super().__init__(env)
        self.wait = wait / 1_000

    def step(self, action: Any) -> Any:
        """The task's, later."""
        time.sleep(self.wait)
        return self.env.step(action)


def slow_cheetah(wait: float = 0) -> gymnasium.Env:
    """HalfCheetah, whose steps wait so many milliseconds."""
    return Waiting(gymnasium.make("HalfCheetah-v5"), wait)


gymnasium.register("SlowTask-v0", entry_point=SlowTask)
gymnasium.register("SlowCheetah-v0", entry_point=slow_cheetah)
