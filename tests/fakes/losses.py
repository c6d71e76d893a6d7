"""A user's own loss."""

from torchrl.objectives import DQNLoss


class SingleStepLoss(DQNLoss):
    """DQN's loss of single steps."""
