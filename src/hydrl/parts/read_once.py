"""A loss of critics of actions that have the actor's encoder, which reads a picture once for all of them."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor, nn
from torchrl import objectives

from hydrl.parts.networks.encoders import Features


class SACLoss(objectives.SACLoss):
    """TorchRL's, where critics may have the actor's encoder, ``critic.encoder=shared``.

    As in DrQ-v2 (Yarats et al. 2022) the critics alone teach it, the actor takes its features as they are, and
    it has no target. Twelve passes through encoders of their own, two of three with a gradient, become two.
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
            tensordict = tensordict.copy().set(Features.made, tensordict[Features.made].detach())
        return super().actor_loss(tensordict)


def apart(networks: Mapping[str, Any]) -> tuple[dict[str, Any], Features | None]:
    """The networks of a loss without the encoder that a critic of actions and the actor share, and that.

    The others, and losses of states, for which it runs within the networks, stay as they are.
    """
    actor, critic = networks.get("actor_network"), networks.get("qvalue_network")
    found = [each for each in (actor, critic) if each is not None for each in each.modules()]
    encoders = [each for each in found if isinstance(each, Features)]
    if critic is None or len(encoders) < 2 or encoders[0] is not encoders[-1]:
        return dict(networks), None
    encoder = encoders[0]
    encoder.shared = False  # it need not know: it runs where it is told to
    over: dict[str, nn.Module] = {
        "actor_network": ProbabilisticTensorDictSequential(actor[0][-1], actor[-1]),
        "qvalue_network": critic[-1],
    }
    return {**networks, **over}, encoder
