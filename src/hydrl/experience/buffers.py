"""Replay buffers: TorchRL's, with a state that checkpoints can save."""

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.data.replay_buffers import samplers
from torchrl.envs import TransformedEnv

from hydrl.envs.transforms import ActionScaling
from hydrl.experience.frame_dedup import FrameDedup
from hydrl.experience.hindsight import find_hindsight
from hydrl.specs import stacked_images


class PrioritizedSampler(samplers.PrioritizedSampler):
    """TorchRL's prioritized sampler; its trees are saved as tensors instead of pickled objects."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and numbers."""
        state = super().state_dict()
        leaves = torch.arange(self.max_size)
        return state | {tree: torch.as_tensor(state[tree][leaves]) for tree in ("_sum_tree", "_min_tree")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        leaves = torch.arange(self.max_size)
        self._sum_tree[leaves], self._min_tree[leaves] = state_dict["_sum_tree"], state_dict["_min_tree"]
        super().load_state_dict({**state_dict, "_sum_tree": self._sum_tree, "_min_tree": self._min_tree})


def prepare_buffer(buffer: ReplayBuffer | None, env: TransformedEnv) -> ReplayBuffer | None:
    """Adds the transforms that an environment needs to a buffer, and returns the buffer.

    They relabel goals (hindsight), store each image frame once and store actions in the environment's units.
    A buffer that samples without replacement (PPO's batch) stores whole images.
    """
    if buffer is not None and (hindsight := find_hindsight(buffer)) is not None:
        hindsight.attach(buffer, env)
    keys, stack_size = stacked_images(env)
    if (
        keys
        and buffer is not None
        and isinstance(buffer.storage, TensorStorage)
        and not samples_without_replacement(buffer)
    ):
        buffer.append_transform(FrameDedup(buffer.storage, keys, stack_size))
    return unscale_actions(buffer, env)


def samples_without_replacement(buffer: ReplayBuffer) -> bool:
    """Whether the buffer returns each of its rows once, as on-policy algorithms do."""
    return isinstance(buffer.sampler, samplers.SamplerWithoutReplacement)


def unscale_actions(buffer: ReplayBuffer | None, env: TransformedEnv) -> ReplayBuffer | None:
    """Makes a buffer store actions in the environment's own units, and scale them in samples.

    The stored rows can then be read like any other dataset of the environment.
    """
    for transform in env.transform:
        if buffer is not None and type(transform) is ActionScaling:
            buffer.append_transform(transform.for_rows())
    return buffer
