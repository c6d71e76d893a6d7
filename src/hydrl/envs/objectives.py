"""Environments with several objectives: the reward is a weighted sum of the objectives' own rewards."""

import warnings
from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from hydrl.errors import UserError
from hydrl.metric_names import OBJECTIVE


def weigh_rewards(env: gymnasium.Env, weights: Sequence[float] | None, label: str) -> gymnasium.Env:
    """Wraps an environment with several rewards a step in :class:`WeightedReward`; returns others unchanged.

    Args:
        env: whose ``reward_space``, if it has one, says how many rewards a step gives.
        weights: one for each objective, or ``None``.
        label: the environment's name in messages.

    Raises:
        UserError: for weights that do not fit, and for several rewards without weights.
    """
    space = env.get_wrapper_attr("reward_space") if env.has_wrapper_attr("reward_space") else None
    count = prod(getattr(space, "shape", None) or ())
    if weights is None and count == 1:
        return env
    like = f"env.weights=[{','.join(['1.0'] * count)}]"
    if weights is None:
        raise UserError(
            f"{label}: its reward_space has {count} numbers. Write {like}, a weight for each, in place of a "
            "wrapper that sums them."
        )
    key = f"env.weights=[{','.join(map(str, weights))}]"
    if count == 1:
        raise UserError(f"{key}: {label} has one reward, by its reward_space. Leave env.weights out.")
    if len(weights) != count:
        raise UserError(f"{key}: {label} has {count} objectives. Write a weight for each, as {like}.")
    if not all(map(isfinite, weights)) or not any(weights):
        raise UserError(f"{key}: weights should be finite, and not all 0. Write {like}, for example.")
    return WeightedReward(env, weights, label)


class WeightedReward(gymnasium.Wrapper):
    """Gymnasium wrapper that sums the objectives' rewards by weights, and puts each one into ``info``.

    Args:
        env: returns ``[objectives]`` rewards a step.
        weights: one for each objective.
        label: the environment's name in messages.

    Attributes:
        reward_space: of the sum; TorchRL would read that of the environment below.
    """

    reward_space = Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, env: gymnasium.Env, weights: Sequence[float], label: str) -> None:
        super().__init__(env)
        self.weights, self.label, self.has_stepped = [*map(float, weights)], label, False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            UserError: for another number of rewards than weights.
        """
        observation, rewards, terminated, truncated, info = self.step_unwarned(action)
        if np.size(rewards) != len(self.weights):
            raise UserError(
                f"{self.label}: it returned the reward {' '.join(str(rewards).split())[:60]}, but its "
                f"reward_space has {len(self.weights)} numbers. Make the two agree."
            )
        objectives = np.ravel(rewards).astype(np.float64)
        reward = float(objectives @ self.weights)
        own = {OBJECTIVE.format(number): float(value) for number, value in enumerate(objectives)}
        return observation, reward, terminated, truncated, {**info, **own}

    def step_unwarned(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the environment below; at the first one Gymnasium would warn of several rewards."""
        if self.has_stepped:
            return self.env.step(action)
        self.has_stepped = True
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*The reward returned by `step")
            return self.env.step(action)


def objective_reductions(weights: Sequence[float] | None) -> dict[str, str]:
    """How each objective is followed through an episode, see :class:`hydrl.envs.episode_info.EpisodeInfo`."""
    return {OBJECTIVE.format(number): "sum" for number, _ in enumerate(weights or ())}
