"""SAC loss with critics that learn distributions of returns, of SimbaV2, XQC and FlashSAC."""

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl import objectives
from torchrl.data import TensorSpec
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives.sac import compute_rsample_log_prob

from hydrl.errors import UserError
from hydrl.limits import PositiveFloat, PositiveInt

LOG_PROB = "state_action_log_prob"  # of the returns of the support, [..., atoms]


class CategoricalSACLoss(objectives.SACLoss):
    """TorchRL's SAC loss, whose critics learn the distribution of returns by cross-entropy, as C51 does.

    The target is the distribution of the critic with the smaller mean, moved to
    r + gamma (z - alpha log pi) and projected on the support (Bellemare et al. 2017).

    Args:
        actor_network: a policy.
        qvalue_network: its modules have a ``support``, ``[atoms]``, and it writes log-probabilities
            ``[..., atoms]`` beside their mean.
        num_qvalue_nets: critics.
        alpha_init: initial temperature.
        entropy_per_dimension: target entropy, in nats for each action dimension.
        joint_batch: current and next pairs pass critics and target in one batch, for critics with batch
            normalisation (Bhatt et al. 2024).
        joint_actor_batch: current and next observations pass the actor in one batch, and the temperature is
            learned on both (FlashSAC, Kim et al. 2026).
        action_spec: of one environment.
        fixed_alpha: whether the temperature stays.

    Raises:
        UserError: for a critic without a support.
    """

    support: Tensor

    def __init__(
        self,
        actor_network: Any,
        qvalue_network: TensorDictModuleBase,
        *,
        num_qvalue_nets: PositiveInt = 2,
        alpha_init: PositiveFloat = 1.0,
        entropy_per_dimension: float = -1.0,
        joint_batch: bool = False,
        joint_actor_batch: bool = False,
        action_spec: TensorSpec,
        fixed_alpha: bool = False,
    ) -> None:
        buffers = dict(qvalue_network.named_buffers())
        supports = [buffer for name, buffer in buffers.items() if name.endswith("support")]
        if not supports or LOG_PROB not in qvalue_network.out_keys:
            raise UserError("critic: it has no support of returns. Write critic=categorical.")
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets=num_qvalue_nets,
            alpha_init=alpha_init,
            target_entropy=entropy_per_dimension * action_spec.shape[-1],
            action_spec=action_spec,
            fixed_alpha=fixed_alpha,
        )
        self.joint_batch, self.joint_actor_batch = joint_batch, joint_actor_batch
        self.register_buffer("support", supports[0].clone())

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's, by critics in ``eval()`` mode, whose statistics are those of data."""
        self.qvalue_network.eval()
        losses = (self.joint_actor_loss if self.joint_actor_batch else super().actor_loss)(tensordict)
        self.qvalue_network.train()
        return losses

    def joint_actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of current observations; log-probabilities, ``[2 * rows]``, of next ones too."""
        keys, rows = self.actor_network.in_keys, len(tensordict)
        observations = torch.cat([tensordict.select(*keys), tensordict["next"].select(*keys)])
        action, log_prob = self.sample_actions(observations)
        pairs = tensordict.select(*self.qvalue_network.in_keys, strict=False)
        pairs = pairs.set(self.tensor_keys.action, action[:rows])
        outputs = self._vmap_qnetworkN0(pairs, self._cached_detached_qvalue_params)
        value = outputs[self.tensor_keys.state_action_value].min(0)[0].squeeze(-1)
        loss = self._alpha * log_prob[:rows] - value
        loss = self._reduce_loss(loss, tensordict=tensordict, weights=None)  # buffers have no priorities
        return loss, {"log_prob": log_prob.detach()}

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropies to the targets, summed over critics; their mean is the priority."""
        weights = self._maybe_get_priority_weight(tensordict)
        pairs = tensordict.select(*self.qvalue_network.in_keys)
        with torch.no_grad():
            next_pairs, log_prob = self.sample_next_pairs(tensordict)
            if self.joint_batch:
                pairs = next_pairs = torch.cat([pairs, next_pairs])
            reached = self.reach_returns(tensordict, log_prob)
            target = project(reached, self.next_probabilities(next_pairs, len(tensordict)), self.support)
        log_probs = self._vmap_qnetworkN0(pairs, self.qvalue_network_params)[LOG_PROB]
        cross_entropy = -(target * log_probs[:, : len(tensordict)]).sum(-1)
        loss = self._reduce_loss(cross_entropy.sum(0), tensordict=tensordict, weights=weights)
        return loss, {"td_error": cross_entropy.detach().mean(0)}

    def sample_actions(self, observations: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions of the policy, ``[rows, actions]``, and their log-probabilities, ``[rows]``."""
        with (
            set_exploration_type(ExplorationType.RANDOM),
            self.actor_network_params.to_module(self.actor_network, preserve_module_state=False),
        ):
            action, log_prob = compute_rsample_log_prob(self.actor_network.get_dist(observations))
        return action, log_prob

    def sample_next_pairs(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, Tensor]:
        """Next observations with an action of the policy in ``eval()`` mode, and its log-probability."""
        pairs = tensordict["next"].copy()
        self.actor_network.eval()
        action, log_prob = self.sample_actions(pairs)
        self.actor_network.train()
        return pairs.set(self.tensor_keys.action, action).select(*self.qvalue_network.in_keys), log_prob

    def next_probabilities(self, pairs: TensorDictBase, rows: int) -> Tensor:
        """Probabilities ``[rows, atoms]`` of the last ``rows`` pairs, by the target critic of less value."""
        outputs = self._vmap_qnetworkN0(pairs, self.target_qvalue_network_params)
        values, log_probs = (
            outputs[self.tensor_keys.state_action_value][:, -rows:],
            outputs[LOG_PROB][:, -rows:],
        )
        smaller = values.argmin(0, keepdim=True).expand(1, *log_probs.shape[1:])
        return log_probs.gather(0, smaller)[0].exp()

    def reach_returns(self, tensordict: TensorDictBase, log_prob: Tensor) -> Tensor:
        """The support's returns a step earlier, ``[rows, atoms]``: r + gamma (z - alpha log pi)."""
        keys, following = self.tensor_keys, tensordict["next"]
        steps = tensordict.get(self.value_estimator.tensor_keys.steps_to_next_obs, 1)
        discount = self.value_estimator.gamma**steps * ~following[keys.terminated]
        return following[keys.reward] + discount * (self.support - self._alpha * log_prob.unsqueeze(-1))


def project(reached: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Distributes the probabilities of returns over their two neighbours on an even support.

    Args:
        reached: returns, ``[rows, atoms]``; those outside the support count as its ends.
        probabilities: of them, likewise.
        support: ``[atoms]``.
    """
    last = len(support) - 1
    position = ((reached - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)
    lower = position.floor().clamp(max=last - 1)
    upper_share, index = position - lower, lower.long()
    projected = torch.zeros_like(probabilities).scatter_add(-1, index, probabilities * (1 - upper_share))
    return projected.scatter_add(-1, index + 1, probabilities * upper_share)
