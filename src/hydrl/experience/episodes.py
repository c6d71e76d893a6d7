"""Which episode a row of a replay memory is of, so that what it keeps can be told apart later."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, Storage

EPISODE = "episode"  # entry of a row, and what TorchRL's samplers of sequences look for
TO_GO = "return_to_go"  # of a row of data: what its episode returned from it on, in the task's own units


class Episodes:
    """Numbers the episodes of environments that are stepped together, each of one environment.

    Rows are kept environment by environment, batch by batch, in time's order: of one number they are one
    after another, whatever lies between them. Where a batch begins with anything but what was seen last, as
    that of another worker or of environments that begin anew, so does an episode.
    """

    def __init__(self) -> None:
        self.count = 0  # of episodes so far
        self.last: TensorDictBase | None = None  # what the last steps led to, [envs], with their numbers

    def numbered(self, batch: TensorDictBase) -> TensorDictBase:
        """A fresh batch, ``[time]`` or ``[..., time]``, with the numbers of its episodes, ``int32``."""
        rows = batch.reshape(-1, batch.shape[-1])
        begins = torch.ones(rows.shape, dtype=torch.bool, device=batch.device)
        begins[:, 1:] = rows["next", "done"][:, :-1, 0]
        running, begins[:, 0] = self.running(rows[:, 0])
        numbers = begins.flatten().cumsum(0, dtype=torch.int32).view_as(begins) + (self.count - 1)
        numbers = numbers.where(begins.cumsum(1) > 0, running.unsqueeze(1))
        self.count += int(begins.sum())
        seen = [key for key in rows["next"].keys(True, True) if key in rows.keys(True, True)]
        self.last = rows["next"][:, -1].select("done", *seen).clone().set(EPISODE, numbers[:, -1])
        return batch.copy().set(EPISODE, numbers.view(batch.shape))

    def running(self, first: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The episodes that were under way, and whether the first rows begin others, ``[envs]``."""
        begins = torch.ones(first.shape, dtype=torch.bool, device=first.device)
        if self.last is None or self.last.shape != first.shape:
            return torch.zeros_like(begins, dtype=torch.int32), begins
        last = self.last.to(first.device)
        begins = last["done"][:, 0]
        for key in (key for key in last.keys(True, True) if key not in (EPISODE, "done")):
            begins = begins | (first[key] != last[key]).flatten(1).any(-1)
        return last[EPISODE], begins

    def state_dict(self) -> dict[str, Any]:
        """How many there are, and which are under way."""
        last = {} if self.last is None else {"last": self.last.to_dict(), "envs": len(self.last)}
        return {"count": self.count, **last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        self.count = state["count"]
        self.last = TensorDict(state["last"], batch_size=[state["envs"]]) if "last" in state else None


def has_episodes(buffer: ReplayBuffer) -> bool:
    """Whether the rows of a buffer, if it has any, say which episode they are of; older runs' do not."""
    return not len(buffer) or EPISODE in buffer.storage.get(0).keys()  # noqa: SIM118 - a tensordict's keys


def whole_episodes(rows: TensorDictBase) -> TensorDictBase:
    """Rows of episodes that came to their end, one after another, with what was returned from each on.

    Args:
        rows: ``[rows]`` in time's order, with their episodes; ``return_to_go`` where they have it already.
    """
    rows = rows[rows[EPISODE].argsort(stable=True)]
    if TO_GO not in rows.keys():  # noqa: SIM118 - a tensordict's keys
        _, place, counts = rows[EPISODE].unique_consecutive(return_inverse=True, return_counts=True)
        after = rows["next"][counts.cumsum(0) - 1]
        over = after["done"] & ~after.get("cut_short", torch.zeros_like(after["done"]))
        returned = after["episode_reward"].masked_fill(~over, torch.nan)
        rows = rows.set(TO_GO, returned[place] - rows["episode_reward"])
    return rows[rows[TO_GO].isfinite().squeeze(-1)]


class Windows(RandomSampler):
    """Draws so many rows one after another of an episode, each such piece as likely as another.

    An episode of fewer rows is one piece; after its last row that is repeated, and ``mask`` says so.
    TorchRL's own ``SliceSampler`` draws each episode as often as any other, and so rows of short ones more
    often.

    Args:
        episodes: of all rows, ``[rows]``, those of one together.
        sequence: rows of a piece.
    """

    def __init__(self, episodes: Tensor, sequence: int) -> None:
        super().__init__()
        counts = episodes.unique_consecutive(return_counts=True)[1]
        ends = counts.cumsum(0)
        row, self.last = torch.arange(len(episodes)), (ends - 1).repeat_interleave(counts)
        begins = (ends - counts).repeat_interleave(counts)
        self.starts = row[(row + sequence - 1 <= self.last) | (row == begins)]
        self.ahead = torch.arange(sequence)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """The places of ``batch_size`` rows, piece after piece."""
        drawn = self.starts[torch.randint(len(self.starts), (batch_size // len(self.ahead),))].unsqueeze(1)
        rows, last = drawn + self.ahead, self.last[drawn]
        return rows.minimum(last).flatten(), {("collector", "mask"): (rows <= last).flatten()}
