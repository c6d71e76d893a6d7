"""Replay-buffer minibatches whose rewards are divided by the scale of returns."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule

from hydrl.experience.minibatches import Replay
from hydrl.limits import NonNegativeInt, PositiveFloat, PositiveInt


class ReturnStatistics:
    """Deviation and largest magnitude of discounted returns so far, counted at each step.

    Args:
        gamma: discount.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma, self.count, self.mean, self.squares, self.largest = gamma, 0, 0.0, 0.0, 0.0
        self.returns = np.zeros(1)  # [envs], of the running episodes

    def add(self, batch: TensorDictBase) -> None:
        """Adds a batch ``[time]`` or ``[envs, time]``, as the environments go on from the last one."""
        steps = batch.shape[-1]
        rewards, dones = (
            batch["next", key].reshape(-1, steps).cpu().numpy().astype(float) for key in ("reward", "done")
        )
        if len(rewards) != len(self.returns):
            self.returns = np.zeros(len(rewards))
        for reward, done in zip(rewards.T, dones.T, strict=True):
            returns = self.gamma * self.returns + reward
            self.add_returns(returns)
            self.returns = returns * (1 - done)

    def add_returns(self, returns: NDArray[Any]) -> None:
        """Adds returns to the sums (Chan et al. 1979)."""
        total, delta = self.count + len(returns), returns.mean() - self.mean
        self.squares += float(returns.var() * len(returns) + delta**2 * self.count * len(returns) / total)
        self.mean += float(delta) * len(returns) / total
        self.count, self.largest = total, max(self.largest, float(np.abs(returns).max()))

    def scale(self, max_return: float | None) -> float:
        """What rewards are divided by: the deviation, or more where a return would exceed ``max_return``."""
        deviation = float(np.sqrt(self.squares / max(self.count, 1) + 1e-8))
        return deviation if max_return is None else max(deviation, self.largest / max_return)

    def state_dict(self) -> dict[str, Any]:
        """All sums, and the returns of the running episodes."""
        sums = {name: vars(self)[name] for name in ("count", "mean", "squares", "largest")}
        return {**sums, "returns": torch.from_numpy(self.returns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        vars(self).update(state)
        self.returns = state["returns"].numpy().copy()


class ScaledRewards(Replay):
    """Replay-buffer minibatches with rewards divided by the scale of returns so far (SimbaV2, XQC).

    The buffer keeps rewards as they are, so old and new ones are divided by the same number.

    Args:
        buffer, loss, updates, size, warmup_frames, n_steps, draw: see :class:`Replay`.
        max_return: rewards are also divided so that no return so far exceeds it; ``None``: by the deviation
            of returns alone.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        updates: PositiveInt,
        size: PositiveInt,
        warmup_frames: NonNegativeInt,
        n_steps: PositiveInt,
        draw: Literal["batch", "minibatch"],
        max_return: PositiveFloat | None,
    ) -> None:
        options = {"updates": updates, "size": size, "warmup_frames": warmup_frames, "n_steps": n_steps}
        super().__init__(buffer, loss, **options, draw=draw)
        self.statistics, self.max_return = ReturnStatistics(loss.value_estimator.gamma.item()), max_return

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        self.statistics.add(batch)
        yield from super().__call__(batch)

    def sample(self, count: int) -> TensorDictBase:
        """Rows of ``count`` minibatches, with scaled rewards."""
        rows = super().sample(count)
        key = ("next", self.loss.tensor_keys.reward)
        return rows.set(key, rows.get(key) / self.statistics.scale(self.max_return))

    def state_dict(self) -> dict[str, Any]:
        """As :class:`Replay`, and the statistics of returns."""
        return {**super().state_dict(), "returns": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        super().load_state_dict(state)
        self.statistics.load_state_dict(state["returns"])
