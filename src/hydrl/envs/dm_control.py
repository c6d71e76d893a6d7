"""DeepMind Control Suite tasks as Gymnasium environments: states or pixels, with action repeat."""

import os
import sys
from ctypes.util import find_library
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from hydrl.errors import UserError
from hydrl.library_setup import warn_of_mujoco

EXTRA = "Run pip install 'hydrl[dm-control]', which installs a MuJoCo that it works with."
VIDEO_SIZE = (240, 320)  # height and width, dm_control's default


def make(
    id: str,
    repeat: int = 2,
    pixels: int | None = None,
    frame_stack: int = 3,
    shadows: bool = True,
    camera: int | None = None,
    render_mode: str | None = None,
) -> gymnasium.Env:
    """Makes a Control Suite task by its published name, such as ``cartpole-swingup``.

    Args:
        id: ``DOMAIN-TASK``, as in ``dm_control.suite``.
        repeat: control steps for each action, whose rewards are summed.
        pixels: height and width of image observations; ``None`` observes the state.
        frame_stack: number of stacked images.
        shadows: whether images have shadows, as published; without a GPU they take most of the time.
        camera: index of the camera; ``None``: as published, 2 for the quadruped and else 0.
        render_mode: ``rgb_array`` for videos.

    Raises:
        UserError: for a missing or incompatible package, an unknown task, or if rendering fails.
    """
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"env.id={id}: the Control Suite opens no window. Write video=true for videos.")
    for name, value in (("repeat", repeat), ("frame_stack", frame_stack), ("pixels", pixels)):
        if value is not None and value < 1:
            raise UserError(f"env.{name}={value}: should be 1 or more.")
    camera = camera if camera is not None else 2 if id.startswith("quadruped-") else 0
    env = load_env(id)
    if not shadows:
        env.physics.model.vis.quality.shadowsize = 0
    task = ControlEnv(env, id, repeat, pixels, camera, render_mode)
    if pixels is None:
        return task
    try:
        task.draw(pixels, pixels)
    except Exception as error:  # whatever a simulator's graphics raise
        reason = " ".join(str(error).split())
        if "OpenGL" in reason:
            reason += " (dm_control renders through libEGL; on Debian and Ubuntu: apt install libegl1)"
        raise UserError(f"env.pixels={pixels}: env.id={id} cannot be rendered: {reason}") from error
    return FrameStackObservation(task, frame_stack)


def load_env(id: str) -> Any:
    """Loads a ``dm_control.rl.control.Environment``; a reset must seed its random generator.

    Raises:
        UserError: as :func:`make`.
    """
    if find_spec("dm_control") is None:
        raise UserError(f"env.id={id}: dm_control is not installed. {EXTRA}")
    choose_renderer()
    from dm_control import suite

    mujoco.set_mju_user_warning(warn_of_mujoco)  # importing it sets another
    names = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    if id not in names:
        matches = get_close_matches(id.lower(), names, n=3, cutoff=0.5)
        raise UserError(f"env.id={id}: no such task. Write {' or '.join(matches or names)}.")
    try:
        # Random models, such as LQR's, must be the same in every process.
        return suite.load(*names[id], task_kwargs={"random": 0})
    except AttributeError as error:
        if "MjModel" not in str(error) and "MjData" not in str(error):
            raise
        raise UserError(
            f"env.id={id}: dm_control {version('dm_control')} does not work with mujoco {version('mujoco')} "
            f"({' '.join(str(error).split())}). {EXTRA}"
        ) from error


def choose_renderer() -> None:
    """Selects EGL for dm_control unless the user chose a renderer; importing it fixes the choice."""
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL"):
        if find_library("EGL"):
            os.environ["MUJOCO_GL"] = "egl"
        elif not os.environ.get("DISPLAY"):
            os.environ["MUJOCO_GL"] = "disabled"  # else it tries to open a window


@dataclass
class Suite:
    """A Control Suite environment and its original model, for exact environment states.

    Attributes:
        env: a ``dm_control.rl.control.Environment``.
        built: its model before the first reset; many tasks move a target in it at each reset.
    """

    env: Any
    built: mujoco.MjModel


class ControlEnv(gymnasium.Env):
    """Gymnasium environment of a Control Suite task that observes its state, ``[n]``, or an image.

    The time limit truncates; only a task that sets its discount to 0 terminates.

    Args:
        env: a ``dm_control.rl.control.Environment``.
        id: its name.
        repeat: see :func:`make`.
        pixels: height and width of the observed images.
        camera: the camera's index.
        render_mode: ``rgb_array`` or ``None``.
    """

    def __init__(
        self, env: Any, id: str, repeat: int, pixels: int | None, camera: int, render_mode: str | None
    ) -> None:
        physics = env.physics
        self.suite = Suite(env, physics.model.ptr.__copy__())
        self.repeat, self.pixels, self.camera, self.render_mode = repeat, pixels, camera, render_mode
        rate = 1 / (env.control_timestep() * repeat)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        limit = int(np.ceil(env._step_limit / repeat)) if np.isfinite(env._step_limit) else None
        self.spec = EnvSpec(id, f"{__name__}:make", max_episode_steps=limit)
        actions = env.action_spec()
        self.action_space = Box(
            actions.minimum.astype(np.float32), actions.maximum.astype(np.float32), dtype=np.float32
        )
        size = sum(int(np.prod(spec.shape)) for spec in env.observation_spec().values())
        self.observation_space = (
            Box(0, 255, (pixels, pixels, 3), np.uint8)
            if pixels is not None
            else Box(-np.inf, np.inf, (size,), np.float32)
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begins an episode; the first, and one with a seed, seed the task's random generator."""
        if seed is not None or self._np_random is None:
            super().reset(seed=seed)
            self.suite.env.task.random.seed(self.np_random.integers(2**32, dtype=np.uint32))
        return self.make_observation(self.suite.env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One action, ``repeat`` times or until the episode ends."""
        reward = 0.0
        for _ in range(self.repeat):
            time_step = self.suite.env.step(action)
            reward += time_step.reward
            if time_step.last():
                break
        terminated = time_step.last() and time_step.discount == 0
        truncated = time_step.last() and not terminated
        return self.make_observation(time_step.observation), reward, terminated, truncated, {}

    def make_observation(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """The observation: an image, or the state's entries concatenated."""
        if self.pixels is not None:
            return self.draw(self.pixels, self.pixels)
        return np.concatenate([np.ravel(value) for value in observation.values()], dtype=np.float32)

    def render(self) -> np.ndarray:
        """An image of the task for videos."""
        return self.draw(*VIDEO_SIZE)

    def draw(self, height: int, width: int) -> np.ndarray:
        """An image of the task, ``[height, width, 3]`` uint8."""
        return self.suite.env.physics.render(height, width, self.camera)

    def close(self) -> None:
        """Frees memory and the rendering context."""
        self.suite.env.physics.free()
