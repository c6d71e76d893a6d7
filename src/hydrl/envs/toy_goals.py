"""Two small goal environments (Gymnasium-Robotics' GoalEnv API): bits to flip, a point to move.

The reward is 0 at the goal and -1 elsewhere, so that random actions rarely reach it. They show the effect of
hindsight experience replay (:mod:`hydrl.experience.hindsight`).
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from hydrl.errors import UserError

CELL_PIXELS = 16  # pixels of a bit's side in a video
IMAGE_SIDE = 128  # pixels of the square in which a point moves


def goal_space(low: float, size: int) -> Dict:
    """The observation space: three vectors from ``low`` to 1."""
    names = ("observation", "achieved_goal", "desired_goal")
    return Dict({name: Box(low, 1, (size,), np.float32) for name in names})


class BitFlip(gymnasium.Env):
    """Goal environment of bits to flip until they equal a goal (Andrychowicz et al. 2017).

    An episode ends at the goal, and is truncated after as many steps as there are bits.

    Args:
        bits: number of bits.
        render_mode: ``rgb_array`` or ``None``.

    Raises:
        UserError: for fewer than two bits.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, bits: int = 15, render_mode: str | None = None) -> None:
        if bits < 2:
            raise UserError(f"env.bits={bits}: should be 2 or more.")
        self.bits, self.render_mode = bits, render_mode
        self.observation_space, self.action_space = goal_space(0, bits), Discrete(bits)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Draws bits and a different goal."""
        super().reset(seed=seed)
        self.state, self.goal, self.steps = (
            np.zeros(self.bits, np.float32),
            np.zeros(self.bits, np.float32),
            0,
        )
        while (self.state == self.goal).all():
            self.state, self.goal = self.np_random.integers(2, size=(2, self.bits)).astype(np.float32)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        """Flips a bit."""
        self.state[action] = 1 - self.state[action]
        self.steps += 1
        success = bool(self.compute_terminated(self.state, self.goal, {}))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self.observe(), reward, success, self.steps >= self.bits, {"is_success": success}

    def observe(self) -> dict[str, np.ndarray]:
        """The observation."""
        bits = self.state.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self.goal}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """0 where ``[..., bits]`` are equal, else -1."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(
        self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any
    ) -> np.ndarray:
        """Where ``[..., bits]`` are equal."""
        return (achieved_goal == desired_goal).all(-1)

    def render(self) -> np.ndarray:
        """The bits above the goal's, ``[2 * CELL, bits * CELL, 3]``."""
        cells = np.kron(np.stack([self.state, self.goal]), np.full((CELL_PIXELS, CELL_PIXELS), 255)).astype(
            np.uint8
        )
        return np.repeat(cells[..., None], 3, -1)


class PointReach(gymnasium.Env):
    """Goal environment of a point to move to a goal in a square and hold there, for 50 steps.

    Args:
        radius: distance that counts as reached; the square's sides are 2 long.
        speed: the largest move along a side in a step.
        render_mode: ``rgb_array`` or ``None``.

    Raises:
        UserError: for a radius or speed of 0 or less.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, radius: float = 0.05, speed: float = 0.1, render_mode: str | None = None) -> None:
        for name, value in (("radius", radius), ("speed", speed)):
            if not value > 0:
                raise UserError(f"env.{name}={value}: should be above 0.")
        self.radius, self.speed, self.render_mode = radius, speed, render_mode
        self.observation_space, self.action_space = goal_space(-1, 2), Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Draws the point and the goal."""
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Moves the point, within the square."""
        self.state = np.clip(self.state + self.speed * action, -1, 1).astype(np.float32)
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self.observe(), reward, False, False, {"is_success": reward == 0}

    def observe(self) -> dict[str, np.ndarray]:
        """The observation."""
        return {"observation": self.state, "achieved_goal": self.state, "desired_goal": self.goal}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """0 where ``[..., 2]`` are near each other, else -1."""
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= self.radius) - 1.0

    def render(self) -> np.ndarray:
        """An image of the point, white, and the goal, green; ``[IMAGE_SIDE, IMAGE_SIDE, 3]``."""
        image = np.zeros((IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
        for position, colour in ((self.goal, (0, 160, 0)), (self.state, (255, 255, 255))):
            x, y = ((position + 1) / 2 * (IMAGE_SIDE - 5)).astype(int)
            image[IMAGE_SIDE - 5 - y : IMAGE_SIDE - y, x : x + 5] = colour
        return image


gymnasium.register("BitFlip-v0", BitFlip)
gymnasium.register("PointReach-v0", PointReach, max_episode_steps=50)
