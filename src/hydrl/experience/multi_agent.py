"""Rows of several agents, for losses that learn all of them together, or each by itself."""

from typing import Any

import torch
from tensordict import TensorDictBase

from hydrl.library_setup import tell
from hydrl.specs import ALIVE, beside


def as_read(rows: TensorDictBase, keys: Any) -> TensorDictBase:
    """Rows ``[rows]`` in which rewards and ends stand where a loss reads them.

    An episode of all agents ends for each of them. Their reward together is the mean of their own.

    Args:
        rows: changed in place and given back.
        keys: of the loss, its ``tensor_keys``.
    """
    action, after = getattr(keys, "action", None), rows.get("next")
    if not any(isinstance(getattr(keys, name, None), tuple) for name in ("action", "done", "terminated")):
        return rows  # of one agent
    for name in ("done", "terminated"):
        key = getattr(keys, name)
        if isinstance(key, tuple) and key not in after.keys(True):
            shape = after.get(beside(key, "reward")).shape
            after.set(key, after.get(name).unsqueeze(-2).expand(shape))
    if isinstance(action, tuple) and not rows.get(beside(action, ALIVE), torch.ones(1)).all():
        tell(
            "agents that ended before their episode are learned from as if they still acted; algo=mappo and "
            "algo=ippo leave them out"
        )
    if isinstance(action, tuple) and keys.reward not in after.keys(True):
        own = after.get(beside(action, "reward"))
        if (own != own[..., :1, :]).any():
            tell(
                "agents that are learned together have rewards of their own; the mean of them is learned from"
            )
        after.set(keys.reward, own.mean(-2))
    return rows
