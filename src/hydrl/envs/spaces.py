"""Conversion of Gymnasium spaces to those that TorchRL and the networks support."""

import math
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
    flatten,
    flatten_space,
    unflatten,
)
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformAction, TransformObservation

from hydrl.envs.checked_env import CHECK_ENV, CheckedEnv
from hydrl.errors import UserError, warn_once
from hydrl.specs import INFO, has_room

MIN_IMAGE_SIDE = 5  # pixels; on fewer a convolution of 3 x 3 has fewer than three positions
# Entries that a run or TorchRL writes.
RESERVED_KEYS = {"action", "reward", "done", "terminated", "truncated", "next", "is_init", "step_count", INFO}
RESERVED_KEYS |= {"episode_reward", "cut_short", "features", "memory", "joined"}
RESERVED_KEYS |= {"loc", "scale", "param", "logits"}
RESERVED_KEYS |= {"action_value", "state_value", "state_action_value", "advantage", "value_target", "index"}

# Names with a meaning of their own in TorchRL.
RENAMED_ENTRIES = {"state": "observation", "action_mask": "mask"}


def adapt_spaces(
    env: gymnasium.Env, observe: list[int] | None = None, label: str = "the environment"
) -> gymnasium.Env:
    """Wraps an environment so that TorchRL and the networks can use its spaces.

    Images stay images (see :class:`ObservationAdapter`). Discrete actions count from 0, multi-discrete ones
    are one vector of integers, continuous ones one vector of floats, and the reward is a scalar.

    Args:
        env: the environment.
        observe: see :func:`hydrl.envs.gymnasium_env`.
        label: its name in messages.

    Raises:
        TypeError: for actions that are neither discrete nor floats with finite bounds, observations of
            variable size, or an environment of Gymnasium's API before 0.26.
    """
    check_reset(env)
    actions, observations = env.action_space, env.observation_space
    if isinstance(actions, Discrete) and actions.n > 1:
        if actions.start:
            env = TransformAction(env, lambda action: action + actions.start, Discrete(actions.n))
    elif isinstance(actions, Box) and actions.dtype.kind == "f" and has_room(actions.low, actions.high):
        if len(actions.shape) != 1:
            flat_space = Box(actions.low.ravel(), actions.high.ravel(), dtype=actions.dtype.type)
            env = TransformAction(env, lambda action: action.reshape(actions.shape), flat_space)
    else:
        env = flatten_actions(env)
    check_observations(observations)
    if any(map(is_unsupported_stack, all_spaces(observations))):
        warn_once(
            f"{label}: stacked images that are not uint8 are read as one vector. Stack them by the transform "
            "torchrl.envs.CatFrames instead of a wrapper."
        )
    warn_of_channels(observations, label)
    if isinstance(observations, Dict) or any(map(is_image, all_spaces(observations))):
        env = ObservationAdapter(env)
    elif not is_vector(observations):
        env = DtypeObservation(FlattenObservation(env), np.float32)
    if observe:
        selected = select_space(env.observation_space, observe)
        if isinstance(selected, Dict):
            env = TransformObservation(
                env, lambda observation: {key: observation[key][observe] for key in observation}, selected
            )
        else:
            env = TransformObservation(env, lambda observation: observation[observe], selected)
    return CheckedEnv(env, label)


def check_observations(observations: gymnasium.Space) -> None:
    """Refuses observations of variable size, and spaces of other classes than Gymnasium's.

    Raises:
        TypeError: naming the first such entry.
    """
    for path, space in dict(leaf_spaces(observations)).values():
        if not is_of_fixed_size(space):
            entry = f" {'.'.join(map(str, path))}" if path else ""
            raise TypeError(
                f"its observation{entry} is a {type(space).__name__}, a space of no fixed size or of a class "
                "of its own. A wrapper can make a Box of it, or leave it out."
            )


def is_of_fixed_size(space: gymnasium.Space) -> bool:
    """Whether all values of a space have the same size; ``False`` for a class of one's own."""
    try:
        return flatten_space(space).shape is not None and not any(
            isinstance(part, Text) for part in all_spaces(space)
        )
    except NotImplementedError:  # of Gymnasium's base class
        return False


def select_space(space: gymnasium.Space, observe: list[int]) -> gymnasium.Space:
    """The space of some entries of a vector, or channels of an image.

    Raises:
        TypeError: for several entries, or indices out of range.
    """
    if isinstance(space, Dict):
        if len(space) > 1:
            entries = ", ".join(space)
            raise TypeError(
                f"env.observe={observe} needs one vector or image, and its observation has {entries}"
            )
        return Dict({name: select_space(subspace, observe) for name, subspace in space.items()})
    if not set(observe) <= set(range(space.shape[0])):
        raise TypeError(f"env.observe={observe} should be indices of 0 to {space.shape[0] - 1}")
    return Box(space.low[observe], space.high[observe], dtype=space.dtype.type)


def flatten_actions(env: gymnasium.Env) -> gymnasium.Env:
    """Flattens composite actions to one vector, of integers or of floats.

    A single choice becomes :class:`Discrete`, for algorithms with discrete actions.

    Raises:
        TypeError: for other actions, among them mixed discrete and continuous ones.
    """
    actions, sizes = env.action_space, choice_sizes(env.action_space)
    if max(sizes, default=1) > 1:
        flat_space = MultiDiscrete(sizes) if len(sizes) > 1 else Discrete(sizes[0])
        return TransformAction(env, lambda action: unflatten_choices(actions, np.ravel(action)), flat_space)
    leaves = (
        [subspace for _, (_, subspace) in leaf_spaces(actions)] if isinstance(actions, Dict | Tuple) else []
    )
    if leaves and all(isinstance(leaf, Box) and leaf.dtype.kind == "f" for leaf in leaves):
        flat_box = flatten_space(actions)
        if has_room(flat_box.low, flat_box.high):
            return TransformAction(env, lambda action: unflatten(actions, action), flat_box)
    raise TypeError(
        f"its actions are {actions}. Supported are discrete ones of two options or more (Discrete, "
        "MultiDiscrete, MultiBinary), or a Box of floats with finite bounds, low below high. A wrapper can "
        "convert others."
    )


def choice_sizes(space: gymnasium.Space) -> list[int]:
    """The number of options of each choice in a space of discrete actions; empty for others."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return space.nvec.ravel().tolist()
    if isinstance(space, MultiBinary):
        return [2] * math.prod(space.shape)
    child_sizes = [choice_sizes(subspace) for subspace in child_spaces(space).values()]
    return [size for sizes in child_sizes for size in sizes] if all(child_sizes) else []


def unflatten_choices(space: gymnasium.Space, indices: np.ndarray) -> Any:
    """Integers ``[choices]``, each counted from 0, as an action of a space; see :func:`choice_sizes`."""
    if isinstance(space, Dict | Tuple):
        ends = np.cumsum([len(choice_sizes(subspace)) for subspace in child_spaces(space).values()])
        parts = zip(child_spaces(space).items(), np.split(indices, ends[:-1]), strict=True)
        nested = {key: unflatten_choices(subspace, part) for (key, subspace), part in parts}
        return nested if isinstance(space, Dict) else tuple(nested.values())
    return (indices.reshape(space.shape) + getattr(space, "start", 0)).astype(space.dtype)


def sample_action(space: gymnasium.Space, mask: np.ndarray | None) -> Any:
    """A random action from a space's own generator, valid by the action mask if there is one."""
    if mask is None:
        return space.sample()
    parts = np.split(mask, np.cumsum(choice_sizes(space))[:-1])
    return unflatten_choices(
        space, np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts])
    )


def child_spaces(space: gymnasium.Space) -> dict[Any, gymnasium.Space]:
    """The spaces in a dictionary or tuple space by their keys; empty for others."""
    if isinstance(space, Tuple):
        return dict(enumerate(space.spaces))
    return dict(space.spaces) if isinstance(space, Dict) else {}


def stack_values(values: Sequence[Any], space: gymnasium.Space) -> Any:
    """Values of a space as arrays ``[n, ...]``, nested like the space."""
    return concatenate(space, values, create_empty_array(space, len(values)))


def check_reset(env: gymnasium.Env) -> None:
    """Refuses an environment of Gymnasium's API before 0.26.

    Raises:
        TypeError: for such an environment.
    """
    try:
        signature(env.unwrapped.reset).bind(seed=0, options={})
    except TypeError:
        raise TypeError(f"its reset does not take seed and options (Gymnasium 0.26). {CHECK_ENV}") from None


class ChannelsFirstBox(Box):
    """Gymnasium space of images ``[C, H, W]``; in another ``Box`` the shorter side is the channels."""


class ChannelsLastBox(Box):
    """Gymnasium space of images ``[H, W, C]``; in another ``Box`` the shorter side is the channels."""


CHANNEL_BOXES: dict[str, type[Box]] = {"first": ChannelsFirstBox, "last": ChannelsLastBox}


def name_channels(space: gymnasium.Space, channels: str | None) -> gymnasium.Space:
    """A space whose images, each a ``Box`` of three dimensions, have their channels ``first`` or ``last``.

    Args:
        space: a ``Box``, or a dictionary or tuple of spaces.
        channels: ``None`` returns the space itself.

    Raises:
        UserError: for another word.
    """
    if channels is None:
        return space
    if channels not in CHANNEL_BOXES:
        raise UserError(f"env.channels={channels}: no such order. Write first or last.")
    if isinstance(space, Dict):
        return Dict({key: name_channels(subspace, channels) for key, subspace in space.items()})
    if isinstance(space, Tuple):
        return Tuple([name_channels(subspace, channels) for subspace in space])
    if isinstance(space, Box) and len(space.shape) == 3:
        return CHANNEL_BOXES[channels](space.low, space.high, dtype=space.dtype.type)
    return space


def warn_of_channels(space: gymnasium.Space, label: str) -> None:
    """Warns once of images with two equal sides of which one is read as channels, such as a board's."""
    for _, (_, image) in leaf_spaces(space):
        if not is_image(image) or isinstance(image, ChannelsFirstBox | ChannelsLastBox):
            continue
        channels, *sides = channels_first(np.empty(image.shape[-3:], bool)).shape
        if sides[0] != sides[1] and channels in sides and len(image.shape) > 2:
            shape = " x ".join(map(str, image.shape))
            warn_once(
                f"{label}: its images of {shape} are read as {channels} channels of {sides[0]} x {sides[1]} "
                "pixels. If that is wrong, add +env.channels=last with env=self_play, or observe a "
                "ChannelsLastBox of hydrl.envs.spaces."
            )


class ObservationAdapter(gymnasium.ObservationWrapper):
    """Gymnasium wrapper that converts an observation, entry by entry, to what networks read.

    An image becomes ``[C, H, W]``, stacked frames along the channels, uint8 if the environment's is uint8 or
    boolean; it is the entry ``pixels`` if it is the only one. Other entries become vectors of floats,
    discrete ones one-hot. Nested entries are named ``OUTER_INNER``.

    Args:
        env: observes an image, a dictionary or a tuple.

    Raises:
        UserError: for an entry with a name that hydrl reserves.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        observations = env.observation_space
        is_single = not isinstance(observations, Dict | Tuple)
        self.leaves = {"pixels": ((), observations)} if is_single else dict(leaf_spaces(observations))
        if reserved := sorted(self.leaves.keys() & RESERVED_KEYS):
            raise UserError(f"{env} observes {reserved[0]}, a reserved name. Rename it in a wrapper.")
        self.observation_space = Dict(
            {name: adapted_space(space) for name, (_, space) in self.leaves.items()}
        )

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        """The converted entries."""
        return {
            name: adapt_entry(get_path(observation, path), space)
            for name, (path, space) in self.leaves.items()
        }


def leaf_spaces(
    space: gymnasium.Space, path: tuple = ()
) -> Iterator[tuple[str, tuple[tuple, gymnasium.Space]]]:
    """The leaves of a dictionary or tuple space: name, then path and space."""
    if not isinstance(space, Dict | Tuple):
        name = "_".join(map(str, path))
        yield RENAMED_ENTRIES.get(name, name), (path, space)
        return
    for key, subspace in child_spaces(space).items():
        yield from leaf_spaces(subspace, (*path, key))


def get_path(observation: Any, path: tuple) -> Any:
    """The value at a path in a nested observation."""
    for key in path:
        observation = observation[key]
    return observation


def is_vector(space: gymnasium.Space) -> bool:
    """Whether a space is a vector of floats."""
    return isinstance(space, Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64)


def is_image(space: gymnasium.Space) -> bool:
    """Whether a space is an image for CNNs: 3 dimensions; if uint8 also 2 (grey) or 4 (a stack)."""
    if isinstance(space, ChannelsFirstBox):
        return True
    if isinstance(space, ChannelsLastBox):
        return min(space.shape[:2]) >= MIN_IMAGE_SIDE
    if not isinstance(space, Box) or len(space.shape) not in (2, 3, 4):
        return False
    if len(space.shape) != 3 and space.dtype != np.uint8:
        return False
    frame_shape = space.shape[-3:]
    sides = (
        frame_shape
        if len(frame_shape) == 2
        else frame_shape[:2]
        if channels_are_last(frame_shape)
        else frame_shape[1:]
    )
    return min(sides) >= MIN_IMAGE_SIDE


def is_unsupported_stack(space: gymnasium.Space) -> bool:
    """Whether a space is a stack of images, but not an image by :func:`is_image`."""
    if not isinstance(space, Box) or len(space.shape) != 4 or is_image(space):
        return False
    return is_image(Box(space.low[0], space.high[0], dtype=space.dtype.type))


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is ``[H, W, C]``: the channels are the shorter side."""
    return shape[-1] <= shape[0]


def entry_channels_first(image: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """An image of a space as ``[C, H, W]``."""
    if isinstance(space, ChannelsLastBox):
        return image.transpose(2, 0, 1)
    return image if isinstance(space, ChannelsFirstBox) else channels_first(image)


def channels_first(image: np.ndarray) -> np.ndarray:
    """An image as ``[C, H, W]``, a view; the channels are the shorter side, or the last of equal sides.

    Stacks, ``[k, H, W, C]`` or ``[k, C, H, W]``, become ``k * C`` channels, the newest last.
    """
    if image.ndim == 2:
        return image[None]
    if image.ndim == 4:
        stacked = np.stack([channels_first(frame) for frame in image])
        return stacked.reshape(-1, *stacked.shape[2:])
    return image.transpose(2, 0, 1) if channels_are_last(image.shape) else image


def adapted_space(space: gymnasium.Space) -> Box:
    """The space of an entry after conversion."""
    if is_vector(space):
        return space
    if not is_image(space):
        flat = flatten_space(space)
        return Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
    dtype = np.uint8 if space.dtype in (np.uint8, np.bool_) else np.float32
    low, high = (entry_channels_first(bound, space).astype(dtype) for bound in (space.low, space.high))
    return Box(low, high, dtype=dtype)


def adapt_entry(value: Any, space: gymnasium.Space) -> np.ndarray:
    """An entry's value, converted as :func:`adapted_space` says."""
    if is_image(space):
        return entry_channels_first(np.asarray(value), space)
    return value if is_vector(space) else flatten(space, value)


def all_spaces(space: gymnasium.Space) -> list[gymnasium.Space]:
    """A space and all spaces in it."""
    children = getattr(space, "spaces", ())
    children = children.values() if isinstance(children, dict) else children
    return [space, *(part for subspace in children for part in all_spaces(subspace))]
