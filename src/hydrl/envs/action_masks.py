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
        self.source, self.label = place, named
        self.mask = np.ones(actions, bool)
        kind, key = place
        if kind == "entry":
            rest = {name: space for name, space in env.observation_space.spaces.items() if name != key}
            if not rest:
                raise UserError(f"{named} observes nothing but {key}; env.action_mask=false observes that")
            self.observation_space = Dict(rest)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.read_mask(observation, info, ended=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = self.read_mask(observation, info, ended=bool(terminated or truncated))
        return shown, reward, terminated, truncated, info

    def read_mask(self, observation: Any, info: dict[str, Any], *, ended: bool) -> Any:
        """Reads what is allowed from now on; gives what is observed.

        Raises:
            UserError: where the task does not say, though the episode goes on, or not in truth values.
        """
        kind, key = self.source
        if kind == "method":
            mask = self.env.get_wrapper_attr(key)()
        else:
            mask = (observation if kind == "entry" else info).get(key)
        if mask is None and ended:
            mask = np.ones_like(self.mask)
        if kind == "entry" and np.shape(mask)[1:] == self.mask.shape:  # stacked frames, the newest last
            mask = mask[-1]
        self.mask = parse_mask(mask, len(self.mask), f"{self.label} gave {describe_source(self.source)}")
        if kind != "entry":
            return observation
        return {name: value for name, value in observation.items() if name != key}


class MaskReader(BaseInfoDictReader):
    """Gives TorchRL what :class:`MaskTracker` knows, as the entry ``action_mask``, ``[..., actions]``.

    Args:
        tasks: one, or those of a vector.
        batch_size: ``[]``, or ``[num_envs]``.
    """

    def __init__(self, tasks: Sequence[MaskTracker], batch_size: torch.Size) -> None:
        self.trackers, self.shape = tasks, (*batch_size, len(tasks[0].mask))

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Writes it beside what was observed."""
        allowed = np.stack([tracker.mask for tracker in self.trackers])
        return tensordict.set(MASK, torch.from_numpy(allowed).reshape(self.shape))

    @property
    def info_spec(self) -> dict[str, Any]:
        """As TorchRL asks for it."""
        return {MASK: Binary(self.shape[-1], self.shape, dtype=torch.bool)}


def track_mask(
    env: gymnasium.Env,
    setting: MaskSetting,
    label: str,
    actions: int,
    at_reset: Callable[[], Collection[str]],
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
    if isinstance(setting, str) and not actions:
        raise UserError(f"env.action_mask={setting}: {label} has {env.action_space} actions; leave it out")
    place = find_mask_source(env, setting, at_reset if actions and setting is not False else list)
    if place is None and isinstance(setting, str):
        space = env.observation_space
        names = sorted({*at_reset(), *(space.spaces if isinstance(space, Dict) else ())})
        raise UserError(
            f"env.action_mask={setting}: {label} shows no such entry, nor has info of its reset; there "
            f"{'are ' + ', '.join(names) if names else 'is none'}"
        )
    if place is not None and (setting is False or not actions):
        warn_mask_ignored(label, place, "env.action_mask=false" if setting is False else NOT_DISCRETE)
        return env
    return env if place is None else MaskTracker(env, place, label, actions)


def find_mask_source(
    env: gymnasium.Env, setting: MaskSetting, at_reset: Callable[[], Collection[str]]
) -> MaskSource | None:
    """Where a task says what is allowed: in what it shows, by Stable-Baselines3's method, or in ``info``."""
    key, space = setting if isinstance(setting, str) else MASK, env.observation_space
    if isinstance(space, Dict) and key in space.spaces:
        return "entry", key
    method = "action_masks"
    if (
        not isinstance(setting, str)
        and env.has_wrapper_attr(method)
        and callable(env.get_wrapper_attr(method))
    ):
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


def parse_mask(mask: Any, actions: int, prefix: str) -> np.ndarray:
    """What is allowed, ``[actions]``.

    Args:
        given: as many truth values, or zeros and ones; of several choices maybe a tuple of those of each.
        actions: how many there are.
        said: how a message begins.

    Raises:
        UserError: for anything else.
    """
    try:
        apart = isinstance(mask, tuple)
        array = np.concatenate([np.ravel(part) for part in mask]) if apart else np.asarray(mask)
        is_right = array.size == actions and bool(((array == 0) | (array == 1)).all())
    except ValueError:  # rows of several lengths
        is_right = False
    if not is_right or array.dtype.kind not in "biuf":
        shown = "nothing" if mask is None else " ".join(repr(mask).split())[:60]
        raise UserError(f"{prefix} = {shown}; it should be {actions} truth values, one for each action")
    return array.reshape(actions) != 0
