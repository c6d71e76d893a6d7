"""Multi-agent minibatches: rewards and done flags where a loss reads them."""

from typing import Any

import torch
from tensordict import TensorDictBase

from hydrl.errors import warn_once
from hydrl.specs import ALIVE, sibling_key


def fill_loss_keys(rows: TensorDictBase, keys: Any) -> TensorDictBase:
    """Rows ``[rows]`` with rewards and done flags under the keys that a loss reads.

    Done flags of the team are copied to each agent. The team's reward is the mean of its agents' rewards.

    Args:
        rows: changed in place and returned.
        keys: the loss's ``tensor_keys``.
    """
    action, next_rows = getattr(keys, "action", None), rows.get("next")
    if not any(isinstance(getattr(keys, name, None), tuple) for name in ("action", "done", "terminated")):
        return rows  # of one agent
    for name in ("done", "terminated"):
        key = getattr(keys, name)
        if isinstance(key, tuple) and key not in next_rows.keys(True):
            shape = next_rows.get(sibling_key(key, "reward")).shape
            next_rows.set(key, next_rows.get(name).unsqueeze(-2).expand(shape))
    if isinstance(action, tuple) and not rows.get(sibling_key(action, ALIVE), torch.ones(1)).all():
        warn_once(
            "agents that ended before their episode are trained on as if they still acted. algo=mappo and "
            "algo=ippo leave them out."
        )
    if isinstance(action, tuple) and keys.reward not in next_rows.keys(True):
        agent_rewards = next_rows.get(sibling_key(action, "reward"))
        if (agent_rewards != agent_rewards[..., :1, :]).any():
            warn_once("agents that are trained together have different rewards, whose mean is used.")
        next_rows.set(keys.reward, agent_rewards.mean(-2))
    return rows
