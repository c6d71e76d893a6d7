"""A transform for observations that may be missing."""

import torch
from torchrl.envs import ObservationTransform


class Blind(ObservationTransform):
    """Sets an observation to zeros with probability `share`."""

    def __init__(self, share: float, in_keys: list[str]) -> None:
        super().__init__(in_keys=in_keys, out_keys=in_keys)
        self.share = share

    def _apply_transform(self, observation):
        return observation * (torch.rand(observation.shape[:-1]) >= self.share).unsqueeze(-1)

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)
