"""Several objectives, whose rewards are summed by weights."""

import numpy as np

from tests.envs.families.case import Case
from tests.fakes.objective_envs import Harvest

WEIGHTS = [1.0, 0.1]


def make_treasure():
    import mo_gymnasium

    return mo_gymnasium.make("deep-sea-treasure-v0", max_episode_steps=8)


def weigh(rewards):
    return float(np.dot(np.float64(rewards), WEIGHTS))


CASES = [
    Case(
        "objectives",
        ["env=gym", "env.id=tests.fakes.objective_envs:toys/Harvest-v0", "+env.weights=[1.0,0.1]"],
        Harvest,
        ends={"terminated"},
        reward=weigh,
        random_starts=False,
        fast_num_envs=(3,),
    ),
    Case(
        "mo-gymnasium",
        [
            "env=gym",
            "env.id=mo_gymnasium:deep-sea-treasure-v0",
            "+env.weights=[1.0,0.1]",
            "+env.max_episode_steps=8",
        ],
        make_treasure,
        reward=weigh,
        package="mo_gymnasium",
        random_starts=False,
    ),
]
