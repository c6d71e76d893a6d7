"""Exploration that TorchRL does not have."""

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import TensorSpec
from torchrl.envs.utils import ExplorationType, exploration_type

from hydrl.limits import PositiveFloat, PositiveInt

NOISE, STEPS_LEFT = "_repeated_noise", "_repeated_noise_steps"


class RepeatedNoise(TensorDictModuleBase):
    """Holds the normal noise of a squashed Gaussian policy for several steps (FlashSAC, Kim et al. 2026).

    The number of steps is drawn anew for each environment, n with a probability proportional to 1 / n^power
    (Dabney et al. 2021); new noise begins with each episode.

    Args:
        spec: of the action, ``[actions]``, bounded.
        power: of the distribution of the number of steps.
        longest: number of steps.
    """

    is_init_key = "is_init"  # see hydrl.specs.needs_episode_starts

    def __init__(self, spec: TensorSpec, *, power: PositiveFloat = 2.0, longest: PositiveInt = 16) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["loc", "scale"], ["action", NOISE, STEPS_LEFT]
        low, high = (torch.as_tensor(bound).clone() for bound in (spec.space.low, spec.space.high))
        self.register_buffer("center", (high + low) / 2, persistent=False)
        self.register_buffer("half_range", (high - low) / 2, persistent=False)
        weights = torch.arange(1, longest + 1).float() ** -power
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replaces the action, ``[..., actions]``, where actions are explored."""
        if exploration_type() not in (ExplorationType.RANDOM, None):
            return tensordict
        loc, scale = tensordict["loc"], tensordict["scale"]
        left = tensordict.get(STEPS_LEFT, torch.zeros_like(loc[..., :1], dtype=torch.long))
        ended = (left <= 0) | tensordict[self.is_init_key].reshape(left.shape)
        noise = torch.where(ended, torch.randn_like(loc), tensordict.get(NOISE, torch.zeros_like(loc)))
        steps = 1 + self.weights.multinomial(left.numel(), replacement=True).reshape(left.shape)
        tensordict.set(NOISE, noise).set(STEPS_LEFT, torch.where(ended, steps, left) - 1)
        squashed = (loc + scale * noise).tanh()
        return tensordict.set("action", self.center + self.half_range * squashed)

    def step(self, frames: int = 1) -> None:
        """Nothing is annealed."""
