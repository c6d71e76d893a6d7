"""Which rows of data a run learns from: recorded by their content, and compared where the run goes on."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer

from hydrl.config.tree import find
from hydrl.datasets.recorded_env import warn_of_other_env
from hydrl.errors import UserError
from hydrl.experience.frame_dedup import FrameDedup
from hydrl.library_setup import warn_once
from hydrl.run.checkpoint.resume import DATA, ResumePoint


def record_data(
    data: ReplayBuffer | None, settings: Mapping[str, Any], point: ResumePoint | None
) -> dict[str, Any] | None:
    """What a run learns from: where it lies, how many rows, their digest, and the checkpoint that had them.

    Args:
        data: the rows; ``None`` where a run has none.
        settings: of the run, as they are saved.
        point: where it is resumed; a fork may learn from other rows.

    Raises:
        UserError: if a run that goes on would learn from other rows than it began with.
    """
    if data is None:
        return None
    warn_of_other_env(data, settings)
    now = {
        "path": str(find(settings, DATA)),
        "checkpoint": getattr(data, "read_from", None),
        "rows": len(data),
        "digest": digest_of(data),
    }
    if point is None:
        return now
    then = point.data
    if not isinstance(then, Mapping):
        warn_once(
            f"the checkpoint is of an earlier version and does not record which rows of {DATA} the run began "
            f"with; it goes on with {described(now)}"
        )
    elif then.get("digest") != now["digest"] and point.is_fork:
        warn_once(f"the fork learns from {described(now)}; {point.folder} learned from {described(then)}")
    elif then.get("digest") != now["digest"]:
        again = then.get("checkpoint")
        restored = f"name {DATA}={again}, if it is still there" if again else "restore the first"
        raise UserError(
            f"{DATA}={now['path']} has other rows than the run began with: {described(then)}, and now "
            f"{described(now)}; {restored}, or add hydra.run.dir=NEW to fork the run with these"
        )
    return now


def described(read: Mapping[str, Any]) -> str:
    """Rows, digest and place in a few words."""
    place = read.get("checkpoint") or read.get("path")
    return f"{read.get('rows')} rows of {place}, digest {read.get('digest')}"


def digest_of(data: ReplayBuffer) -> str:
    """Of all rows in the environment's own units, with the pictures that lie beside them."""
    made = blake2b(digest_size=16)
    beside = [each.buffer for each in data._transform if isinstance(each, FrameDedup)]
    for buffer in (data, *beside):
        rows: TensorDictBase = buffer.storage[:]
        for name, values in sorted(rows.items(True, True), key=lambda item: str(item[0])):
            made.update(f"{name} {values.dtype} {list(values.shape)} ".encode())
            made.update(values.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()
