"""A loss of critics of actions that have the actor's encoder, which reads a picture once for all of them."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor, nn
from torchrl import objectives

FEATURES = "features"  # what an encoder writes


class SACLoss(objectives.SACLoss):
    """TorchRL's, where critics may have the actor's encoder, ``critic.encoder=shared``.

    As in DrQ-v2 (Yarats et al. 2022) the critics alone teach it, the actor takes its features as they are,
    and it has no target. Eight passes through encoders of their own become two, one of them with a gradient.
    """

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Over a minibatch ``[size]``, which gets the priorities."""
        if (encoder := getattr(self, "encoder", None)) is None:
            return super().forward(minibatch)
        read = minibatch.copy()
        with torch.no_grad():
            encoder(read["next"])
        losses = super().forward(encoder(read))
        minibatch.set(self.tensor_keys.priority, read[self.tensor_keys.priority])
        return losses

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Without a gradient of what was read."""
        if getattr(self, "encoder", None) is not None:
            tensordict = tensordict.copy().set(FEATURES, tensordict[FEATURES].detach())
        return super().actor_loss(tensordict)


def apart(networks: Mapping[str, Any]) -> tuple[dict[str, Any], nn.Module | None]:
    """The networks of a loss without the encoder that a critic of actions and the actor share, and that.

    Where there is none they stay as they are, as do those of losses of states, for which it runs within them.
    """
    critic = networks.get("qvalue_network")
    shared = [each for each in critic.modules() if getattr(each, "shared", False)] if critic else []
    if critic is None or not shared:
        return {**networks}, None
    actor = networks["actor_network"]
    shared[0].shared = False  # it need not look whether it has run: this loss says when
    over = {
        "actor_network": ProbabilisticTensorDictSequential(actor[0][-1], actor[-1]),
        "qvalue_network": critic[-1],
    }
    return {**networks, **over}, shared[0]
