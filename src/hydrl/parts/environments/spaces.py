"""Kinds of observations and actions: what a Gymnasium task has, as the networks take it."""

from inspect import signature

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformAction, TransformObservation

from hydrl.parts.environments.tasks import CHECKS, CopiedTask
from hydrl.parts.libraries import tell
from hydrl.parts.specs import has_room

LARGE = 3 * 32 * 32  # numbers in a picture, from which on plain layers learn little of it


def adapted(
    env: gymnasium.Env, observe: list[int] | None = None, named: str = "the environment"
) -> gymnasium.Env:
    """The task as TorchRL and the networks take it.

    It observes one vector of numbers, be they a choice (one-hot), a picture, a tuple or a dictionary; choices
    are counted from 0, other actions are one vector, and a reward is one number.

    Args:
        env: the task.
        observe: see :func:`hydrl.parts.environments.gymnasium_env`.
        named: what a message calls it.

    Raises:
        TypeError: for actions that are neither a choice nor numbers within finite bounds, for observations of
            no fixed size, and for a task of Gymnasium's API before 0.26.
    """
    try:
        signature(env.unwrapped.reset).bind(seed=0, options={})
    except TypeError:
        raise TypeError(
            "its reset does not take seed and options and give an observation and a dictionary, as Gymnasium "
            f"asks since 0.26; {CHECKS}"
        ) from None
    actions, seen = env.action_space, env.observation_space
    if isinstance(actions, Discrete) and actions.n > 1:
        if actions.start:
            env = TransformAction(env, lambda action: action + actions.start, Discrete(actions.n))
    elif isinstance(actions, Box) and actions.dtype.kind == "f" and has_room(actions.low, actions.high):
        if len(actions.shape) != 1:
            flat = Box(actions.low.ravel(), actions.high.ravel(), dtype=actions.dtype.type)
            env = TransformAction(env, lambda action: action.reshape(actions.shape), flat)
    else:
        raise TypeError(
            f"its actions are {actions}; what learns here takes a Discrete choice of two or more or a Box of "
            "floats with finite bounds, low below high"
        )
    check_sight(seen, named)
    if not (isinstance(seen, Box) and len(seen.shape) == 1 and seen.dtype in (np.float32, np.float64)):
        env = DtypeObservation(FlattenObservation(env), np.float32)
    if observe:
        whole = env.observation_space
        if not set(observe) <= set(range(whole.shape[0])):
            raise TypeError(f"it has no places observe={observe}, but 0 to {whole.shape[0] - 1}")
        shown = Box(whole.low[observe], whole.high[observe], dtype=whole.dtype.type)
        env = TransformObservation(env, lambda observation: observation[observe], shown)
    return CopiedTask(env, named)


def check_sight(seen: gymnasium.Space, named: str) -> None:
    """Refuses what has no fixed size, and says of pictures what reads them.

    Raises:
        TypeError: for such observations.
    """
    if not seen.is_np_flattenable or any(isinstance(each, Text) for each in parts_of(seen)):
        raise TypeError(f"its observations are {seen}, of no fixed size; a wrapper may make a Box of them")
    if seen.dtype == np.uint8 and seen.shape and len(seen.shape) == 3 and np.prod(seen.shape) > LARGE:
        tell(
            f"{named} shows pictures of {' x '.join(map(str, seen.shape))}, read as one vector of "
            f"{np.prod(seen.shape):,} numbers from 0 to 255; the networks that come along have no "
            "convolutions, one of your own may (docs/own_parts.md)"
        )


def parts_of(space: gymnasium.Space) -> list[gymnasium.Space]:
    """A space and all that it is made of."""
    within = getattr(space, "spaces", ())
    inner = within.values() if isinstance(within, dict) else within
    return [space, *(part for each in inner for part in parts_of(each))]
