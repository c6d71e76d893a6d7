"""Losses for offline datasets: TorchRL's, corrected where they differ from their papers."""

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl import objectives
from torchrl.data import TensorSpec
from torchrl.modules import QValueActor

from hydrl.limits import NonNegativeFloat, PositiveInt
from hydrl.specs import MASK


class BCLoss(objectives.BCLoss):
    """TorchRL's behaviour cloning, also for one-hot actions: their log-likelihood."""

    target_actor_network_params: Any  # declared, else TorchRL warns

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Loss of a minibatch ``[size]``; one-hot actions become floats."""
        action = minibatch.get(self.tensor_keys.action)
        if not action.is_floating_point():
            minibatch = minibatch.copy().set(self.tensor_keys.action, action.float())
        return super().forward(minibatch)


class CQLLoss(objectives.CQLLoss):
    """TorchRL's conservative Q-learning with its paper's penalty (Kumar et al. 2020, appendix F).

    TorchRL's sums three values where the paper sums over all sampled actions, and samples from [-1, 1]
    whatever the bounds. Its ``with_lagrange``, which has no effect, is left out.

    Args:
        actor_network: a distribution over actions.
        qvalue_network: an action value; the loss has two copies.
        action_spec: gives the bounds of random actions.
        loss_function: of the critics' errors.
        alpha_init: the initial entropy temperature.
        fixed_alpha: whether it is constant.
        target_entropy: of the temperature's loss.
        min_q_weight: weight of the penalty.
        num_random: uniform actions for each state, and as many from the policy.
    """

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule,
        *,
        action_spec: TensorSpec,
        loss_function: str = "l2",
        alpha_init: float = 1.0,
        fixed_alpha: bool = False,
        target_entropy: str | float = "auto",
        min_q_weight: NonNegativeFloat = 5.0,
        num_random: PositiveInt = 10,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            action_spec=action_spec,
            loss_function=loss_function,
            alpha_init=alpha_init,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            min_q_weight=min_q_weight,
            num_random=num_random,
        )
        for name in ("low", "high"):
            self.register_buffer(name, getattr(action_spec.space, name).clone())

    def cql_loss(self, minibatch: TensorDictBase) -> tuple[Tensor, dict[str, Any]]:
        """The penalty: the log-sum-exp of values minus the dataset action's value, for both critics."""
        with torch.no_grad():
            actions, log_densities = self.sample_actions(minibatch)
        states = minibatch.select(*self.qvalue_network.in_keys, strict=False)
        candidates = (
            states.expand(len(actions), *minibatch.shape).clone(False).set(self.tensor_keys.action, actions)
        )
        outputs = self._vmap_qvalue_networkN0(candidates, self.qvalue_network_params)
        values = outputs.get(self.tensor_keys.state_action_value).squeeze(-1)  # [critics, actions, size]
        soft_maximum = (values - log_densities).logsumexp(1) - math.log(len(actions))
        dataset_values = [minibatch.get(key) for key in (self.tensor_keys.pred_q1, self.tensor_keys.pred_q2)]
        gap = soft_maximum - torch.stack(dataset_values).squeeze(-1)
        return self._reduce_loss(self.min_q_weight * gap.sum(0), tensordict=minibatch), {}

    def sample_actions(self, minibatch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions ``[2 num_random, size, ...]``, half of them uniform, and their log-densities."""
        with self.actor_network_params.to_module(self.actor_network):
            policy = self.actor_network.get_dist(minibatch)
        policy_actions = policy.sample((self.num_random,))
        span = self.high - self.low
        uniform_actions = self.low + span * torch.rand_like(policy_actions)
        density = -span.log().sum().expand(policy_actions.shape[:-1])
        return torch.cat([uniform_actions, policy_actions]), torch.cat(
            [density, policy.log_prob(policy_actions)]
        )


class DiscreteCQLLoss(objectives.DiscreteCQLLoss):
    """TorchRL's discrete conservative Q-learning, with a target network and a weight of the penalty.

    TorchRL's makes the target network, but bootstraps from the trained one.

    Args:
        value_network: a greedy Q-network.
        action_space: of the actions.
        loss_function: of the values' errors, weighted by one half.
        min_q_weight: weight of the penalty.
        delay_value: whether targets use a target network.
    """

    def __init__(
        self,
        value_network: QValueActor,
        *,
        action_space: TensorSpec,
        loss_function: str = "l2",
        min_q_weight: NonNegativeFloat = 1.0,
        delay_value: bool = True,
    ) -> None:
        options = {"loss_function": loss_function, "delay_value": delay_value}
        super().__init__(value_network, action_space=action_space, **options)
        self.min_q_weight = min_q_weight

    def make_value_estimator(self, value_type: Any = None, **options: Any) -> None:
        """Makes the estimator over the target network."""
        super().make_value_estimator(value_type, **options)
        self.target_value_network_params.to_module(self.value_estimator.value_network, return_swap=False)

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch ``[size]``; the logged mean value excludes invalid actions."""
        losses = super().forward(minibatch)
        if (mask := minibatch.get(MASK, None)) is not None:
            values = minibatch.get(self.tensor_keys.pred_val).detach()
            losses.set("pred_value", values.where(mask, 0.0).sum() / mask.sum())
        return losses

    def cql_loss(self, minibatch: TensorDictBase) -> tuple[Tensor, dict[str, Any]]:
        """The penalty: the log-sum-exp of values minus the dataset action's value."""
        penalty, metadata = super().cql_loss(minibatch)
        return self.min_q_weight * penalty, metadata
