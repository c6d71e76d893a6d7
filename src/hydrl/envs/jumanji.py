"""Jumanji's games and combinatorial problems, stepped together by JAX (Bonnet et al. 2024)."""

from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from torchrl.data import Bounded, MultiCategorical, OneHot, TensorSpec
from torchrl.envs import EnvBase

from hydrl.envs.jax_env import FunctionalSimulator, JaxEnv, JaxFamily, Outcome, load_jax
from hydrl.envs.optional import check_id
from hydrl.errors import UserError
from hydrl.specs import MASK

EXAMPLES = ("Snake-v1", "Game2048-v1", "Maze-v0")


def make(id: str, num_envs: int = 1, device: str = "cpu", **kwargs: Any) -> EnvBase:
    """Makes environments of Jumanji by their id.

    Several choices that one mask describes together, as in BinPack, become one discrete action.

    Args:
        id: as ``Snake-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live.
        **kwargs: passed to the environment, as ``time_limit``.

    Raises:
        UserError: for an unknown id or keyword, actions or rewards that do not fit, or if Jumanji is not
            installed.
    """
    return JaxEnv(load_simulator(id, **dict(sorted(kwargs.items()))), num_envs, device)


make.env_family = JaxFamily()  # type: ignore[attr-defined]


@cache
def load_simulator(id: str, **options: Any) -> "JumanjiSimulator":
    """The simulator of an environment, whose compiled functions a process shares."""
    jumanji = load_jax("jumanji", "jumanji")
    check_id(id, jumanji.registered_environments(), "environment of Jumanji", EXAMPLES)
    try:
        env = jumanji.make(id, **options)
    except TypeError as error:
        if "keyword" not in str(error):
            raise
        raise UserError(f"env.id={id}: cannot be created: {error}. Leave the keyword out.") from error
    return JumanjiSimulator(id, env)


class JumanjiSimulator(FunctionalSimulator):
    """An environment of Jumanji; a state is its own and the time step that led there.

    Args:
        id: its name.
        env: a ``jumanji.Environment``.

    Raises:
        UserError: for actions or rewards that do not fit.
    """

    def __init__(self, id: str, env: Any) -> None:
        self.id, self.env, self.max_episode_steps = id, env, getattr(env, "time_limit", None)
        for name, spec in (("rewards", env.reward_spec), ("discounts", env.discount_spec)):
            if spec.shape:
                raise UserError(f"env.id={id}: its {name} are several numbers. Choose another environment.")
        self.choices: tuple[int, ...] = ()  # of a joint action
        self.action_dtype = env.action_spec.dtype
        self.action_spec = self.make_action_spec()

    def make_action_spec(self) -> TensorSpec:
        """The spec of actions, by those of Jumanji and its mask.

        Raises:
            UserError: for actions or masks that do not fit.
        """
        spec = self.env.action_spec
        mask = getattr(self.env.observation_spec, MASK, None)
        if (num_values := getattr(spec, "num_values", None)) is None:
            if mask is not None or len(spec.shape) != 1 or not np.issubdtype(spec.dtype, np.floating):
                raise UserError(f"env.id={self.id}: its actions are {spec}. Choose another environment.")
            low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
            return Bounded(torch.tensor(low.copy()), torch.tensor(high.copy()), dtype=torch.float32)
        sizes = np.array(num_values).ravel().tolist()
        if not spec.shape:
            return OneHot(sizes[0], dtype=torch.int64)
        if mask is not None and mask.shape == tuple(sizes):
            self.choices = tuple(sizes)
            return OneHot(prod(sizes), dtype=torch.int64)
        if mask is not None and mask.shape != (len(sizes), sizes[0]):
            raise UserError(
                f"env.id={self.id}: its action mask {list(mask.shape)} does not fit choices of {sizes} "
                "options. Choose another environment."
            )
        return MultiCategorical(torch.tensor(sizes))

    def reset(self, key: Any) -> Any:
        """The first state."""
        return self.env.reset(key)

    def step(self, state: Any, action: Any) -> Any:
        """The next state."""
        return self.env.step(state[0], action)

    def observe(self, state: Any) -> tuple[Any, Any]:
        """The entries of Jumanji's observation without its action mask, and the mask.

        Where no action is valid, as for a trapped snake, all are: the episode goes on for one step.
        """
        observation = state[1].observation
        fields = getattr(observation, "_fields", None) or [*vars(observation)]
        entries = {name: getattr(observation, name) for name in fields if name != MASK}
        if (mask := getattr(observation, MASK, None)) is None:
            return entries, None
        mask = np.array(mask).reshape(len(mask), *([-1] if self.choices else mask.shape[1:]))
        return entries, mask | ~mask.any(-1, keepdims=True)

    def image_bounds(self, name: str) -> tuple[float, float] | None:
        """The bounds of an entry, if Jumanji's spec has the same for all of its values."""
        spec = getattr(self.env.observation_spec, name, None)
        low, high = (np.unique(getattr(spec, bound, ())) for bound in ("minimum", "maximum"))
        return (float(low[0]), float(high[0])) if len(low) == len(high) == 1 else None

    def outcome(self, state: Any) -> Outcome:
        """Jumanji's reward; a last step of discount 0 is a termination, another one a truncation."""
        step = state[1]
        is_last, discount = np.array(step.step_type) == 2, np.array(step.discount)
        return Outcome(step.reward, is_last & (discount == 0), is_last & (discount != 0))

    def convert_action(self, action: np.ndarray) -> np.ndarray:
        """Integers, of a joint action ``[num_envs, choices]``; or floats."""
        if self.choices:
            action = np.stack(np.unravel_index(action, self.choices), -1)
        return action.astype(self.action_dtype)

    def render(self, state: Any) -> np.ndarray:
        """Refused.

        Raises:
            UserError: always.
        """
        raise UserError("Jumanji draws in windows of its own")
