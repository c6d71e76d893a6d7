"""Gymnasium-Robotics environments: Fetch arm, Shadow hand, mazes, Adroit hand and Franka kitchen."""

import io
import re
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import mujoco
import numpy as np

from hydrl.envs.optional import check_id, require_package
from hydrl.errors import UserError

EXAMPLES = ("FetchReach-v4", "HandReach-v3", "PointMaze_UMaze-v3", "AdroitHandDoor-v1", "FrankaKitchen-v1")
MUJOCO_PY = re.compile(r"MujocoPy|ant_maze_v3|envs\.mujoco\.")  # in the entry points of old versions
MOVED_ARRAYS = ("body_pos", "body_quat", "site_pos")  # of a model, which some resets change
REWARD_TYPES = ("sparse", "dense")  # any other word is dense to Fetch and Shadow hand


def make(id: str, **kwargs: Any) -> gymnasium.Env:
    """Makes an environment of Gymnasium-Robotics.

    Args:
        id: as ``FetchReach-v4``, but no version that needs mujoco-py.
        **kwargs: passed to ``gymnasium.make``, such as ``reward_type`` or ``max_episode_steps``.

    Raises:
        UserError: for an unknown id, a keyword that it does not take, or if the package is not installed.
    """
    with redirect_stderr(io.StringIO()):  # it prints news of its versions
        require_package("gymnasium_robotics", "robotics")
    use_integer_joint_types()
    check_id(id, find_ids(), "environment", EXAMPLES)
    if (reward_type := kwargs.get("reward_type", "sparse")) not in REWARD_TYPES:
        raise UserError(f"env.reward_type={reward_type}: should be {' or '.join(REWARD_TYPES)}.")
    try:  # Gymnasium's checker warns of arrays that Franka kitchen shares; hydrl copies them
        env = gymnasium.make(id, disable_env_checker=True, **kwargs)
    except Exception as error:  # of the package's code, whose traceback does not help
        raise UserError(f"env.id={id}: cannot be created: {explain_error(error)}") from error
    if model_file := getattr(env.unwrapped, "tmp_xml_file_path", None):
        Path(model_file).unlink(missing_ok=True)  # each maze leaves one in the folder of temporary files
        return MazeWrapper(env)
    return RoboticsWrapper(env)


def success_keys(id: str) -> list[str]:
    """The keys of ``info`` that are an environment's success flag; Franka kitchen has none."""
    if id.startswith("FrankaKitchen"):
        return []
    return ["is_success" if id.startswith(("Fetch", "Hand")) else "success"]


make.success_keys = success_keys  # type: ignore[attr-defined]


def use_integer_joint_types() -> None:
    """Lets ``gymnasium_robotics.utils.mujoco_utils`` compare joint types of a model.

    It looks for a NumPy integer in a tuple of MuJoCo's enum, which equals none in MuJoCo 3.17 and 4.0, so
    that an assertion fails. This module alone gets the four joint types as plain integers.
    """
    utils: Any = import_module("gymnasium_robotics.utils.mujoco_utils")
    joint_types = {name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()}
    utils.mujoco = SimpleNamespace(**vars(mujoco) | {"mjtJoint": SimpleNamespace(**joint_types)})


def find_ids() -> list[str]:
    """The registered ids that work without mujoco-py."""
    entry_points = {id: str(spec.entry_point) for id, spec in gymnasium.registry.items()}
    return [
        id
        for id, entry_point in entry_points.items()
        if entry_point.startswith("gymnasium_robotics.") and not MUJOCO_PY.search(entry_point)
    ]


def explain_error(error: Exception) -> str:
    """Why an environment cannot be made, in one line."""
    reason = " ".join(str(error).split())
    if keyword := re.search(r"unexpected keyword argument '(\w+)'", reason):
        return f"it takes no {keyword[1]}. Leave env.{keyword[1]} out."
    return f"{reason or type(error).__name__}. Its documentation, robotics.farama.org, lists its arguments."


class RoboticsWrapper(gymnasium.Wrapper):
    """Gymnasium wrapper that holds the arrays of a MuJoCo model that an environment changes.

    Adroit hand and mazes move their target in the model at each reset, and checkpoints keep a wrapper's
    arrays but no model. These are views of the model's memory.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        model = env.unwrapped.model
        self.moved_arrays = {name: getattr(model, name) for name in MOVED_ARRAYS}


class MazeWrapper(RoboticsWrapper):
    """Gymnasium wrapper of a maze whose ``compute_terminated`` is for many goals at once, ``[rows, 2]``.

    The maze's own takes one goal, so that a relabelled success would not terminate with
    ``continuing_task=False``.
    """

    def compute_terminated(
        self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any
    ) -> np.ndarray:
        """Whether each row's goal ends the episode, ``[rows]``."""
        maze: Any = self.env.unwrapped
        if maze.continuing_task:
            return np.zeros(len(achieved_goal), dtype=bool)
        pairs = zip(achieved_goal, desired_goal, strict=True)
        return np.array([maze.compute_terminated(*pair, info) for pair in pairs])
