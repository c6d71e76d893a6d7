"""DQN losses that TorchRL does not have: quantile regression, Munchausen DQN and PQN."""

from typing import Any, ClassVar, Literal

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.objectives import DQNLoss
from torchrl.objectives.utils import ValueEstimators, distance_loss

from hydrl.errors import UserError
from hydrl.limits import Fraction, PositiveFloat

QUANTILES = "quantiles"  # of returns, [..., quantiles, actions]


class TargetDQNLoss(DQNLoss):
    """Base class of DQN losses with a target of their own."""

    def read(self, rows: TensorDictBase, params: TensorDictParams) -> TensorDictBase:
        """The Q-network's outputs for the observations of ``rows``."""
        with params.to_module(self.value_network, preserve_module_state=False):
            return self.value_network(rows.select(*self.value_network.in_keys))

    def choose(self, values: Tensor, action: Tensor) -> Tensor:
        """Values ``[size, ...]`` of actions, from those of all actions, ``[size, ..., actions]``."""
        if self.action_space == "categorical":
            index = action.reshape(len(values), *[1] * (values.ndim - 1))
            return values.gather(-1, index.expand(*values.shape[:-1], 1)).squeeze(-1)
        return (values * action.reshape(len(values), *[1] * (values.ndim - 2), -1)).sum(-1)

    def discount(self, minibatch: TensorDictBase) -> Tensor:
        """Discount of what follows, ``[size, 1]``; 0 after a terminal state."""
        steps = minibatch.get(self.value_estimator.tensor_keys.steps_to_next_obs, 1)
        return self.value_estimator.gamma**steps * ~minibatch["next", self.tensor_keys.terminated]

    def reduce(self, minibatch: TensorDictBase, errors: Tensor, priority: Tensor) -> TensorDictBase:
        """The mean of errors ``[size]``, by a prioritized buffer's weights; writes priorities ``[size]``."""
        minibatch.set(self.tensor_keys.priority, priority.detach().unsqueeze(-1))
        weights = self._maybe_get_priority_weight(minibatch)
        return TensorDict(loss=self._reduce_loss(errors, tensordict=minibatch, weights=weights))


class QuantileDQNLoss(TargetDQNLoss):
    """Quantile regression DQN (Dabney et al. 2018), double as van Hasselt et al. 2016.

    Args:
        value_network: an actor that writes ``quantiles``, ``[..., quantiles, actions]``.
        double_dqn: the network, not the target network, chooses the next action.
        action_space: of one environment.

    Raises:
        UserError: for another actor.
    """

    def __init__(
        self,
        value_network: TensorDictModuleBase,
        *,
        double_dqn: bool = True,
        action_space: str | TensorSpec | None = None,
    ) -> None:
        if QUANTILES not in value_network.out_keys:
            raise UserError("actor: it writes no quantiles. Write actor=quantile.")
        super().__init__(value_network, delay_value=True, double_dqn=double_dqn, action_space=action_space)

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Quantile Huber loss of a minibatch ``[size]``: summed over quantiles, a mean over targets."""
        outputs = self.read(minibatch, self.value_network_params)
        quantiles = self.choose(outputs[QUANTILES], minibatch[self.tensor_keys.action])
        with torch.no_grad():
            next_outputs = self.read(minibatch["next"], self.target_value_network_params)
            chooser = (
                self.read(minibatch["next"], self.value_network_params) if self.double_dqn else next_outputs
            )
            following = self.choose(next_outputs[QUANTILES], chooser[self.tensor_keys.action])
            targets = minibatch["next", self.tensor_keys.reward] + self.discount(minibatch) * following
        errors = targets.unsqueeze(1) - quantiles.unsqueeze(2)  # [size, quantiles, targets]
        huber = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
        levels = (torch.arange(quantiles.shape[1], device=errors.device) + 0.5) / quantiles.shape[1]
        weighted = (levels.unsqueeze(-1) - (errors.detach() < 0).float()).abs() * huber
        return self.reduce(minibatch, weighted.mean(2).sum(1), errors.abs().mean((1, 2)))


class MunchausenDQNLoss(TargetDQNLoss):
    """Munchausen DQN (Vieillard et al. 2020): rewards are raised by the log-probability of the action taken.

    The policy is the softmax of the target network's values, over which the next value is a soft maximum.

    Args:
        value_network: the actor.
        temperature: of the softmax, in scaled rewards.
        share: of the log-probability times temperature, which is added to rewards.
        lowest: the log-probability times temperature is at least this.
        loss_function: distance of values to targets.
        action_space: of one environment.
    """

    def __init__(
        self,
        value_network: TensorDictModuleBase,
        *,
        temperature: PositiveFloat = 0.03,
        share: Fraction = 0.9,
        lowest: float = -1.0,
        loss_function: Literal["l1", "l2", "smooth_l1"] = "smooth_l1",
        action_space: str | TensorSpec | None = None,
    ) -> None:
        super().__init__(value_network, loss_function=loss_function, action_space=action_space)
        self.temperature, self.share, self.lowest = temperature, share, lowest

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Loss of a minibatch ``[size]``."""
        key: NestedKey = self.tensor_keys.action_value
        action, params = minibatch[self.tensor_keys.action], self.target_value_network_params
        predicted = self.choose(self.read(minibatch, self.value_network_params)[key], action)
        with torch.no_grad():
            values, following = (self.read(rows, params)[key] for rows in (minibatch, minibatch["next"]))
            log_prob = self.choose(values, action).unsqueeze(-1) - self.soft_maximum(values)
            bonus = self.share * log_prob.clamp(self.lowest, 0)
            reward = minibatch["next", self.tensor_keys.reward]
            target = reward + bonus + self.discount(minibatch) * self.soft_maximum(following)
        target = target.squeeze(-1)
        errors = distance_loss(predicted, target, self.loss_function)
        return self.reduce(minibatch, errors, (predicted - target).abs())

    def soft_maximum(self, values: Tensor) -> Tensor:
        """Expected value plus entropy of the softmax policy, ``[size, 1]``; the log-sum-exp is both."""
        return self.temperature * (values / self.temperature).logsumexp(-1, keepdim=True)


class PQNLoss(TargetDQNLoss):
    """PQN (Gallici et al. 2024): values regress on λ-returns, by TorchRL's estimator once a batch.

    A return bootstraps from the greedy action's value, by the network that learns.

    Args:
        value_network: the actor.
        loss_function: distance of values to returns.
        action_space: of one environment.
    """

    default_value_estimator: ClassVar = ValueEstimators.TDLambda

    def __init__(
        self,
        value_network: TensorDictModuleBase,
        *,
        loss_function: Literal["l1", "l2", "smooth_l1"] = "l2",
        action_space: str | TensorSpec | None = None,
    ) -> None:
        super().__init__(
            value_network, loss_function=loss_function, delay_value=False, action_space=action_space
        )

    @property
    def critic_network_params(self) -> TensorDictParams:
        """Those that the value estimator reads."""
        return self.value_network_params

    target_critic_network_params = critic_network_params

    def make_value_estimator(self, value_type: ValueEstimators | None = None, **options: Any) -> None:
        """As TorchRL's, but without gradients, and without vmap, in which the greedy choice is slow."""
        own = {"differentiable": False, "deactivate_vmap": True}
        super().make_value_estimator(value_type, **own | options)

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Loss of a minibatch ``[size]`` with the ``value_target`` of its batch."""
        values = self.read(minibatch, self.value_network_params)[self.tensor_keys.action_value]
        predicted = self.choose(values, minibatch[self.tensor_keys.action])
        target = minibatch[self.tensor_keys.value_target].squeeze(-1)
        errors = distance_loss(predicted, target, self.loss_function)
        return TensorDict(loss=self._reduce_loss(errors, tensordict=minibatch))
