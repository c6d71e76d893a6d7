"""A loss of a user's own, for the tests."""

from torchrl.objectives import DQNLoss


class SingleStepLoss(DQNLoss):
    """Regresses single steps."""
