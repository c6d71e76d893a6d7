"""A Gymnasium task that shares no memory with its own code, and whose mistakes are told in a line."""

from copy import deepcopy
from traceback import walk_tb
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from hydrl.envs.action_masks import NOT_DISCRETE, MaskTracker, warn_mask_ignored
from hydrl.envs.episode_info import SUCCESS, EpisodeInfo
from hydrl.errors import UserError
from hydrl.library_setup import warn_once
from hydrl.specs import MASK

CHECKED_STEPS = 100  # first steps of a task that are held against what its spaces say
HUGE_REWARD = 1e6  # a reward beyond it is more likely a mistake than meant
CHECK_ENV = "gymnasium.utils.env_checker.check_env(ENV) checks all of it"


class CheckedEnv(gymnasium.Wrapper):
    """Hands copies to a task and copies of what it gives on, so that neither changes the other's arrays.

    A task may return its own array and change it in place at the next step, and may change the action it is
    given. What is told here, once a process, is no mistake that ends a run: observations outside their space,
    huge rewards, a mask that nothing reads. ``info`` is not handed on: what is read of it
    :class:`hydrl.envs.episode_info.EpisodeInfo` has read below.

    Args:
        env: observes a vector of floats or a dictionary of arrays, as :func:`adapted` sees to.
        named: what a message calls it.
    """

    def __init__(self, env: gymnasium.Env, named: str) -> None:
        super().__init__(env)
        self.label = named
        self.dtypes: Any
        self.shapes: Any
        space = env.observation_space
        # Tasks that work leave their bounds, too; those of pictures say how an encoder scales them.
        if isinstance(space, Dict):
            self.dtypes = {name: subspace.dtype.type for name, subspace in space.items()}
            self.shapes = {name: subspace.shape for name, subspace in space.items()}
            self.observation_space = Dict(
                {name: without_bounds(subspace) for name, subspace in space.items()}
            )
        else:
            self.dtypes, self.shapes = space.dtype.type, space.shape
            self.observation_space = without_bounds(space)
        self.steps_to_check = CHECKED_STEPS if self.unwrapped.spec else 0  # steps that are still looked at

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode; with a seed, what the task's own spaces draw is seeded, too.

        Options are the task's own to be given: an empty dictionary, what a vector makes of a mask, is none.
        """
        if seed is not None:
            seed_spaces(self, seed)
        try:
            result = self.env.reset(seed=seed, options=options or None)
        except Exception as error:
            self.explain_error(error)
            raise
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise UserError(
                f"{self.label} gave {describe_value(result)} in reset, and not an observation and a "
                f"dictionary, as Gymnasium asks since 0.26; {CHECK_ENV}"
            )
        observation, info = self.copy_observation(result[0]), result[1]
        if self.steps_to_check:
            self.check_values(observation, 0.0, info)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """One step.

        Raises:
            UserError: for an observation of another shape or kind than its space, a reward that is not one
                number.
        """
        if isinstance(action, np.ndarray):
            action = action.copy()
        try:
            raw_observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            self.explain_error(error)
            raise
        observation = self.copy_observation(raw_observation)
        if type(reward) is not float:
            reward = self.to_reward(reward)
        if self.steps_to_check:
            self.steps_to_check -= 1
            self.check_values(observation, reward, info)
        if (terminated or truncated) and isinstance(info, dict):
            warn_success_ignored(self, info)
        return observation, reward, bool(terminated), bool(truncated), {}

    def explain_error(self, error: Exception) -> None:
        """Tells in a line of what Gymnasium cannot work with; the task's own errors are shown as they are.

        Raises:
            UserError: for what comes of its spaces or of what it returns.
        """
        if not (isinstance(error, UserError) or is_env_error(error)):
            reason = " ".join(str(error).split())
            raise UserError(f"{self.label} does not keep to Gymnasium: {reason}; {CHECK_ENV}") from error

    def copy_observation(self, observation: Any) -> Any:
        """Arrays that are the run's own: one, or by their names."""
        if not isinstance(self.dtypes, dict):
            return self.to_array(observation, self.dtypes, self.shapes)
        return {
            name: self.to_array(observation[name], self.dtypes[name], self.shapes[name], name)
            for name in self.dtypes
        }

    def to_array(self, value: Any, kind: type, size: tuple[int, ...], name: str = "") -> np.ndarray:
        """What is observed, or an entry of it, as a new array.

        Raises:
            UserError: for another shape or kind than its space.
        """
        try:
            array: np.ndarray = np.array(value, dtype=kind)
            is_one = getattr(value, "dtype", None) in (kind, np.bool_)
            if kind is np.uint8 and not (is_one or np.array_equal(array, value)):  # fractions, or beyond 255
                array = np.empty(0)
        except (TypeError, ValueError, OverflowError):
            array = np.empty(0)  # of a shape that no space has
        if array.shape != size:
            numbers = f"{size[0]} numbers" if len(size) == 1 else f"numbers of shape {list(size)}"
            raise UserError(
                f"{self.label} gave {describe_value(value)} to observe{' as ' * bool(name)}{name}; its "
                f"observation_space says {numbers} of kind {kind.__name__}"
            )
        return array

    def to_reward(self, reward: Any) -> float:
        """A reward, out of an array of one, too.

        Raises:
            UserError: for several, as of a task with several aims, or none.
        """
        try:
            return float(np.asarray(reward).item())
        except (TypeError, ValueError):
            raise UserError(f"{self.label} gave the reward {reward}; it must be one number") from None

    def check_values(self, observation: Any, reward: float, info: Any) -> None:
        """Tells what is odd and may be meant."""
        space = self.env.observation_space
        spaces = space.spaces if isinstance(space, Dict) else {"": space}
        values = observation if isinstance(space, Dict) else {"": observation}
        if any(
            ((values[name] < bounds.low) | (values[name] > bounds.high)).any()
            for name, bounds in spaces.items()
        ):
            warn_once(
                f"{self.label} observes what lies outside its observation_space; it is learned from as it is"
            )
        if abs(reward) > HUGE_REWARD:
            warn_once(
                f"{self.label} pays {reward:g} in a step; losses grow with it, transforms can scale rewards"
            )
        if (
            isinstance(info, dict)
            and MASK in info
            and not any(isinstance(e, MaskTracker) for e in wrapper_chain(self))
        ):
            is_choice = isinstance(self.action_space, Discrete | MultiDiscrete)
            why = "env.action_mask=false, or its reset did not say so" if is_choice else NOT_DISCRETE
            warn_mask_ignored(self.label, ("info", MASK), why)


def without_bounds(space: Box) -> Box:
    """The space of a vector without its bounds; a picture, ``[C, H, W]``, keeps them.

    It is a space of its own, but for bytes: a saved simulation knows which objects are the same.
    """
    if space.dtype == np.uint8:
        return space
    low, high = (space.low, space.high) if len(space.shape) == 3 else (-np.inf, np.inf)
    return Box(low, high, space.shape, space.dtype.type)


def describe_value(value: Any) -> str:
    """What a task gave, in a few words."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} of {value.dtype}"
    return f"a {kind} of {len(value)}" if isinstance(value, tuple | list | dict) else f"a {kind}"


def is_env_error(error: Exception) -> bool:
    """Whether a task's own code failed, which its traceback tells best."""
    if isinstance(error, gymnasium.error.Error | ModuleNotFoundError):
        return False
    cause = error.__cause__  # which may be one that nobody raised
    frames = walk_tb((cause and cause.__traceback__) or error.__traceback__)
    packages = [frame.f_globals["__name__"].partition(".")[0] for frame, _ in frames]
    # These fail in whoever calls them.
    caller = [package for package in packages if package not in ("numpy", "tensordict", "torch")][-1]
    return caller not in ("gymnasium", "hydrl", "importlib", "torchrl")


def wrapper_chain(env: gymnasium.Env) -> list[gymnasium.Env]:
    """A task under its wrappers, the outermost first."""
    chain = [env]
    while isinstance(chain[-1], gymnasium.Wrapper):
        chain.append(chain[-1].env)
    return chain


def seed_spaces(env: gymnasium.Env, seed: int) -> None:
    """Seeds what a task draws by ``self.action_space.sample()`` and ``self.observation_space.sample()``."""
    spaces = [
        space for level in wrapper_chain(env) for space in (level.action_space, level.observation_space)
    ]
    unique = list({id(space): space for space in spaces}.values())
    for space, own in zip(unique, np.random.SeedSequence(seed).generate_state(len(unique)), strict=True):
        space.seed(int(own))


def warn_success_ignored(task: CheckedEnv, info: dict[str, Any]) -> None:
    """Says of a task that tells of its success, and was not known to, how that is followed."""
    if untaken := [name for name in SUCCESS if name in info]:
        taken = {
            name
            for level in wrapper_chain(task)
            if isinstance(level, EpisodeInfo)
            for name in level.reductions
        }
        for name in (key for key in untaken if key not in taken):
            warn_once(f"{task.label} gives {name} in info; env.info_keys=[{name}] logs it")


def copy_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a maker, copied so that each environment may change its own."""
    return {key: try_copy(value) for key, value in values.items()}


def try_copy(value: Any) -> Any:
    """A copy, or the value itself where it cannot be copied, as an open connection."""
    try:
        return deepcopy(value)
    except Exception:
        return value
