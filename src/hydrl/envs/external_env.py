"""Environment for a policy that an external loop steps, and conversion of its input and output."""

import math
from collections.abc import Mapping
from contextlib import closing
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple
from gymnasium.vector.utils import batch_space, iterate
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec
from torchrl.envs import EnvBase

from hydrl.envs.action_masks import MaskSource, MaskTracker
from hydrl.envs.checked_env import copy_kwargs, describe_value, wrapper_chain
from hydrl.envs.gymnasium import for_evaluation, make_tracked_env
from hydrl.envs.spaces import (
    ChannelsFirstBox,
    ChannelsLastBox,
    adapt_spaces,
    child_spaces,
    choice_sizes,
    get_path,
    is_image,
    leaf_spaces,
    sample_action,
    stack_values,
)
from hydrl.errors import UserError
from hydrl.specs import INFO, MASK, first_gym_env


class ExternalEnv(EnvBase):
    """Environment whose observations are set from outside, so that a policy's transforms run as in training.

    Its episodes never end by themselves.

    Args:
        example_env: an environment with the same specs.
        batch_size: of the observations.
    """

    entry_label = "the mask"

    def __init__(self, example_env: EnvBase, batch_size: torch.Size) -> None:
        super().__init__(device=example_env.device, batch_size=batch_size)
        self.shows_all = first_gym_env(example_env) is not None  # see hydrl.specs.observation_keys
        for spec_kind in ("observation", "state", "action", "reward", "done"):
            name = f"full_{spec_kind}_spec_unbatched"
            setattr(self, name, getattr(example_env, name))
        observation_spec = example_env.full_observation_spec_unbatched
        if INFO in observation_spec.keys():  # noqa: SIM118 - a spec; no policy reads it
            self.full_observation_spec_unbatched = Composite(
                {name: spec for name, spec in observation_spec.items() if name != INFO},
                shape=observation_spec.shape,
                device=observation_spec.device,
            )

    def set_observation(self, tensordict: TensorDictBase) -> None:
        """Sets the next observation, ``[*batch_size]``, and the reward of the step before, 0 if missing.

        Raises:
            UserError: for entries that are missing, or have another shape or dtype.
        """
        for key, spec in self.observation_spec.items(True, True):
            value = tensordict.get(key, None)
            if value is None or (value.shape, value.dtype) != (spec.shape, spec.dtype):
                problem = "it is missing" if value is None else f"got {value.dtype} of {list(value.shape)}"
                raise UserError(f"{key}: {problem}. Pass {spec.dtype} of shape {list(spec.shape)}.")
        self.entries = tensordict.select(*self.observation_spec.keys(True, True)).to(self.device)
        self.rewards = tensordict.select(*self.reward_keys, strict=False).to(self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.entries.copy()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        done_flags = self.full_done_spec.zero()
        rewards = self.full_reward_spec.zero().update(self.rewards)
        return self.entries.copy().update(rewards).update(done_flags)

    def _set_seed(self, seed: int | None) -> None:
        """Nothing is random here."""


class SpacesEnv(gymnasium.Env):
    """Gymnasium environment with the spaces of another one, which returns what it is given."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.info: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        """Returns ``observation`` and ``info``."""
        return self.observation, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Stores ``action``."""
        self.action = action
        return self.observation, 0.0, False, False, self.info


class GymIO:
    """Converts between a Gymnasium environment's own spaces and a policy's tensordicts.

    The environment is in the wrappers of evaluation; these are not applied to given observations.

    Args:
        make: a partial of :func:`hydrl.envs.gymnasium_env`.
        spec: of one action of the policy.
        caller: what messages begin with, as ``predict``.

    Attributes:
        observation_space: the environment's own.
        action_space: the environment's own.
        entries: path and space of each entry of the observation, by the policy's names.
        mask_tracker: reads the action mask of the last observation; ``None`` if there are no masks.
        mask_entry: the entry of the observation that is the mask; ``None`` if it is given separately.

    Raises:
        UserError: for observations that are not arrays.
    """

    def __init__(self, make: partial, spec: TensorSpec, caller: str) -> None:
        self.keywords = copy_kwargs(for_evaluation(make).keywords)
        self.observe, self.spec = self.keywords.pop("observe", None), spec
        self.keywords.pop("info_keys", None)
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as env:
            tracker = find_mask_tracker(env)
            self.spaces = SpacesEnv(tracker.env if tracker else env)
        self.mask_entry = tracker.source[1] if tracker and tracker.source[0] == "entry" else None
        source: MaskSource = ("entry", self.mask_entry) if self.mask_entry else ("info", MASK)
        self.mask_tracker = (
            MaskTracker(self.spaces, source, "predict", len(tracker.mask)) if tracker else None
        )
        self.adapted_env = adapt_spaces(self.mask_tracker or self.spaces, self.observe)
        self.observation_space, self.action_space = self.spaces.observation_space, self.spaces.action_space
        self.entries = dict(leaf_spaces((self.mask_tracker or self.spaces).observation_space))
        for _, space in self.entries.values():
            if space.shape is None:
                raise UserError(
                    f"{caller}: the environment observes a {space}, no array. Use act(tensordict)."
                )

    def sample_observations(
        self, episodes: int, steps: int, batch_size: int
    ) -> list[list[tuple[Any, np.ndarray | None]]]:
        """Observations and masks of random steps, in batches of ``batch_size``.

        Returns:
            For each episode its steps, as :meth:`read` takes them.
        """
        observations: list[Any] = []
        masks: list[np.ndarray] = []
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as env:
            tracker = find_mask_tracker(env)
            env.action_space.seed(0)
            is_done = True
            while len(observations) < episodes * steps * batch_size:
                if is_done:
                    observation, is_done = env.reset(seed=len(observations))[0], False
                else:
                    action = sample_action(env.action_space, tracker.mask if tracker else None)
                    observation, _, *done_flags, _ = env.step(action)
                    is_done = any(done_flags)
                if tracker is not None and is_done:
                    continue  # nobody acts here, and no action may be valid
                if tracker is not None:
                    masks.append(tracker.mask)
                    observation = (
                        {**observation, self.mask_entry: tracker.mask} if self.mask_entry else observation
                    )
                observations.append(deepcopy(observation))
        batches: list[tuple[Any, np.ndarray | None]] = []
        for start in range(0, len(observations), batch_size):
            batch = observations[start : start + batch_size]
            stacked = stack_values(batch, self.observation_space)
            batches.append((stacked, np.stack(masks[start : start + batch_size]) if masks else None))
        return [batches[start : start + steps] for start in range(0, len(batches), steps)]

    def read(self, observation: Any, mask: Any = None) -> TensorDict:
        """Observations as a policy's tensordict, ``[]``, or ``[n]`` for a batch.

        Args:
            observation: in the environment's own space, or a batch of them.
            mask: action masks, ``[actions]`` or ``[n, actions]``; ``None`` if the observation has them.

        Raises:
            UserError: for entries that are missing or of another shape, dtype or batch size, or a mask that
                is missing or unused.
        """
        if mask is not None and self.mask_tracker is None:
            raise UserError("mask: this policy uses no action mask. Leave it out.")
        if mask is None and self.mask_tracker is not None and self.mask_entry is None:
            raise UserError(
                "mask=None: the observation of this environment has no action mask. Pass it as mask=."
            )
        if mask is not None and self.mask_entry is not None and isinstance(observation, Mapping):
            dtype, batch = self.spaces.observation_space[self.mask_entry].dtype, np.asarray(mask)
            cast = batch.astype(dtype) if batch.dtype.kind in "biuf" else batch
            observation = {**observation, self.mask_entry: cast}
        batch = as_arrays(observation, self.observation_space)
        shapes = {path: get_path(batch, path).shape for path, _ in self.entries.values()}
        batch_shapes = {
            path: shapes[path][: -len(space.shape) or None] for path, space in self.entries.values()
        }
        first_path, *other_paths = batch_shapes
        for path in other_paths:
            if batch_shapes[path] != batch_shapes[first_path]:
                both = [f"{entry_label(one)} has shape {list(shapes[one])}" for one in (first_path, path)]
                raise UserError(f"observation: batch sizes differ: {' and '.join(both)}. Make them agree.")
        batch_shape = batch_shapes[first_path]
        space = batch_space(self.observation_space, *batch_shape)
        singles = [*iterate(space, batch)] if batch_shape else [batch]
        masks: list[Any] = [None] * len(singles)
        if mask is not None:
            shape, array = [*batch_shape, sum(choice_sizes(self.action_space))], np.asarray(mask)
            if list(array.shape) != shape:
                raise UserError(f"mask: got {describe_value(array)}. Pass booleans of shape {shape}.")
            masks = [*array] if batch_shape else [array]
        rows = []
        for single, single_mask in zip(singles, masks, strict=True):
            self.spaces.observation, self.spaces.info = single, {MASK: single_mask}
            adapted = self.adapted_env.reset()[0]
            rows.append(adapted if isinstance(adapted, dict) else {"observation": adapted})
            if self.mask_tracker is not None:
                rows[-1] = rows[-1] | {MASK: self.mask_tracker.mask}
        entries = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        tensordict = TensorDict(entries, [len(rows)])
        return tensordict if batch_shape else tensordict[0]

    def write(self, action: Tensor) -> Any:
        """The policy's action, ``[...]`` or ``[n, ...]``, in the environment's own action space."""
        is_batch = action.ndim > self.spec.ndim
        env_actions = []
        for single_action in action if is_batch else [action]:
            self.adapted_env.step(self.spec.to_numpy(single_action, safe=False))
            env_actions.append(self.spaces.action)
        if is_batch and isinstance(self.action_space, Dict | Tuple):
            return stack_values(env_actions, self.action_space)
        if is_batch:
            return np.stack(env_actions)
        return int(env_actions[0]) if isinstance(self.action_space, Discrete) else env_actions[0]


def adapt_input(values: Tensor, space: Space) -> Tensor:
    """A batch ``[batch, *shape]`` as the policy reads it: images ``[batch, C, H, W]``, or vectors."""
    if is_image(space):
        if len(space.shape) == 2:
            return values[:, None]
        shorter = not isinstance(space, ChannelsFirstBox) and space.shape[-1] <= space.shape[-3]
        last = isinstance(space, ChannelsLastBox) or shorter
        image = values if space.dtype in (np.uint8, np.bool_) else values.float()
        return (image.movedim(-1, -3) if last else image).flatten(1, -3)
    if isinstance(space, Discrete):
        return nn.functional.one_hot(values - int(space.start), int(space.n)).float()
    flat = values.reshape(-1, math.prod(space.shape))
    if isinstance(space, MultiDiscrete):
        choices = zip(flat.unbind(1), space.start.flat, space.nvec.flat, strict=True)
        return torch.cat(
            [nn.functional.one_hot(choice - int(low), int(n)) for choice, low, n in choices], 1
        ).float()
    return flat


def find_mask_tracker(env: gymnasium.Env) -> MaskTracker | None:
    """The wrapper that reads an environment's action mask, if any."""
    return next((wrapper for wrapper in wrapper_chain(env) if isinstance(wrapper, MaskTracker)), None)


def as_arrays(values: Any, space: gymnasium.Space, path: tuple = ()) -> Any:
    """Values as arrays of a space's dtypes, ``[*shape]`` or ``[n, *shape]``, nested like the space.

    Args:
        values: an observation or a batch of them.
        space: the observation space.
        path: of these values in the observation, for messages.

    Raises:
        UserError: for entries that are missing, or have another shape or dtype.
    """
    if isinstance(space, Dict | Tuple):
        nested = {
            key: as_arrays(get_entry(values, key, space, path), subspace, (*path, key))
            for key, subspace in child_spaces(space).items()
        }
        return nested if isinstance(space, Dict) else tuple(nested.values())
    try:
        array = np.asarray(values)
    except ValueError:  # rows of several lengths
        array = np.empty((), object)
    shape, dtype = list(space.shape), space.dtype
    is_batch = array.ndim == len(shape) + 1 and len(array) > 0
    if list(array.shape[is_batch:]) != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UserError(
            f"{entry_label(path)}: got {array.dtype} of shape {list(array.shape)}. Pass {dtype} of shape "
            f"{shape}, or [{', '.join(map(str, ['n', *shape]))}] for a batch."
        )
    return array.astype(dtype)


def get_entry(values: Any, key: Any, space: Dict | Tuple, path: tuple) -> Any:
    """The value under a key of a dictionary or tuple.

    Raises:
        UserError: if it is missing.
    """
    try:
        return values[key]
    except (KeyError, IndexError, TypeError, ValueError):
        type_name, keys = ("dictionary", [*space.spaces]) if isinstance(space, Dict) else ("tuple", "")
        expected = f"a {type_name} of {', '.join(map(str, keys)) or len(space.spaces)}"
        raise UserError(
            f"{entry_label((*path, key))}: it is missing, got {describe_value(values)}. Pass {expected} as "
            f"{entry_label(path)}."
        ) from None


def entry_label(path: tuple) -> str:
    """An observation entry as Python code, for messages."""
    return "observation" + "".join(f"[{key!r}]" for key in path)
