"""Which actions a task allows: found where it says so, known after each step, given with what it shows."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from tensordict import TensorDictBase
from torchrl.data import Binary
from torchrl.envs.gym_like import BaseInfoDictReader

from hydrl.errors import UserError
from hydrl.library_setup import warn_once
from hydrl.specs import MASK

# Where a task says which actions are allowed: an entry of its dictionary or of `info`, or a method; its name.
MaskSource = tuple[Literal["entry", "info", "method"], str]
MaskSetting = str | Literal[False] | None
NOT_DISCRETE = "they are no choices"


class MaskTracker(gymnasium.Wrapper):
    """Knows after each step which actions are allowed; an entry that says so is no longer observed.

    Args:
        env: the task.
        place: where it says so.
        named: what a message calls it.
        actions: how many there are; of several choices, the options of all.

    Attributes:
        allowed: ``[actions]``, whether each is.

    Raises:
        UserError: for a task that shows nothing else.
    """

    def __init__(self, env: gymnasium.Env, place: MaskSource, named: str, actions: int) -> None:
        super().__init__(env)
        self.place, self.named = place, named
        self.allowed = np.ones(actions, bool)
        kind, key = place
        if kind == "entry":
            rest = {name: each for name, each in env.observation_space.spaces.items() if name != key}
            if not rest:
                raise UserError(f"{named} observes nothing but {key}; env.action_mask=false observes that")
            self.observation_space = Dict(rest)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.look(observation, info, ended=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen = self.look(observation, info, ended=bool(terminated or truncated))
        return seen, reward, terminated, truncated, info

    def look(self, observation: Any, info: dict[str, Any], *, ended: bool) -> Any:
        """Reads what is allowed from now on; gives what is observed.

        Raises:
            UserError: where the task does not say, though the episode goes on, or not in truth values.
        """
        kind, key = self.place
        if kind == "method":
            given = self.env.get_wrapper_attr(key)()
        else:
            given = (observation if kind == "entry" else info).get(key)
        if given is None and ended:
            given = np.ones_like(self.allowed)
        if kind == "entry" and np.shape(given)[1:] == self.allowed.shape:  # stacked frames, the newest last
            given = given[-1]
        self.allowed = parse_mask(
            given, len(self.allowed), f"{self.named} gave {describe_source(self.place)}"
        )
        if kind != "entry":
            return observation
        return {name: each for name, each in observation.items() if name != key}


class MaskReader(BaseInfoDictReader):
    """Gives TorchRL what :class:`MaskTracker` knows, as the entry ``action_mask``, ``[..., actions]``.

    Args:
        tasks: one, or those of a vector.
        batch_size: ``[]``, or ``[num_envs]``.
    """

    def __init__(self, tasks: Sequence[MaskTracker], batch_size: torch.Size) -> None:
        self.tasks, self.shape = tasks, (*batch_size, len(tasks[0].allowed))

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Writes it beside what was observed."""
        allowed = np.stack([each.allowed for each in self.tasks])
        return tensordict.set(MASK, torch.from_numpy(allowed).reshape(self.shape))

    @property
    def info_spec(self) -> dict[str, Any]:
        """As TorchRL asks for it."""
        return {MASK: Binary(self.shape[-1], self.shape, dtype=torch.bool)}


def track_mask(
    env: gymnasium.Env, asked: MaskSetting, named: str, actions: int, at_reset: Callable[[], Collection[str]]
) -> gymnasium.Env:
    """The task in :class:`MaskTracker`, where it says what is allowed and that can be heeded.

    Args:
        env: the task in its wrappers.
        asked: the name of the entry that says so; ``False`` heeds none, ``None`` the one that is called so.
        named: what a message calls the task.
        actions: how many there are, of several choices the options of all; 0 where they are no choices.
        at_reset: gives the names in ``info`` of its reset.

    Raises:
        UserError: for an entry of that name that is not there, or is of no use.
    """
    if isinstance(asked, str) and not actions:
        raise UserError(f"env.action_mask={asked}: {named} has {env.action_space} actions; leave it out")
    place = find_mask_source(env, asked, at_reset if actions and asked is not False else list)
    if place is None and isinstance(asked, str):
        seen = env.observation_space
        there = sorted({*at_reset(), *(seen.spaces if isinstance(seen, Dict) else ())})
        raise UserError(
            f"env.action_mask={asked}: {named} shows no such entry, nor has info of its reset; there "
            f"{'are ' + ', '.join(there) if there else 'is none'}"
        )
    if place is not None and (asked is False or not actions):
        warn_mask_ignored(named, place, "env.action_mask=false" if asked is False else NOT_DISCRETE)
        return env
    return env if place is None else MaskTracker(env, place, named, actions)


def find_mask_source(
    env: gymnasium.Env, asked: MaskSetting, at_reset: Callable[[], Collection[str]]
) -> MaskSource | None:
    """Where a task says what is allowed: in what it shows, by Stable-Baselines3's method, or in ``info``."""
    key, seen = asked if isinstance(asked, str) else MASK, env.observation_space
    if isinstance(seen, Dict) and key in seen.spaces:
        return "entry", key
    method = "action_masks"
    if not isinstance(asked, str) and env.has_wrapper_attr(method) and callable(env.get_wrapper_attr(method)):
        return "method", method
    return ("info", key) if key in at_reset() else None


def describe_source(place: MaskSource) -> str:
    """A place as one writes it."""
    kind, key = place
    return {"entry": f"its observation's {key}", "info": f"info['{key}']", "method": f"{key}()"}[kind]


def warn_mask_ignored(named: str, place: MaskSource, why: str) -> None:
    """Says that forbidden actions are tried, and why."""
    warn_once(
        f"{named} says by {describe_source(place)} which actions are forbidden, and they are tried: {why}"
    )


def parse_mask(given: Any, actions: int, said: str) -> np.ndarray:
    """What is allowed, ``[actions]``.

    Args:
        given: as many truth values, or zeros and ones; of several choices maybe a tuple of those of each.
        actions: how many there are.
        said: how a message begins.

    Raises:
        UserError: for anything else.
    """
    try:
        apart = isinstance(given, tuple)
        array = np.concatenate([np.ravel(each) for each in given]) if apart else np.asarray(given)
        is_right = array.size == actions and bool(((array == 0) | (array == 1)).all())
    except ValueError:  # rows of several lengths
        is_right = False
    if not is_right or array.dtype.kind not in "biuf":
        shown = "nothing" if given is None else " ".join(repr(given).split())[:60]
        raise UserError(f"{said} = {shown}; it should be {actions} truth values, one for each action")
    return array.reshape(actions) != 0
