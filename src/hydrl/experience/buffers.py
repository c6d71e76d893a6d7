"""Replay buffers: TorchRL's, whose state a checkpoint can hold."""

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.data.replay_buffers import samplers
from torchrl.envs import TransformedEnv

from hydrl.envs.transforms import ActionScaling
from hydrl.experience.frame_dedup import Frames
from hydrl.experience.hindsight import goals_of
from hydrl.specs import stacked_images


class PrioritizedSampler(samplers.PrioritizedSampler):
    """TorchRL's, whose trees are saved as tensors instead of pickled objects."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers."""
        state = super().state_dict()
        every = torch.arange(self.max_size)
        return state | {tree: torch.as_tensor(state[tree][every]) for tree in ("_sum_tree", "_min_tree")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        every = torch.arange(self.max_size)
        self._sum_tree[every], self._min_tree[every] = state_dict["_sum_tree"], state_dict["_min_tree"]
        super().load_state_dict({**state_dict, "_sum_tree": self._sum_tree, "_min_tree": self._min_tree})


def of_task(buffer: ReplayBuffer | None, env: TransformedEnv) -> ReplayBuffer | None:
    """The buffer, which keeps what it is given of a task as :func:`in_its_own_unit` says, and a picture once.

    One that deals out a batch without replacement has its pictures whole.
    """
    if buffer is not None and (goals := goals_of(buffer)) is not None:
        goals.of_task(buffer, env)
    keys, stacked = stacked_images(env)
    if keys and buffer is not None and isinstance(buffer.storage, TensorStorage) and not deals(buffer):
        buffer.append_transform(Frames(buffer.storage, keys, stacked))
    return in_its_own_unit(buffer, env)


def deals(buffer: ReplayBuffer) -> bool:
    """Whether it holds a batch and deals it out, each row once."""
    return isinstance(buffer.sampler, samplers.SamplerWithoutReplacement)


def in_its_own_unit(buffer: ReplayBuffer | None, env: TransformedEnv) -> ReplayBuffer | None:
    """The buffer, which keeps actions in the task's own unit and hands them over as ``env`` takes them.

    What lies on disk can then be read as any other data of the task, by whatever learns from it.
    """
    for each in env.transform:
        if buffer is not None and isinstance(each, ActionScaling):
            buffer.append_transform(each.for_rows())
    return buffer
