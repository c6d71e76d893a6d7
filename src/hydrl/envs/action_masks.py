"""Action masks: their source in an environment, and a wrapper that reads them after each step."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from tensordict import TensorDictBase
from torchrl.data import Binary
from torchrl.envs.gym_like import BaseInfoDictReader

from hydrl.errors import UserError, warn_once
from hydrl.specs import MASK

# Where an environment gives its mask, with the name: an observation entry, a key of `info`, or a method.
MaskSource = tuple[Literal["entry", "info", "method"], str]
MaskSetting = str | Literal[False] | None
NOT_DISCRETE = "its actions are not discrete"


class MaskTracker(gymnasium.Wrapper):
    """Gymnasium wrapper that reads the action mask after each step and hides it from the observation.

    Args:
        env: the environment.
        source: where it gives its mask.
        label: the environment's name in messages.
        num_actions: number of actions; of multi-discrete ones, the options of all choices.

    Attributes:
        mask: ``[actions]``, whether each action is valid.

    Raises:
        UserError: if the observation is the mask alone.
    """

    def __init__(self, env: gymnasium.Env, source: MaskSource, label: str, num_actions: int) -> None:
        super().__init__(env)
        self.source, self.label = source, label
        self.mask = np.ones(num_actions, bool)
        kind, key = source
        if kind == "entry":
            other_spaces = {
                name: space for name, space in env.observation_space.spaces.items() if name != key
            }
            if not other_spaces:
                raise UserError(
                    f"{label}: its observation is {key} alone. Write env.action_mask=false to observe it."
                )
            self.observation_space = Dict(other_spaces)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.read_mask(observation, info, done=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self.read_mask(observation, info, done=bool(terminated or truncated))
        return observation, reward, terminated, truncated, info

    def read_mask(self, observation: Any, info: dict[str, Any], *, done: bool) -> Any:
        """Reads the action mask; returns the observation without it.

        Raises:
            UserError: if the mask is not boolean, or is missing although the episode continues.
        """
        kind, key = self.source
        if kind == "method":
            mask = self.env.get_wrapper_attr(key)()
        else:
            mask = (observation if kind == "entry" else info).get(key)
        if mask is None and done:
            mask = np.ones_like(self.mask)
        if kind == "entry" and np.shape(mask)[1:] == self.mask.shape:  # stacked frames, the newest last
            mask = mask[-1]
        self.mask = parse_mask(mask, len(self.mask), f"{self.label} gave {describe_source(self.source)}")
        if kind != "entry":
            return observation
        return {name: value for name, value in observation.items() if name != key}


class MaskReader(BaseInfoDictReader):
    """TorchRL info reader that writes masks of :class:`MaskTracker` as ``action_mask``, ``[..., actions]``.

    Args:
        trackers: one for each environment of a vector, or one.
        batch_size: ``[]``, or ``[num_envs]``.
    """

    def __init__(self, trackers: Sequence[MaskTracker], batch_size: torch.Size) -> None:
        self.trackers, self.shape = trackers, (*batch_size, len(trackers[0].mask))

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the mask to the observations."""
        masks = np.stack([tracker.mask for tracker in self.trackers])
        return tensordict.set(MASK, torch.from_numpy(masks).reshape(self.shape))

    @property
    def info_spec(self) -> dict[str, Any]:
        """The spec of the mask."""
        return {MASK: Binary(self.shape[-1], self.shape, dtype=torch.bool)}


def track_mask(
    env: gymnasium.Env,
    setting: MaskSetting,
    label: str,
    num_actions: int,
    read_reset_keys: Callable[[], Collection[str]],
) -> gymnasium.Env:
    """Wraps an environment in :class:`MaskTracker`, if it gives a mask that can be used.

    Args:
        env: the environment in its wrappers.
        setting: the entry that holds the mask; ``None`` looks for ``action_mask``, ``False`` ignores masks.
        label: the environment's name in messages.
        num_actions: number of actions, see :class:`MaskTracker`; 0 if they are not discrete.
        read_reset_keys: returns the keys of ``info`` after a reset.

    Raises:
        UserError: for an entry that is missing or cannot be used.
    """
    if isinstance(setting, str) and not num_actions:
        raise UserError(f"env.action_mask={setting}: {label} has {env.action_space} actions. Leave it out.")
    source = find_mask_source(env, setting, read_reset_keys if num_actions and setting is not False else list)
    if source is None and isinstance(setting, str):
        space = env.observation_space
        names = sorted({*read_reset_keys(), *(space.spaces if isinstance(space, Dict) else ())})
        raise UserError(
            f"env.action_mask={setting}: no such entry in the observation of {label}, nor in info at reset. "
            f"{'Entries are ' + ', '.join(names) if names else 'There are no entries'}."
        )
    if source is not None and (setting is False or not num_actions):
        warn_mask_ignored(label, source, "env.action_mask=false" if setting is False else NOT_DISCRETE)
        return env
    return env if source is None else MaskTracker(env, source, label, num_actions)


def find_mask_source(
    env: gymnasium.Env, setting: MaskSetting, read_reset_keys: Callable[[], Collection[str]]
) -> MaskSource | None:
    """Where an environment gives its mask: in its observation, by ``action_masks()``, or in ``info``."""
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
    return ("info", key) if key in read_reset_keys() else None


def describe_source(source: MaskSource) -> str:
    """A mask's source in words, for messages."""
    kind, key = source
    return {"entry": f"its observation's {key}", "info": f"info['{key}']", "method": f"{key}()"}[kind]


def warn_mask_ignored(label: str, source: MaskSource, reason: str) -> None:
    """Warns that invalid actions may be taken, and why."""
    warn_once(
        f"{label} gives an action mask, {describe_source(source)}, which is ignored: {reason}. "
        "Invalid actions may be taken."
    )


def parse_mask(mask: Any, num_actions: int, prefix: str) -> np.ndarray:
    """An action mask as booleans, ``[actions]``.

    Args:
        mask: booleans, zeros or ones; for multi-discrete actions maybe a tuple with one for each choice.
        num_actions: number of actions.
        prefix: beginning of the message.

    Raises:
        UserError: for anything else.
    """
    try:
        is_tuple = isinstance(mask, tuple)
        array = np.concatenate([np.ravel(part) for part in mask]) if is_tuple else np.asarray(mask)
        is_right = array.size == num_actions and bool(((array == 0) | (array == 1)).all())
    except ValueError:  # rows of several lengths
        is_right = False
    if not is_right or array.dtype.kind not in "biuf":
        text = "nothing" if mask is None else " ".join(repr(mask).split())[:60]
        raise UserError(f"{prefix} = {text}. It should be {num_actions} booleans, one for each action.")
    return array.reshape(num_actions) != 0
