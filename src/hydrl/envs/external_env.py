"""Environments that are told what they observe, for a policy that somebody else's loop steps."""

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
    """Observes what it is told, in place of a simulator: the transforms over it then do as they do there.

    No episode ends in it by itself.

    Args:
        like: an environment, whose specs it has.
        batch_size: of what it is told.
    """

    entry_label = "the mask"

    def __init__(self, like: EnvBase, batch_size: torch.Size) -> None:
        super().__init__(device=like.device, batch_size=batch_size)
        self.shows_all = isinstance(like, GymWrapper)  # see hydrl.specs.observation_keys
        for kind in ("observation", "state", "action", "reward", "done"):
            name = f"full_{kind}_spec_unbatched"
            setattr(self, name, getattr(like, name))
        seen = like.full_observation_spec_unbatched
        if INFO in seen.keys():  # noqa: SIM118 - a spec; no policy reads of it
            self.full_observation_spec_unbatched = Composite(
                {name: each for name, each in seen.items() if name != INFO},
                shape=seen.shape,
                device=seen.device,
            )

    def tell(self, tensordict: TensorDictBase) -> None:
        """Takes what is observed from now on, ``[*batch_size]``, and what the step that led there paid.

        A reward that is not told is none.

        Raises:
            UserError: for entries that lack, or have another shape or kind.
        """
        for key, spec in self.observation_spec.items(True, True):
            found = tensordict.get(key, None)
            if found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
                given = "there is none" if found is None else f"got {found.dtype} of {list(found.shape)}"
                raise UserError(f"{key} should be {spec.dtype} of shape {list(spec.shape)}; {given}")
        self.told = tensordict.select(*self.observation_spec.keys(True, True)).to(self.device)
        self.paid = tensordict.select(*self.reward_keys, strict=False).to(self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.told.copy()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        ends = self.full_done_spec.zero()
        return self.told.copy().update(self.full_reward_spec.zero()).update(self.paid).update(ends)

    def _set_seed(self, seed: int | None) -> None:
        """Nothing is drawn."""


class SpacesEnv(gymnasium.Env):
    """The spaces of a task without the task: gives the observation, and keeps the action, it is handed."""

    def __init__(self, task: gymnasium.Env) -> None:
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self.info: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        """Gives ``observation`` and ``info``."""
        return self.observation, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Keeps ``action``."""
        self.action = action
        return self.observation, 0.0, False, False, self.info


class GymIO:
    """Observations and actions as Gymnasium's plain environment has them, to and from what the policy has.

    Where the run has wrappers it is the task in those of evaluation: they are not applied to what is read.

    Args:
        make: a partial of :func:`hydrl.envs.gymnasium_env`.
        spec: of one action of the policy.
        asking: what a message says asks for it.

    Attributes:
        seen: the space of what the task shows.
        acted: that of its actions.
        entries: what it shows by the names that the policy has for it: where each lies in it, and its space.
        allowed: knows, of what was read last, which actions are allowed; ``None`` where all always are.
        entry: of what it shows that says so; ``None`` where it is said beside that.

    Raises:
        UserError: where what it shows is made of other things than arrays.
    """

    def __init__(self, make: partial, spec: TensorSpec, asking: str) -> None:
        self.keywords = copy_kwargs(for_evaluation(make).keywords)
        self.observe, self.spec = self.keywords.pop("observe", None), spec
        self.keywords.pop("info_keys", None)
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as task:
            found = find_mask_tracker(task)
            self.spaces = SpacesEnv(found.env if found else task)
        self.entry = found.place[1] if found and found.place[0] == "entry" else None
        place: MaskSource = ("entry", self.entry) if self.entry else ("info", MASK)
        self.allowed = MaskTracker(self.spaces, place, "predict", len(found.allowed)) if found else None
        self.task = adapt_spaces(self.allowed or self.spaces, self.observe)
        self.seen, self.acted = self.spaces.observation_space, self.spaces.action_space
        self.entries = dict(leaf_spaces((self.allowed or self.spaces).observation_space))
        for _, space in self.entries.values():
            if space.shape is None:
                raise UserError(
                    f"{asking} takes arrays, and this task observes a {space}; use act(tensordict)"
                )

    def observed(self, episodes: int, steps: int, many: int) -> list[list[tuple[Any, np.ndarray | None]]]:
        """What the task shows and allows where actions are drawn at random, ``many`` together, of each step.

        Returns:
            of each episode of each step, as :meth:`read` takes it.
        """
        seen: list[Any] = []
        masks: list[np.ndarray] = []
        with closing(make_tracked_env(**copy_kwargs(self.keywords))) as task:
            found = find_mask_tracker(task)
            task.action_space.seed(0)
            ended = True
            while len(seen) < episodes * steps * many:
                if ended:
                    observation, ended = task.reset(seed=len(seen))[0], False
                else:
                    action = sample_action(task.action_space, found.allowed if found else None)
                    observation, _, *ends, _ = task.step(action)
                    ended = any(ends)
                if found is not None and ended:
                    continue  # where nobody acts, and nothing may be allowed
                if found is not None:
                    masks.append(found.allowed)
                    observation = {**observation, self.entry: found.allowed} if self.entry else observation
                seen.append(deepcopy(observation))
        rows: list[tuple[Any, np.ndarray | None]] = []
        for place in range(0, len(seen), many):
            row = seen[place : place + many]
            shown = concatenate(self.seen, row, create_empty_array(self.seen, many))
            rows.append((shown, np.stack(masks[place : place + many]) if masks else None))
        return [rows[place : place + steps] for place in range(0, len(rows), steps)]

    def read(self, observation: Any, mask: Any = None) -> TensorDict:
        """One observation, or many with a leading dimension: what the transforms are told, ``[]`` or ``[n]``.

        Args:
            observation: as the task shows it.
            mask: which actions are allowed, ``[actions]`` or ``[n, actions]``; ``None`` where what is
                observed says so, or all always are.

        Raises:
            UserError: for an entry that lacks, of another shape or kind of numbers, or of which there are not
                as many as of the others; for a mask that lacks, or that has no use.
        """
        if mask is not None and self.allowed is None:
            raise UserError("mask: this policy heeds none, as its task or its run says; leave it out")
        if mask is None and self.allowed is not None and self.entry is None:
            raise UserError("give mask=, which actions are allowed; this task says so beside what it shows")
        if mask is not None and self.entry is not None and isinstance(observation, Mapping):
            own, given = self.spaces.observation_space[self.entry].dtype, np.asarray(mask)
            as_shown = given.astype(own) if given.dtype.kind in "biuf" else given
            observation = {**observation, self.entry: as_shown}
        given = as_arrays(observation, self.seen)
        shapes = {path: get_path(given, path).shape for path, _ in self.entries.values()}
        counts = {path: shapes[path][: -len(each.shape) or None] for path, each in self.entries.values()}
        first, *others = counts
        for path in others:
            if counts[path] != counts[first]:
                raise UserError(
                    f"an observation's entries should be as many: {entry_label(first)} has shape "
                    f"{list(shapes[first])} and {entry_label(path)} {list(shapes[path])}"
                )
        many = counts[first]
        each_of = [*iterate(batch_space(self.seen, *many), given)] if many else [given]
        masks = [None] * len(each_of) if mask is None else self.masks(mask, many)
        rows = []
        for each, allowed in zip(each_of, masks, strict=True):
            self.spaces.observation, self.spaces.info = each, {MASK: allowed}
            seen = self.task.reset()[0]
            rows.append(seen if isinstance(seen, dict) else {"observation": seen})
            if self.allowed is not None:
                rows[-1] = rows[-1] | {MASK: self.allowed.allowed}
        entries = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        tensordict = TensorDict(entries, [len(rows)])
        return tensordict if many else tensordict[0]

    def masks(self, mask: Any, many: tuple[int, ...]) -> list[np.ndarray]:
        """What is allowed, of each of so ``many`` observations, ``[actions]``.

        Raises:
            UserError: for another shape.
        """
        shape, array = [*many, sum(choice_sizes(self.acted))], np.asarray(mask)
        if list(array.shape) != shape:
            raise UserError(f"mask should be truth values of shape {shape}; got {describe_value(array)}")
        return [*array] if many else [array]

    def write(self, action: Tensor) -> Any:
        """The policy's action, ``[...]`` or ``[n, ...]``, as ``step`` of the plain environment takes it."""
        many = action.ndim > self.spec.ndim
        taken = []
        for each in action if many else [action]:
            self.task.step(self.spec.to_numpy(each, safe=False))
            taken.append(self.spaces.action)
        if many and isinstance(self.acted, Dict | Tuple):
            return concatenate(self.acted, taken, create_empty_array(self.acted, len(taken)))
        if many:
            return np.stack(taken)
        return int(taken[0]) if isinstance(self.acted, Discrete) else taken[0]


def adapt_input(given: Tensor, space: Space) -> Tensor:
    """An input ``[batch, *shape]`` as the policy has it: a picture ``[batch, C, H, W]``, or a vector."""
    if is_image(space):
        if len(space.shape) == 2:
            return given[:, None]
        last = space.shape[-1] <= space.shape[-3]
        picture = given if space.dtype in (np.uint8, np.bool_) else given.float()
        return (picture.movedim(-1, -3) if last else picture).flatten(1, -3)
    if isinstance(space, Discrete):
        return nn.functional.one_hot(given - int(space.start), int(space.n)).float()
    flat = given.reshape(-1, math.prod(space.shape))
    if isinstance(space, MultiDiscrete):
        choices = zip(flat.unbind(1), space.start.flat, space.nvec.flat, strict=True)
        return torch.cat(
            [nn.functional.one_hot(each - int(low), int(n)) for each, low, n in choices], 1
        ).float()
    return flat


def find_mask_tracker(task: gymnasium.Env) -> MaskTracker | None:
    """What knows which actions a task allows; ``None`` where all always are."""
    return next((each for each in wrapper_chain(task) if isinstance(each, MaskTracker)), None)


def as_arrays(given: Any, space: gymnasium.Space, path: tuple = ()) -> Any:
    """What is given, as arrays of a space's own kinds, ``[*shape]`` or ``[n, *shape]``, nested as that is.

    Args:
        given: by whoever steps the task.
        space: of what it shows.
        path: where it lies in that.

    Raises:
        UserError: for an entry that lacks, or has another shape or kind of numbers.
    """
    if isinstance(space, Dict | Tuple):
        made = {
            key: as_arrays(get_entry(given, key, space, path), each, (*path, key))
            for key, each in child_spaces(space).items()
        }
        return made if isinstance(space, Dict) else tuple(made.values())
    try:
        array = np.asarray(given)
    except ValueError:  # rows of several lengths
        array = np.empty((), object)
    shape, kind = list(space.shape), space.dtype
    many = array.ndim == len(shape) + 1 and len(array) > 0
    if list(array.shape[many:]) != shape or not np.can_cast(array.dtype, kind, "same_kind"):
        raise UserError(
            f"{entry_label(path)} should be {kind} of shape {shape}, or of shape {['n', *shape]} for many; "
            f"got {array.dtype} of shape {list(array.shape)}".replace("'n'", "n")
        )
    return array.astype(kind)


def get_entry(given: Any, key: Any, space: Dict | Tuple, path: tuple) -> Any:
    """What lies under a key of a dictionary or tuple.

    Raises:
        UserError: where nothing does.
    """
    try:
        return given[key]
    except (KeyError, IndexError, TypeError, ValueError):
        kind, keys = ("dictionary", [*space.spaces]) if isinstance(space, Dict) else ("tuple", "")
        shown = f"a {kind} of {', '.join(map(str, keys)) or len(space.spaces)}"
        raise UserError(
            f"{entry_label((*path, key))} is missing: {entry_label(path)} should be {shown}; "
            f"got {describe_value(given)}"
        ) from None


def entry_label(path: tuple) -> str:
    """An entry as Python writes it."""
    return "observation" + "".join(f"[{key!r}]" for key in path)
