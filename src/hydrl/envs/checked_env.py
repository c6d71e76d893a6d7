"""A Gymnasium wrapper that copies arrays and checks values, so that mistakes become one-line messages."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from traceback import walk_tb
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from hydrl.envs.action_masks import NOT_DISCRETE, MaskTracker, warn_mask_ignored
from hydrl.envs.episode_info import SUCCESS, EpisodeInfo
from hydrl.errors import UserError, warn_once
from hydrl.specs import MASK

CHECKED_STEPS = 100  # first steps of an environment that are checked
HUGE_REWARD = 1e6  # above it a reward is probably a mistake
CHECK_ENV = "Check it by gymnasium.utils.env_checker.check_env(ENV)."


@contextmanager
def warnings_unless_error() -> Iterator[None]:
    """Passes warnings on if nothing is raised: Gymnasium's checker warns of what an error says anyway."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


class CheckedEnv(gymnasium.Wrapper):
    """Gymnasium wrapper that copies arrays in both directions and checks observations and rewards.

    An environment may return its own array and change it later, or change the action it is given. Once a
    process it warns of observations outside their space, huge rewards and a mask that is not read. ``info``
    is dropped: :class:`hydrl.envs.episode_info.EpisodeInfo` below has read it.

    Args:
        env: observes a vector of floats or a dictionary of arrays, see
            :func:`hydrl.envs.spaces.adapt_spaces`.
        label: the environment's name in messages.
    """

    def __init__(self, env: gymnasium.Env, label: str) -> None:
        super().__init__(env)
        self.label = label
        self.dtypes: Any
        self.shapes: Any
        space = env.observation_space
        # Many environments leave their bounds; those of images are kept for the encoder's scaling.
        if isinstance(space, Dict):
            self.dtypes = {name: subspace.dtype.type for name, subspace in space.items()}
            self.shapes = {name: subspace.shape for name, subspace in space.items()}
            self.observation_space = Dict(
                {name: without_bounds(subspace) for name, subspace in space.items()}
            )
        else:
            self.dtypes, self.shapes = space.dtype.type, space.shape
            self.observation_space = without_bounds(space)
        self.steps_to_check = CHECKED_STEPS if self.unwrapped.spec else 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode; a seed also seeds the environment's spaces.

        Empty ``options``, which a vector makes from a mask, are passed on as ``None``.
        """
        with warnings_unless_error() if self.steps_to_check == CHECKED_STEPS else nullcontext():
            return self.checked_reset(seed, options)

    def checked_reset(self, seed: int | None, options: dict | None) -> tuple[Any, dict]:
        """See :meth:`reset`."""
        if seed is not None:
            seed_spaces(self, seed)
        try:
            result = self.env.reset(seed=seed, options=options or None)
        except Exception as error:
            self.explain_error(error)
            raise
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise UserError(
                f"{self.label}: its reset returned {describe_value(result)}, not an observation and a "
                f"dictionary (Gymnasium 0.26). {CHECK_ENV}"
            )
        observation, info = self.copy_observation(result[0]), result[1]
        if self.steps_to_check:
            self.check_values(observation, 0.0, info)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """One step.

        Raises:
            UserError: for an observation of another shape or dtype than its space, or a reward that is not a
                scalar.
        """
        if self.steps_to_check == CHECKED_STEPS:
            with warnings_unless_error():
                return self.checked_step(action)
        return self.checked_step(action)

    def checked_step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """See :meth:`step`."""
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
        """Explains an error of Gymnasium's; the environment's own errors keep their traceback.

        Raises:
            UserError: if its spaces or return values break Gymnasium's API.
        """
        if not (isinstance(error, UserError) or is_env_error(error)):
            reason = " ".join(str(error).split())
            raise UserError(
                f"{self.label}: it does not follow Gymnasium's API: {reason}. {CHECK_ENV}"
            ) from error

    def copy_observation(self, observation: Any) -> Any:
        """The observation as new arrays: one, or by their names."""
        if not isinstance(self.dtypes, dict):
            return self.to_array(observation, self.dtypes, self.shapes)
        return {
            name: self.to_array(observation[name], self.dtypes[name], self.shapes[name], name)
            for name in self.dtypes
        }

    def to_array(self, value: Any, dtype: type, shape: tuple[int, ...], name: str = "") -> np.ndarray:
        """An observation, or an entry of it, as a new array.

        Raises:
            UserError: for another shape or dtype than its space.
        """
        try:
            array: np.ndarray = np.array(value, dtype=dtype)
            has_dtype = getattr(value, "dtype", None) in (dtype, np.bool_)
            if dtype is np.uint8 and not (
                has_dtype or np.array_equal(array, value)
            ):  # fractions, or beyond 255
                array = np.empty(0)
        except (TypeError, ValueError, OverflowError):
            array = np.empty(0)  # a shape that no space has
        if array.shape != shape:
            raise UserError(
                f"{self.label}: its observation{' ' * bool(name)}{name} is {describe_value(value)}, but its "
                f"observation_space has shape {list(shape)} and dtype {dtype.__name__}. Make the two agree."
            )
        return array

    def to_reward(self, reward: Any) -> float:
        """The reward as a float, also from an array of one.

        Raises:
            UserError: for several rewards, as of a multi-objective environment, or none.
        """
        try:
            return float(np.asarray(reward).item())
        except (TypeError, ValueError):
            shown = " ".join(str(reward).split())[:60]
            raise UserError(
                f"{self.label}: it returned the reward {shown}. Return one number, or give it a "
                "reward_space of several and write env.weights."
            ) from None

    def check_values(self, observation: Any, reward: float, info: Any) -> None:
        """Warns of unusual values that may be intended."""
        space = self.env.observation_space
        spaces = space.spaces if isinstance(space, Dict) else {"": space}
        values = observation if isinstance(space, Dict) else {"": observation}
        if any(
            ((values[name] < bounds.low) | (values[name] > bounds.high)).any()
            for name, bounds in spaces.items()
        ):
            warn_once(f"{self.label} returned an observation outside its observation_space. It is used.")
        if abs(reward) > HUGE_REWARD:
            warn_once(f"{self.label} returned a reward of {reward:g}. A transform can scale large rewards.")
        if (
            isinstance(info, dict)
            and MASK in info
            and not any(isinstance(wrapper, MaskTracker) for wrapper in wrapper_chain(self))
        ):
            is_discrete = isinstance(self.action_space, Discrete | MultiDiscrete)
            reason = "env.action_mask=false, or its reset gave none" if is_discrete else NOT_DISCRETE
            warn_mask_ignored(self.label, ("info", MASK), reason)


def without_bounds(space: Box) -> Box:
    """A vector's space without bounds, or an image's, ``[C, H, W]``, with them.

    It is a new space except for uint8: an exact environment state records which objects are the same.
    """
    if space.dtype == np.uint8:
        return space
    low, high = (space.low, space.high) if len(space.shape) == 3 else (-np.inf, np.inf)
    return Box(low, high, space.shape, space.dtype.type)


def describe_value(value: Any) -> str:
    """A returned value in a few words, for messages."""
    type_name = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} of {value.dtype}"
    return f"a {type_name} of {len(value)}" if isinstance(value, tuple | list | dict) else f"a {type_name}"


def is_env_error(error: Exception) -> bool:
    """Whether an error comes from the environment's own code, so that its traceback is useful."""
    if isinstance(error, gymnasium.error.Error | ModuleNotFoundError):
        return False
    cause = error.__cause__  # it may never have been raised
    frames = walk_tb((cause and cause.__traceback__) or error.__traceback__)
    packages = [frame.f_globals["__name__"].partition(".")[0] for frame, _ in frames]
    # Errors in these come from their caller.
    caller = [package for package in packages if package not in ("numpy", "tensordict", "torch")][-1]
    return caller not in ("gymnasium", "hydrl", "importlib", "torchrl")


def wrapper_chain(env: gymnasium.Env) -> list[gymnasium.Env]:
    """An environment and all it wraps, the outermost first."""
    chain = [env]
    while isinstance(chain[-1], gymnasium.Wrapper):
        chain.append(chain[-1].env)
    return chain


def seed_spaces(env: gymnasium.Env, seed: int) -> None:
    """Seeds the action and observation spaces of an environment, which it may sample from."""
    spaces = [
        space for wrapper in wrapper_chain(env) for space in (wrapper.action_space, wrapper.observation_space)
    ]
    unique_spaces = list({id(space): space for space in spaces}.values())
    for space, space_seed in zip(
        unique_spaces, np.random.SeedSequence(seed).generate_state(len(unique_spaces)), strict=True
    ):
        space.seed(int(space_seed))


def warn_success_ignored(env: CheckedEnv, info: dict[str, Any]) -> None:
    """Warns of a success flag in ``info`` that is not logged."""
    if ignored_keys := [name for name in SUCCESS if name in info]:
        logged_keys = {
            name
            for wrapper in wrapper_chain(env)
            if isinstance(wrapper, EpisodeInfo)
            for name in wrapper.reductions
        }
        for name in (key for key in ignored_keys if key not in logged_keys):
            warn_once(f"{env.label} returns {name} in info. Write env.info_keys=[{name}] to log it.")


def copy_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a maker, copied so that each environment may change its own."""
    return {key: try_copy(value) for key, value in values.items()}


def try_copy(value: Any) -> Any:
    """A deep copy, or the value itself if it cannot be copied, as an open connection."""
    try:
        return deepcopy(value)
    except Exception:
        return value
