"""Episode ids of replay-buffer rows, for sequences and episode statistics."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, Storage

EPISODE = "episode"  # entry of a row; TorchRL's slice samplers read it too
# Entry of a dataset's row: its episode's return from this row on, in the environment's own units.
RETURN_TO_GO = "return_to_go"


class EpisodeCounter:
    """Counter that assigns episode ids to the rows of environments stepped together.

    The rows of an id are in time order. If a batch does not continue the last observation, as with another
    worker or after a reset, new episodes begin.
    """

    def __init__(self) -> None:
        self.count = 0  # episodes so far
        self.last: TensorDictBase | None = None  # [envs]: last next observations, with their episode ids

    def add_episode_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """Copy of a fresh batch, ``[time]`` or ``[..., time]``, with the entry ``episode``, ``int32``."""
        rows = batch.reshape(-1, batch.shape[-1])
        is_first = torch.ones(rows.shape, dtype=torch.bool, device=batch.device)
        is_first[:, 1:] = rows["next", "done"][:, :-1, 0]
        running_ids, is_first[:, 0] = self.running(rows[:, 0])
        ids = is_first.flatten().cumsum(0, dtype=torch.int32).view_as(is_first) + (self.count - 1)
        ids = ids.where(is_first.cumsum(1) > 0, running_ids.unsqueeze(1))
        self.count += int(is_first.sum())
        observed_keys = [key for key in rows["next"].keys(True, True) if key in rows.keys(True, True)]
        self.last = rows["next"][:, -1].select("done", *observed_keys).clone().set(EPISODE, ids[:, -1])
        return batch.copy().set(EPISODE, ids.view(batch.shape))

    def running(self, first_rows: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Ids of the running episodes, and whether the first rows begin new ones, both ``[envs]``."""
        is_first = torch.ones(first_rows.shape, dtype=torch.bool, device=first_rows.device)
        if self.last is None or self.last.shape != first_rows.shape:
            return torch.zeros_like(is_first, dtype=torch.int32), is_first
        last = self.last.to(first_rows.device)
        is_first = last["done"][:, 0]
        for key in (key for key in last.keys(True, True) if key not in (EPISODE, "done")):
            is_first = is_first | (first_rows[key] != last[key]).flatten(1).any(-1)
        return last[EPISODE], is_first

    def state_dict(self) -> dict[str, Any]:
        """The number of episodes and the running ones."""
        last = {} if self.last is None else {"last": self.last.to_dict(), "envs": len(self.last)}
        return {"count": self.count, **last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.count = state["count"]
        self.last = TensorDict(state["last"], batch_size=[state["envs"]]) if "last" in state else None


def has_episodes(buffer: ReplayBuffer) -> bool:
    """Whether a buffer's rows have episode ids; those of runs by early versions do not."""
    return not len(buffer) or EPISODE in buffer.storage.get(0).keys()  # noqa: SIM118 - a tensordict's keys


def complete_episodes(rows: TensorDictBase) -> TensorDictBase:
    """Rows of finished episodes, sorted by episode, with their return-to-go.

    Args:
        rows: ``[rows]`` in time order, with episode ids, and optionally with ``return_to_go``.
    """
    rows = rows[rows[EPISODE].argsort(stable=True)]
    if RETURN_TO_GO not in rows.keys():  # noqa: SIM118 - a tensordict's keys
        _, positions, counts = rows[EPISODE].unique_consecutive(return_inverse=True, return_counts=True)
        last_rows = rows["next"][counts.cumsum(0) - 1]
        is_complete = last_rows["done"] & ~last_rows.get("cut_short", torch.zeros_like(last_rows["done"]))
        episode_returns = last_rows["episode_reward"].masked_fill(~is_complete, torch.nan)
        rows = rows.set(RETURN_TO_GO, episode_returns[positions] - rows["episode_reward"])
    return rows[rows[RETURN_TO_GO].isfinite().squeeze(-1)]


class EpisodeWindows(RandomSampler):
    """Sampler of windows of consecutive rows of one episode, uniform over all windows.

    A shorter episode is one window, padded with its last row; ``mask`` marks the padding. TorchRL's
    ``SliceSampler`` is uniform over episodes instead, so it draws rows of short episodes more often.

    Args:
        episodes: episode ids, ``[rows]``, the rows of an episode together.
        sequence: rows of a window.
    """

    def __init__(self, episodes: Tensor, sequence: int) -> None:
        super().__init__()
        counts = episodes.unique_consecutive(return_counts=True)[1]
        ends = counts.cumsum(0)
        indices, self.last = torch.arange(len(episodes)), (ends - 1).repeat_interleave(counts)
        starts = (ends - counts).repeat_interleave(counts)
        self.starts = indices[(indices + sequence - 1 <= self.last) | (indices == starts)]
        self.offsets = torch.arange(sequence)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Indices of ``batch_size`` rows, window after window."""
        choices = torch.randint(len(self.starts), (batch_size // len(self.offsets),))
        starts = self.starts[choices].unsqueeze(1)
        rows, last = starts + self.offsets, self.last[starts]
        return rows.minimum(last).flatten(), {("collector", "mask"): (rows <= last).flatten()}
