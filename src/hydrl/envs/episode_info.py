"""Values of Gymnasium's ``info``, such as success, followed through each episode."""

from collections.abc import Collection, Mapping, Sequence
from math import nan
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.envs.gym_like import BaseInfoDictReader

from hydrl.errors import UserError
from hydrl.specs import INFO

SUCCESS = ("is_success", "success")  # logged by default; Stable-Baselines3 logs the first


class EpisodeInfo(gymnasium.Wrapper):
    """Gymnasium wrapper that follows values of ``info`` through each episode.

    Args:
        env: the environment.
        reductions: for each key in ``info``: the ``last`` value of the episode, or the ``mean``, ``sum`` or
            ``max`` over steps.
        label: the environment's name in messages.
        required: keys that the user named, whose values must be numbers.
    """

    def __init__(
        self, env: gymnasium.Env, reductions: Mapping[str, str], label: str, required: Collection[str]
    ) -> None:
        super().__init__(env)
        self.reductions, self.label, self.required = dict(reductions), label, [*required]
        self.values, self.counts = dict.fromkeys(reductions, nan), dict.fromkeys(reductions, 0)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode; clears the values."""
        for name in self.reductions:
            self.values[name], self.counts[name] = nan, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step.

        Raises:
            UserError: if a required value is not a number.
        """
        result = self.env.step(action)
        info = result[-1] if isinstance(result[-1], dict) else {}
        for name, reduction in self.reductions.items():
            value = self.to_number(name, info[name]) if name in info else nan
            if reduction == "last":
                self.values[name] = value
            elif reduction == "max":
                self.values[name] = np.fmax(self.values[name], value).item()  # NaN only while there is none
            elif value == value:
                self.values[name] = value + (self.values[name] if self.counts[name] else 0.0)
                self.counts[name] += 1
        return result

    def to_number(self, name: str, value: Any) -> float:
        """A value as a float; NaN if it is not a number and not required."""
        if is_number(value):
            return float(np.asarray(value).item())
        if name in self.required:
            raise UserError(
                f"env.info_keys: {self.label} returned info[{name!r}]={' '.join(repr(value).split())[:60]}, "
                f"which is not a number. Leave {name} out, or return a number."
            )
        return nan

    def current_values(self) -> list[float]:
        """The episode's values so far; NaN if unknown."""
        return [
            self.values[name] / self.counts[name]
            if reduction == "mean" and self.counts[name]
            else self.values[name]
            for name, reduction in self.reductions.items()
        ]


class InfoReader(BaseInfoDictReader):
    """TorchRL info reader that writes the values of :class:`EpisodeInfo` as ``(INFO, NAME)``, ``[..., 1]``.

    Args:
        wrappers: one for each environment of a vector, or one.
        batch_size: ``[]``, or ``[num_envs]``.
    """

    def __init__(self, wrappers: Sequence[EpisodeInfo], batch_size: torch.Size) -> None:
        self.wrappers, self.batch_size, self.names = wrappers, batch_size, [*wrappers[0].reductions]

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the values to the observations."""
        values = torch.tensor([wrapper.current_values() for wrapper in self.wrappers], dtype=torch.float32)
        columns = values.reshape(*self.batch_size, len(self.names), 1).unbind(-2)
        return tensordict.set(INFO, TensorDict(dict(zip(self.names, columns, strict=True)), self.batch_size))

    @property
    def info_spec(self) -> dict[str, Any]:
        """The specs of the values."""
        shape = (*self.batch_size, 1)
        return {INFO: Composite({name: Unbounded(shape) for name in self.names}, shape=self.batch_size)}


def is_number(value: Any) -> bool:
    """Whether a value is one number or boolean, maybe in an array of one."""
    array = np.asarray(value)
    return array.size == 1 and array.dtype.kind in "biuf"
