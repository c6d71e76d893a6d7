"""Guards of environments that several families share, and what stands in their place without them."""

from hydrl.envs.gymnasium import GymVector
from tests.envs.families.case import Guard

reset_some, convert = GymVector._reset, GymVector.to_tensordict


def reset_all(self, tensordict=None, **kwargs):
    return reset_some(self, None, **kwargs)


def terminate_at_the_limit(self, observation, terminated, truncated, **more_entries):
    return convert(self, observation, terminated | truncated, truncated & False, **more_entries)


GUARDS = [
    Guard(
        "only ended environments are reset",
        "hydrl.envs.gymnasium:GymVector._reset",
        reset_all,
        "cartpole",
        "observations",
    ),
    Guard(
        "truncation is not termination",
        "hydrl.envs.gymnasium:GymVector.to_tensordict",
        terminate_at_the_limit,
        "cartpole",
        "ends",
    ),
]
