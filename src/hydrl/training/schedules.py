"""Learning-rate schedules that PyTorch has under other arguments."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR

from hydrl.limits import Fraction, PositiveInt


def linear_to(optimizer: Optimizer, batches: PositiveInt, *, end_factor: Fraction) -> LinearLR:
    """Linear schedule from the optimizer's learning rate to a share of it, as in SimbaV2 and XQC.

    Args:
        optimizer: of the run's own loss.
        batches: steps of the schedule.
        end_factor: the share at the end.
    """
    return LinearLR(optimizer, 1.0, end_factor, batches)
