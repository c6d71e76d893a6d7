"""PPO loss with one more term."""

from torchrl.objectives import ClipPPOLoss


class FlatLoss(ClipPPOLoss):
    """PPO loss that also keeps the logits near zero."""

    def __init__(self, *networks, flat: float = 0.01, **options) -> None:
        super().__init__(*networks, **options)
        self.flat = flat

    def forward(self, minibatch):
        losses = super().forward(minibatch)
        logits = self.actor_network.get_dist(minibatch).logits
        return losses.set("loss_flat", self.flat * logits.square().mean())
