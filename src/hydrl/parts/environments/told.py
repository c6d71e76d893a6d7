"""Environments that are told what they observe, for a policy that somebody else's loop steps."""

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec
from torchrl.envs import EnvBase

from hydrl.errors import UserError
from hydrl.parts.environments.gymnasium import as_evaluated, wrapped_task
from hydrl.parts.environments.spaces import adapted
from hydrl.parts.environments.tasks import copies
from hydrl.parts.specs import INFO


class Told(EnvBase):
    """Observes what it is told, in place of a simulator: the transforms over it then do as they do there.

    No episode ends in it by itself.

    Args:
        like: an environment, whose specs it has.
        batch_size: of what it is told.
    """

    def __init__(self, like: EnvBase, batch_size: torch.Size) -> None:
        super().__init__(device=like.device, batch_size=batch_size)
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
        """Takes what is observed from now on, ``[*batch_size]``.

        Raises:
            UserError: for entries that lack, or have another shape or kind.
        """
        for key, spec in self.observation_spec.items(True, True):
            found = tensordict.get(key, None)
            if found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
                given = "there is none" if found is None else f"got {found.dtype} of {list(found.shape)}"
                raise UserError(f"{key} should be {spec.dtype} of shape {list(spec.shape)}; {given}")
        self.told = tensordict.select(*self.observation_spec.keys(True, True)).to(self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.told.copy()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.told.copy().update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        """Nothing is drawn."""


class Spaces(gymnasium.Env):
    """The spaces of a task without the task: gives the observation, and keeps the action, it is handed."""

    def __init__(self, task: gymnasium.Env) -> None:
        self.observation_space, self.action_space = task.observation_space, task.action_space

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        """Gives ``observation``."""
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Keeps ``action``."""
        self.action = action
        return self.observation, 0.0, False, False, {}


class OwnForm:
    """Observations and actions as Gymnasium's plain environment has them, to and from what the policy has.

    Where the run has wrappers it is the task in those of evaluation: they are not applied to what is read.

    Args:
        make: a partial of :func:`hydrl.parts.environments.gymnasium_env`.
        spec: of one action of the policy.
        asking: what a message says asks for it.

    Raises:
        UserError: where observations are no arrays.
    """

    def __init__(self, make: partial, spec: TensorSpec, asking: str) -> None:
        self.keywords = copies(as_evaluated(make).keywords)
        self.observe, self.spec = self.keywords.pop("observe", None), spec
        self.keywords.pop("info_keys", None)
        with closing(wrapped_task(**copies(self.keywords))) as task:
            self.spaces = Spaces(task)
        self.task = adapted(self.spaces, self.observe)
        self.seen, self.acted = self.spaces.observation_space, self.spaces.action_space
        if self.seen.shape is None:
            raise UserError(
                f"{asking} takes arrays, and this task observes a {self.seen}; use act(tensordict)"
            )

    def observed(self, *shape: int) -> np.ndarray:
        """What the task shows where actions are drawn at random, ``[*shape, ...]``."""
        seen: list[Any] = []
        with closing(wrapped_task(**copies(self.keywords))) as task:
            task.action_space.seed(0)
            ended = True
            while len(seen) < np.prod(shape):
                if ended:
                    observation, ended = task.reset(seed=len(seen))[0], False
                else:
                    observation, _, *ends, _ = task.step(task.action_space.sample())
                    ended = any(ends)
                seen.append(np.array(observation))
        return np.stack(seen).reshape(*shape, *self.seen.shape)

    def read(self, observation: Any) -> TensorDict:
        """One observation, or many with a leading dimension: what the transforms are told, ``[]`` or ``[n]``.

        Raises:
            UserError: for another shape or kind of numbers.
        """
        given, shape, kind = np.asarray(observation), self.seen.shape, self.seen.dtype
        many = given.ndim == len(shape) + 1 and len(given) > 0
        if given.shape[many:] != shape or not np.can_cast(given.dtype, kind, "same_kind"):
            raise UserError(
                f"an observation should be {kind} of shape {list(shape)}, or of shape "
                f"{['n', *shape]} for many; got {given.dtype} of shape {list(given.shape)}".replace("'", "")
            )
        told = []
        for each in given.astype(kind) if many else [given.astype(kind)]:
            self.spaces.observation = each
            told.append(self.task.reset()[0])
        tensordict = TensorDict({"observation": np.stack(told)}, [len(told)])
        return tensordict if many else tensordict[0]

    def write(self, action: Tensor) -> np.ndarray | int:
        """The policy's action, ``[...]`` or ``[n, ...]``, as ``step`` of the plain environment takes it."""
        many = action.ndim > self.spec.ndim
        taken = []
        for each in action if many else [action]:
            self.task.step(self.spec.to_numpy(each, safe=False))
            taken.append(self.spaces.action)
        if many:
            return np.stack(taken)
        return int(taken[0]) if isinstance(self.acted, Discrete) else taken[0]
