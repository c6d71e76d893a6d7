"""Losses of language models: TorchRL's GRPO, averaged over answers' tokens, and supervised fine-tuning."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import LossModule, llm

from hydrl.limits import NonNegativeFloat, PositiveInt

ClipRange = Annotated[float, Field(gt=0, lt=1)]
# Outputs that TorchRL averages over all positions, padding included.
DILUTED = ("kl_approx", "clip_fraction", "entropy")
LOG_RATIO = "log_ratio_max"  # entry that the loss writes into a minibatch
MEAN_TOKENS = "mean_tokens"  # of a minibatch's answers, in each of its parts


class Accumulating:
    """Mixin of losses whose gradient is the sum of those of a minibatch's parts, to save memory.

    Averages over tokens are those of the whole minibatch, however the tokens lie in its parts.

    Attributes:
        accumulate: number of parts.
    """

    accumulate = 1
    actor_network: Any

    def split_minibatch(self, minibatch: TensorDictBase) -> Sequence[TensorDictBase]:
        """The parts of a minibatch, see :func:`hydrl.training.update.make_gradients`."""
        if self.accumulate == 1:
            return [minibatch]
        rows = len(minibatch)
        tokens = (minibatch["action"] != self.actor_network.pad).sum()
        minibatch[MEAN_TOKENS] = (tokens / rows).expand(rows).clone()
        minibatch[LOG_RATIO] = torch.zeros(rows, device=tokens.device)
        return minibatch.split(-(-rows // self.accumulate))

    def count_tokens(self, minibatch: TensorDictBase, mask: Tensor) -> Tensor:
        """What to divide a sum over the tokens of a minibatch or a part by."""
        mean_tokens = minibatch.get(MEAN_TOKENS, None)
        return mask.sum() if mean_tokens is None else mean_tokens[0] * len(mean_tokens)


class GRPOLoss(Accumulating, llm.GRPOLoss):
    """TorchRL's GRPO loss (Shao et al. 2024), whose averages are over the tokens of answers.

    A minibatch has ``prompt``, ``action`` and ``action_log_prob`` of the policy that acted, ``advantage``
    ``[answers, 1, 1]`` and, with ``kl_to_ref_coeff``, ``reference_log_prob``.

    Args:
        actor_network: the policy.
        per: what the objective is averaged over. ``token``: all tokens (DAPO, Yu et al. 2025); ``answer``:
            the mean of each answer, as in the paper, which favours short right and long wrong answers;
            ``length``: divides by the longest allowed answer (Dr. GRPO, Liu et al. 2025); ``sequence``: one
            ratio for each answer, the geometric mean of its tokens' (GSPO, Zheng et al. 2025), whose clip
            range is narrower, 3e-4 and 4e-4.
        objective: ``clip`` is PPO's; ``cispo`` weights log-probabilities by the clipped ratio, so that
            clipped tokens are learned, too (MiniMax 2025). TorchRL's ``CISPOLoss`` gives them no gradient.
        clip_low: the ratio is clipped at 1 minus this.
        clip_high: the ratio is clipped at 1 plus this.
        entropy_coeff: weight of the entropy bonus.
        kl_to_ref_coeff: weight of the divergence from the reference policy.
        kl: estimator of that divergence. ``k3`` as in the paper, whose gradient is that of the reverse
            divergence; ``k2``, whose gradient is that of the divergence itself.
        accumulate: parts of a minibatch whose gradients are added, to save memory.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        per: Literal["token", "answer", "length", "sequence"] = "token",
        objective: Literal["clip", "cispo"] = "clip",
        clip_low: ClipRange = 0.2,
        clip_high: ClipRange = 0.28,
        entropy_coeff: NonNegativeFloat = 0.0,
        kl_to_ref_coeff: NonNegativeFloat = 0.0,
        kl: Literal["k2", "k3"] = "k3",
        accumulate: PositiveInt = 1,
    ) -> None:
        super().__init__(
            actor_network,
            aggregation="prompt_mean" if per in ("answer", "sequence") else "token_mean",
            clip_epsilon=(clip_low, clip_high),
            entropy_coeff=entropy_coeff,
            kl_to_ref_coeff=kl_to_ref_coeff,
        )
        self.per, self.objective, self.kl, self.accumulate = per, objective, kl, accumulate
        self.set_keys(action="action", sample_log_prob="action_log_prob", ref_log_probs="reference_log_prob")
        terms = ["loss_kl_to_ref", "kl_to_ref"] if kl_to_ref_coeff else []
        self.out_keys = [
            "loss_objective",
            "clip_fraction",
            "ESS",
            "kl_approx",
            "entropy",
            "loss_entropy",
            *terms,
        ]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch ``[answers]``; writes the largest log-ratio of each answer's tokens there."""
        self.minibatch = tensordict
        losses = super().forward(tensordict).to_tensordict()
        for key in DILUTED:
            losses[key] = losses[key] / self.token_share
        if MEAN_TOKENS in tensordict:
            tensordict[LOG_RATIO].copy_(self.log_ratio_max)  # in the minibatch of which this is a part
        else:
            tensordict[LOG_RATIO] = self.log_ratio_max
        self.minibatch = None
        return losses

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        log_weight, dist, kl_approx, mask = super()._log_weight(tensordict, adv_shape)
        self.token_share = mask.float().mean()
        self.log_ratio_max = log_weight.detach().abs().amax((-2, -1))
        if self.per == "sequence":
            tokens = mask.sum(-1, keepdim=True).clamp_min(1)
            log_weight = (log_weight.sum(-2) / tokens)[..., None].expand_as(log_weight)
        return log_weight, dist, kl_approx, mask

    def _compute_policy_objective(self, log_weight: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        objective, clip_fraction = super()._compute_policy_objective(log_weight, advantage)
        if self.objective == "cispo":
            weight = log_weight.detach().clamp(*self._clip_bounds).exp()
            objective = -weight * advantage * log_weight
        return objective, clip_fraction

    def _aggregate_loss_value(self, value: Tensor, mask: Tensor, tensordict: Any = None) -> Tensor:
        if self.per == "length":
            return value.where(mask[..., None], 0.0).sum() / mask.numel()
        if self.per == "token" and self.accumulate > 1:
            return value.where(mask[..., None], 0.0).sum() / self.count_tokens(self.minibatch, mask)
        return super()._aggregate_loss_value(value, mask, tensordict).mean()  # of one element, a scalar

    def _kl_to_ref(self, tensordict: TensorDictBase, *, mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        difference = tensordict["reference_log_prob"] - tensordict["_cur_log_prob"]
        estimate = difference.square() / 2 if self.kl == "k2" else difference.expm1() - difference
        divergence = estimate.where(mask, 0.0).sum() / self.count_tokens(tensordict, mask)
        return self.kl_to_ref_coeff * divergence, divergence


class SFTLoss(Accumulating, LossModule):
    """Supervised fine-tuning loss: the negative log-likelihood of answers, a mean over their tokens.

    Args:
        actor_network: the policy.
        accumulate: parts of a minibatch whose gradients are added, to save memory.
    """

    out_keys: ClassVar = ["loss_sft"]

    def __init__(self, actor_network: nn.Module, *, accumulate: PositiveInt = 1) -> None:
        super().__init__()
        self.actor_network, self.accumulate = actor_network, accumulate
        self.in_keys = ["prompt", "action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The loss of a minibatch ``[answers]``."""
        tokens = self.count_tokens(tensordict, tensordict["action"] != self.actor_network.pad)
        return TensorDict({"loss_sft": -self.actor_network.log_prob(tensordict).sum() / tokens})
