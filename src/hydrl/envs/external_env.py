"""An environment for a policy that somebody else's loop steps, and conversion of its input and output."""

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
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec
from torchrl.envs import EnvBase, GymWrapper

from hydrl.envs.action_masks import MaskSource, MaskTracker
from hydrl.envs.checked_env import copy_kwargs, describe_value, wrapper_chain
from hydrl.envs.gymnasium import for_evaluation, make_tracked_env
from hydrl.envs.spaces import (
    adapt_spaces,
    child_spaces,
    choice_sizes,
    get_path,
    is_image,
    leaf_spaces,
    sample_action,
)
from hydrl.errors import UserError
from hydrl.specs import INFO, MASK


class ExternalEnv(EnvBase):
    """Environment whose observations are set from outside, so that a policy's transforms run as in training.

    Its episodes never end by themselves.

    Args:
        like: an environment with the specs it has.
        batch_size: of the observations.
    """

    entry_label = "the mask"

    def __init__(self, like: EnvBase, batch_size: torch.Size) -> None:
        super().__init__(device=like.device, batch_size=batch_size)
        self.shows_all = isinstance(like, GymWrapper)  # see hydrl.specs.observation_keys
        for kind in ("observation", "state", "action", "reward", "done"):
            name = f"full_{kind}_spec_unbatched"
            setattr(self, name, getattr(like, name))
        observation_spec = like.full_observation_spec_unbatched
        if INFO in observation_spec.keys():  # noqa: SIM118 - a spec; no policy reads of it
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
        ends = self.full_done_spec.zero()
        return self.entries.copy().update(self.full_reward_spec.zero()).update(self.rewards).update(ends)

    def _set_seed(self, seed: int | None) -> None:
        """Nothing is drawn."""


class SpacesEnv(gymnasium.Env):
    """Gymnasium environment with the spaces of another one, which returns what it is given."""

    def __init__(self, task: gymnasium.Env) -> None:
        self.observation_space, self.action_space = task.observation_space, task.action_space
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
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as task:
            tracker = find_mask_tracker(task)
            self.spaces = SpacesEnv(tracker.env if tracker else task)
        self.mask_entry = tracker.source[1] if tracker and tracker.source[0] == "entry" else None
        place: MaskSource = ("entry", self.mask_entry) if self.mask_entry else ("info", MASK)
        self.mask_tracker = MaskTracker(self.spaces, place, "predict", len(tracker.mask)) if tracker else None
        self.task = adapt_spaces(self.mask_tracker or self.spaces, self.observe)
        self.observation_space, self.action_space = self.spaces.observation_space, self.spaces.action_space
        self.entries = dict(leaf_spaces((self.mask_tracker or self.spaces).observation_space))
        for _, space in self.entries.values():
            if space.shape is None:
                raise UserError(
                    f"{caller}: the environment observes a {space}, no array. Use act(tensordict)."
                )

    def sample_observations(
        self, episodes: int, steps: int, many: int
    ) -> list[list[tuple[Any, np.ndarray | None]]]:
        """Observations and masks of random steps in batches of ``many``, for each step of each episode.

        Returns:
            For each episode its steps, as :meth:`read` takes them.
        """
        observations: list[Any] = []
        masks: list[np.ndarray] = []
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as task:
            tracker = find_mask_tracker(task)
            task.action_space.seed(0)
            ended = True
            while len(observations) < episodes * steps * many:
                if ended:
                    observation, ended = task.reset(seed=len(observations))[0], False
                else:
                    action = sample_action(task.action_space, tracker.mask if tracker else None)
                    observation, _, *ends, _ = task.step(action)
                    ended = any(ends)
                if tracker is not None and ended:
                    continue  # where nobody acts, and nothing may be allowed
                if tracker is not None:
                    masks.append(tracker.mask)
                    observation = (
                        {**observation, self.mask_entry: tracker.mask} if self.mask_entry else observation
                    )
                observations.append(deepcopy(observation))
        rows: list[tuple[Any, np.ndarray | None]] = []
        for place in range(0, len(observations), many):
            row = observations[place : place + many]
            shown = concatenate(self.observation_space, row, create_empty_array(self.observation_space, many))
            rows.append((shown, np.stack(masks[place : place + many]) if masks else None))
        return [rows[place : place + steps] for place in range(0, len(rows), steps)]

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
            own, batch = self.spaces.observation_space[self.mask_entry].dtype, np.asarray(mask)
            as_shown = batch.astype(own) if batch.dtype.kind in "biuf" else batch
            observation = {**observation, self.mask_entry: as_shown}
        batch = as_arrays(observation, self.observation_space)
        shapes = {path: get_path(batch, path).shape for path, _ in self.entries.values()}
        counts = {path: shapes[path][: -len(space.shape) or None] for path, space in self.entries.values()}
        first, *others = counts
        for path in others:
            if counts[path] != counts[first]:
                raise UserError(
                    f"observation: batch sizes differ: {entry_label(first)} has shape "
                    f"{list(shapes[first])} and {entry_label(path)} {list(shapes[path])}. Make them equal."
                )
        many = counts[first]
        each_of = [*iterate(batch_space(self.observation_space, *many), batch)] if many else [batch]
        masks = [None] * len(each_of) if mask is None else self.split_masks(mask, many)
        rows = []
        for single, allowed in zip(each_of, masks, strict=True):
            self.spaces.observation, self.spaces.info = single, {MASK: allowed}
            adapted = self.task.reset()[0]
            rows.append(adapted if isinstance(adapted, dict) else {"observation": adapted})
            if self.mask_tracker is not None:
                rows[-1] = rows[-1] | {MASK: self.mask_tracker.mask}
        entries = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        tensordict = TensorDict(entries, [len(rows)])
        return tensordict if many else tensordict[0]

    def split_masks(self, mask: Any, many: tuple[int, ...]) -> list[np.ndarray]:
        """The masks of ``many`` observations, each ``[actions]``.

        Raises:
            UserError: for another shape.
        """
        shape, array = [*many, sum(choice_sizes(self.action_space))], np.asarray(mask)
        if list(array.shape) != shape:
            raise UserError(f"mask: got {describe_value(array)}. Pass booleans of shape {shape}.")
        return [*array] if many else [array]

    def write(self, action: Tensor) -> Any:
        """The policy's action, ``[...]`` or ``[n, ...]``, in the environment's own action space."""
        many = action.ndim > self.spec.ndim
        taken = []
        for single in action if many else [action]:
            self.task.step(self.spec.to_numpy(single, safe=False))
            taken.append(self.spaces.action)
        if many and isinstance(self.action_space, Dict | Tuple):
            return concatenate(self.action_space, taken, create_empty_array(self.action_space, len(taken)))
        if many:
            return np.stack(taken)
        return int(taken[0]) if isinstance(self.action_space, Discrete) else taken[0]


def adapt_input(values: Tensor, space: Space) -> Tensor:
    """A batch ``[batch, *shape]`` as the policy reads it: images ``[batch, C, H, W]``, or vectors."""
    if is_image(space):
        if len(space.shape) == 2:
            return values[:, None]
        last = space.shape[-1] <= space.shape[-3]
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


def find_mask_tracker(task: gymnasium.Env) -> MaskTracker | None:
    """The wrapper that reads an environment's action mask, if any."""
    return next((level for level in wrapper_chain(task) if isinstance(level, MaskTracker)), None)


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
    shape, kind = list(space.shape), space.dtype
    many = array.ndim == len(shape) + 1 and len(array) > 0
    if list(array.shape[many:]) != shape or not np.can_cast(array.dtype, kind, "same_kind"):
        raise UserError(
            f"{entry_label(path)}: got {array.dtype} of shape {list(array.shape)}. Pass {kind} of shape "
            f"{shape}, or [{', '.join(map(str, ['n', *shape]))}] for a batch."
        )
    return array.astype(kind)


def get_entry(values: Any, key: Any, space: Dict | Tuple, path: tuple) -> Any:
    """The value under a key of a dictionary or tuple.

    Raises:
        UserError: if it is missing.
    """
    try:
        return values[key]
    except (KeyError, IndexError, TypeError, ValueError):
        kind, keys = ("dictionary", [*space.spaces]) if isinstance(space, Dict) else ("tuple", "")
        expected = f"a {kind} of {', '.join(map(str, keys)) or len(space.spaces)}"
        raise UserError(
            f"{entry_label((*path, key))}: it is missing, got {describe_value(values)}. Pass {expected} as "
            f"{entry_label(path)}."
        ) from None


def entry_label(path: tuple) -> str:
    """An entry as Python writes it."""
    return "observation" + "".join(f"[{key!r}]" for key in path)
