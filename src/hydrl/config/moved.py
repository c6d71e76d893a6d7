"""Parts that have moved: files of older runs, and of one's own, may name them as they were."""

import re
from typing import Any

NETWORKS = "actors|critics|agents|layers"
EXPERIENCE = "buffers|collectors|minibatches"


def renamed(values: Any) -> Any:
    """Nested ``values`` in which each ``_target_`` names a part of hydrl where it is now."""
    if isinstance(values, list):
        return [renamed(each) for each in values]
    if not isinstance(values, dict):
        return values
    if set(values) in ({"lstm"}, {"gru"}):  # a memory, before it was a part
        return {"_target_": "hydrl.parts.networks.memory.Memory", "_partial_": True, **values}
    return {key: now(each) if key == "_target_" else renamed(each) for key, each in values.items()}


def now(target: Any) -> Any:
    """A dotted path as it is now; anything else as it is."""
    if not isinstance(target, str):
        return target
    target = target.replace("hydrl.parts.encoders.", "hydrl.parts.layers.")
    for room, names in (("networks", NETWORKS), ("experience", EXPERIENCE)):
        target = re.sub(rf"^hydrl\.parts\.({names})\.", rf"hydrl.parts.{room}.\1.", target)
    return target
