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

FEATURES = "features"  # what an encoder writes, and an actor's layers read
CRITIC_FEATURES = "judged_features"  # what critics' layers read: of what comes next, the target encoder's


class SACLoss(objectives.SACLoss):
    """TorchRL's SAC loss, whose critics may share the actor's encoder, ``critic.encoder=shared``.

    As in DrQ (Kostrikov et al. 2021) the critics' loss alone trains the encoder. Eight passes through
    separate encoders become three, one of them with a gradient.
    """

    encoder: TensorDictModuleBase
    encoder_params: TensorDictParams
    target_encoder_params: TensorDictParams

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Over a minibatch ``[size]``, which gets priorities."""
        if "encoder_params" not in self._modules:
            return super().forward(minibatch)
        read = minibatch.copy()
        after = read["next"]
        with self.encoder_params.to_module(self.encoder, preserve_module_state=False):
            now = self.encoder(read)[FEATURES]
            with torch.no_grad():
                self.encoder(after)
        with torch.no_grad(), self.target_encoder_params.to_module(self.encoder, preserve_module_state=False):
            after[CRITIC_FEATURES] = self.encoder(after.copy())[FEATURES]
        losses = super().forward(read.update({FEATURES: now.detach(), CRITIC_FEATURES: now}))
        minibatch.set(self.tensor_keys.priority, read[self.tensor_keys.priority])
        return losses

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss, without a gradient for the encoder."""
        if CRITIC_FEATURES in tensordict:
            tensordict = tensordict.copy().set(CRITIC_FEATURES, tensordict[FEATURES])
        return super().actor_loss(tensordict)


def split_shared_encoder(networks: Mapping[str, Any]) -> tuple[dict[str, Any], nn.Module | None]:
    """The networks of a loss without the encoder that its critic shares with the actor, and that encoder.

    Without a shared encoder, or with a state-value critic, the networks stay as they are.
    """
    critic = networks.get("qvalue_network")
    shared = [module for module in critic.modules() if getattr(module, "shared", False)] if critic else []
    if critic is None or not shared:
        return {**networks}, None
    actor, layers = networks["actor_network"], critic[-1]
    shared[0].shared = False  # it need not look whether it has run: this loss says when
    judged = [CRITIC_FEATURES if key == FEATURES else key for key in layers.in_keys]
    over = {
        "actor_network": ProbabilisticTensorDictSequential(actor[0][-1], actor[-1]),
        "qvalue_network": TensorDictModule(layers.module, in_keys=judged, out_keys=layers.out_keys),
    }
    return {**networks, **over}, shared[0]
