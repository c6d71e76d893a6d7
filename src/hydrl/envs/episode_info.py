"""Numbers that a task gives in Gymnasium's ``info``, followed through its episodes."""

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

SUCCESS = ("is_success", "success")  # taken without being named, as Stable-Baselines3 takes the first


class EpisodeInfo(gymnasium.Wrapper):
    """Follows numbers of ``info`` through each episode; what they have come to is asked for after a step.

    Args:
        env: the task.
        how: by its key in ``info`` what counts of a number: the ``last`` step's, or the ``mean`` or the
            ``sum`` of all steps of the episode that gave it.
        named: what a message calls the task.
        asked: the keys that the user named, whose values have to be numbers; others may be anything.
    """

    def __init__(
        self, env: gymnasium.Env, how: Mapping[str, str], label: str, required: Collection[str]
    ) -> None:
        super().__init__(env)
        self.reductions, self.label, self.required = dict(how), label, [*required]
        self.values, self.counts = dict.fromkeys(how, nan), dict.fromkeys(how, 0)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode, of which nothing is known yet."""
        for name in self.reductions:
            self.values[name], self.counts[name] = nan, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step.

        Raises:
            UserError: for a value that is no number.
        """
        result = self.env.step(action)
        info = result[-1] if isinstance(result[-1], dict) else {}
        for name, how in self.reductions.items():
            value = self.to_number(name, info[name]) if name in info else nan
            if how == "last":
                self.values[name] = value
            elif value == value:
                self.values[name] = value + (self.values[name] if self.counts[name] else 0.0)
                self.counts[name] += 1
        return result

    def to_number(self, name: str, value: Any) -> float:
        """A value as a number; what nobody named and is none is not known."""
        if is_number(value):
            return float(np.asarray(value).item())
        if name in self.required:
            raise UserError(
                f"env.info_keys: {self.label} gave info[{name!r}]={' '.join(repr(value).split())[:60]}, "
                "which is no number; leave it out, or let the task give one"
            )
        return nan

    def current_values(self) -> list[float]:
        """What each number has come to in this episode; NaN where it is not known."""
        return [
            self.values[name] / self.counts[name]
            if how == "mean" and self.counts[name]
            else self.values[name]
            for name, how in self.reductions.items()
        ]


class InfoReader(BaseInfoDictReader):
    """Gives TorchRL what :class:`EpisodeInfo` has, as entries ``(INFO, NAME)`` of ``[..., 1]``.

    Args:
        tasks: one, or those of a vector.
        batch_size: ``[]``, or ``[num_envs]``.
    """

    def __init__(self, tasks: Sequence[EpisodeInfo], batch_size: torch.Size) -> None:
        self.wrappers, self.batch_size, self.names = tasks, batch_size, [*tasks[0].reductions]

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Writes them beside what was observed."""
        values = torch.tensor([wrapper.current_values() for wrapper in self.wrappers], dtype=torch.float32)
        columns = values.reshape(*self.batch_size, len(self.names), 1).unbind(-2)
        return tensordict.set(INFO, TensorDict(dict(zip(self.names, columns, strict=True)), self.batch_size))

    @property
    def info_spec(self) -> dict[str, Any]:
        """As TorchRL asks for them."""
        shape = (*self.batch_size, 1)
        return {INFO: Composite({name: Unbounded(shape) for name in self.names}, shape=self.batch_size)}


def is_number(value: Any) -> bool:
    """Whether it is one number or a truth value, maybe in an array of one."""
    array = np.asarray(value)
    return array.size == 1 and array.dtype.kind in "biuf"
