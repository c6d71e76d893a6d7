"""Pictures that are drawn from a memory, moved at random."""

from collections.abc import Sequence

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.envs import Transform

from hydrl.errors import UserError
from hydrl.parts.experience.frames import Frames


class RandomShift(Transform):
    """Moves pictures at random, so that none is learned by heart (DrQ, Kostrikov et al. 2021).

    All frames of a stack move alike, each row and each entry by numbers of its own, drawn from PyTorch's
    generator. What comes into the picture repeats its edge, as if it had been padded by it and cut out again.

    Args:
        in_keys: the entries, pictures ``[rows, C, H, W]``.
        most: pixels to either side, and up or down.
    """

    def __init__(self, in_keys: Sequence[NestedKey], most: int) -> None:
        super().__init__(in_keys=in_keys, out_keys=in_keys)
        self.most = most

    def _apply_transform(self, pixels: Tensor) -> Tensor:
        rows, channels, height, width = pixels.shape
        moved = torch.randint(-self.most, self.most + 1, (2, rows, 1), device=pixels.device)
        down, right = (
            (torch.arange(side, device=pixels.device) + by).clamp(0, side - 1)
            for side, by in zip((height, width), moved, strict=True)
        )
        places = (down.unsqueeze(-1) * width + right.unsqueeze(-2)).reshape(rows, 1, -1)
        return pixels.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(pixels)


def shifting(frames: Frames | None, most: int) -> RandomShift:
    """What moves the pictures of a minibatch, and those that come next, by up to ``most`` pixels.

    Raises:
        UserError: where there are none.
    """
    if frames is None:
        raise UserError(f"minibatches.shift={most} moves pictures, and the task shows none; leave it out")
    return RandomShift([key for each in frames.keys for key in (each, as_next(each))], most)


def as_next(key: NestedKey) -> NestedKey:
    """Where a step has the entry as it is after it."""
    return ("next", *key) if isinstance(key, tuple) else ("next", key)
