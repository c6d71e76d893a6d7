"""Recording of transitions in an environment's own spaces, below all conversions, for datasets."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space, Tuple
from torchrl.envs import EnvBase

from hydrl.envs.action_masks import MaskTracker
from hydrl.envs.gymnasium import find_wrappers, gymnasium_env
from hydrl.envs.spaces import child_spaces, get_path, is_image, leaf_spaces
from hydrl.specs import MASK


class TransitionRecorder(gymnasium.Wrapper):
    """Gymnasium wrapper that copies the last transition.

    Attributes:
        observation: the current one, also after a reset.
        action: the last one.
        next_observation: the one after it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation: Any = None
        self.action: Any = None
        self.next_observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.observation = copy_value(observation, self.observation_space)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step."""
        self.action = copy_value(action, self.action_space)
        result = self.env.step(action)
        self.observation = self.next_observation = copy_value(result[0], self.observation_space)
        return result


def copy_value(value: Any, space: Space) -> Any:
    """A copy of a value, with the dtypes and shapes of its space."""
    if isinstance(space, Dict | Tuple):
        children = {key: copy_value(value[key], subspace) for key, subspace in child_spaces(space).items()}
        return children if isinstance(space, Dict) else tuple(children.values())
    return np.array(value, dtype=space.dtype).reshape(space.shape)


def record_transitions(make: Any) -> Any:
    """A partial of :func:`gymnasium_env` whose environments record transitions; others are unchanged."""
    if make.func is not gymnasium_env:
        return make
    wrappers = make.keywords.get("wrappers") or {}
    return partial(make, wrappers={**wrappers, "transitions": partial(TransitionRecorder)})


def find_recorders(env: EnvBase) -> list[TransitionRecorder]:
    """The recorders of an environment, one for each that it steps; none without them."""
    return find_wrappers(env, TransitionRecorder)


def mask_entry(env: EnvBase) -> str | None:
    """The entry of the observation that is the action mask, if any."""
    trackers = find_wrappers(env, MaskTracker)
    return trackers[0].source[1] if trackers and trackers[0].source[0] == "entry" else None


def entry_paths(space: Space, entry: str | None = None) -> dict[str, tuple[tuple, Space]]:
    """The entries of an observation by their dataset names: path and space of each.

    Args:
        space: the environment's own observation space.
        entry: the one that is the action mask.
    """
    names = {}
    for name, (path, subspace) in leaf_spaces(space):
        default_name = "pixels" if is_image(subspace) else "observation"
        names[MASK if path and path == (entry,) else name or default_name] = (path, subspace)
    return names


def action_entries(space: Space) -> dict[str, tuple[tuple, Space]]:
    """The entries of actions by their dataset names: path and space; a single one has an empty name."""
    return {"_".join(map(str, path)): (path, subspace) for _, (path, subspace) in leaf_spaces(space)}


def nest_arrays(space: Space, arrays: dict[tuple, np.ndarray], path: tuple = ()) -> Any:
    """Arrays by path, nested like a space."""
    if not isinstance(space, Dict | Tuple):
        return arrays[path]
    children = {
        key: nest_arrays(subspace, arrays, (*path, key)) for key, subspace in child_spaces(space).items()
    }
    return children if isinstance(space, Dict) else tuple(children.values())


def flat_arrays(values: Any, space: Space) -> dict[tuple, np.ndarray]:
    """The arrays of a batch of :func:`hydrl.envs.spaces.stack_values`, by path."""
    return {path: np.asarray(get_path(values, path)) for _, (path, _) in leaf_spaces(space)}
