"""Bootstrapped rows of a replay buffer, for ensembles whose members learn from different data."""

import torch
from tensordict import TensorDictBase
from torchrl.envs import Transform

from hydrl.limits import PositiveInt
from hydrl.specs import BOOTSTRAP


class Bootstrap(Transform):
    """Replay-buffer transform that draws how often each row is in each member's bootstrapped sample.

    The counts have a Poisson distribution with mean 1, the bootstrap of data that keeps coming (Oza & Russell
    2001). They are drawn when a row is stored and stay.

    Args:
        members: of the ensemble.
    """

    def __init__(self, *, members: PositiveInt) -> None:
        super().__init__(in_keys=[], out_keys=[])
        self.members = members

    def _inv_call(self, rows: TensorDictBase) -> TensorDictBase:
        """Adds the counts, ``[rows, members]``, to rows on their way into the buffer."""
        rate = torch.ones(*rows.shape, self.members, device=rows.device)
        return rows.set(BOOTSTRAP, torch.poisson(rate))
