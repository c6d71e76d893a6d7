"""SAC loss with one encoder shared by actor and critics (as in DrQ); each image is encoded once."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictParams,
)
from torch import Tensor, nn
from torchrl import objectives

FEATURES = "features"  # written by the encoder, read by the actor's layers
CRITIC_FEATURES = "judged_features"  # read by the critics' layers; for next states, by the target encoder


class SACLoss(objectives.SACLoss):
    """TorchRL's SAC loss, whose critics may share the actor's encoder (``critic.encoder=shared``).

    As in DrQ (Kostrikov et al. 2021) only the critics' loss trains the encoder. Eight passes through
    separate encoders become three, one of them with a gradient.
    """

    encoder: TensorDictModuleBase
    encoder_params: TensorDictParams
    target_encoder_params: TensorDictParams

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch ``[size]``, into which priorities are written."""
        if "encoder_params" not in self._modules:
            return super().forward(minibatch)
        inputs = minibatch.copy()
        next_inputs = inputs["next"]
        with self.encoder_params.to_module(self.encoder, preserve_module_state=False):
            features = self.encoder(inputs)[FEATURES]
            with torch.no_grad():
                self.encoder(next_inputs)
        with torch.no_grad(), self.target_encoder_params.to_module(self.encoder, preserve_module_state=False):
            next_inputs[CRITIC_FEATURES] = self.encoder(next_inputs.copy())[FEATURES]
        losses = super().forward(inputs.update({FEATURES: features.detach(), CRITIC_FEATURES: features}))
        minibatch.set(self.tensor_keys.priority, inputs[self.tensor_keys.priority])
        return losses

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss, without a gradient for the encoder."""
        if CRITIC_FEATURES in tensordict:
            tensordict = tensordict.copy().set(CRITIC_FEATURES, tensordict[FEATURES])
        return super().actor_loss(tensordict)


def split_shared_encoder(networks: Mapping[str, Any]) -> tuple[dict[str, Any], nn.Module | None]:
    """Splits the encoder that a loss's critic shares with the actor from both networks.

    Returns:
        The loss's networks and the encoder; unchanged ones and ``None`` without a shared encoder, or with a
        state-value critic.
    """
    critic = networks.get("qvalue_network")
    shared = [module for module in critic.modules() if getattr(module, "shared", False)] if critic else []
    if critic is None or not shared:
        return {**networks}, None
    actor, critic_head = networks["actor_network"], critic[-1]
    shared[0].shared = False  # this loss runs it once itself
    critic_keys = [CRITIC_FEATURES if key == FEATURES else key for key in critic_head.in_keys]
    replaced = {
        "actor_network": ProbabilisticTensorDictSequential(actor[0][-1], actor[-1]),
        "qvalue_network": TensorDictModule(
            critic_head.module, in_keys=critic_keys, out_keys=critic_head.out_keys
        ),
    }
    if hasattr(critic, "redraw"):
        replaced["qvalue_network"].redraw = critic.redraw
    return {**networks, **replaced}, shared[0]
