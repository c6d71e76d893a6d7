"""Gymnasium-Robotics: an arm and a maze with goals, and a hand whose target moves in its model."""

from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np

from tests.envs.families.case import Case


def make_raw(id, **kwargs):
    import gymnasium_robotics
    import mujoco
    from gymnasium_robotics.utils import mujoco_utils

    # The package compares joint types in a way that fails with this MuJoCo: it gets plain integers.
    joint_types = {name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()}
    mujoco_utils.mujoco = SimpleNamespace(**vars(mujoco) | {"mjtJoint": SimpleNamespace(**joint_types)})
    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make(id, **kwargs)


def head_for_goal(entries):
    """The way to half of the goals; hydrl's actor goes to the others."""
    way = entries["desired_goal"] - entries["achieved_goal"]
    return np.clip(5 * way - entries["observation"][2:], -1, 1) if entries["desired_goal"][0] > 0 else None


CASES = [
    Case(
        "robotics-fetch",
        ["env=robotics", "env.id=FetchReach-v4", "+env.max_episode_steps=40"],
        partial(make_raw, "FetchReach-v4", max_episode_steps=40),
        read=lambda observation: observation,
        ends={"truncated"},
        package="gymnasium_robotics",
        fast_num_envs=(1,),
    ),
    Case(
        "robotics-maze",
        [
            "env=robotics",
            "env.id=PointMaze_Open-v3",
            "+env.continuing_task=false",
            "+env.max_episode_steps=50",
        ],
        partial(make_raw, "PointMaze_Open-v3", continuing_task=False, max_episode_steps=50),
        read=lambda observation: observation,
        plan=head_for_goal,
        package="gymnasium_robotics",
        fast_num_envs=(3,),
    ),
    Case(
        "robotics-adroit",
        ["env=robotics", "env.id=AdroitHandDoor-v1", "+env.max_episode_steps=40"],
        partial(make_raw, "AdroitHandDoor-v1", max_episode_steps=40),
        ends={"truncated"},
        package="gymnasium_robotics",
        slow=True,
    ),
]
