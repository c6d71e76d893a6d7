"""Digest of a run's offline dataset, stored in checkpoints and compared when the run resumes."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer

from hydrl.config.settings import Settings
from hydrl.config.tree import find
from hydrl.errors import UserError
from hydrl.experience.frame_dedup import FrameDedup
from hydrl.library_setup import warn_once
from hydrl.run.checkpoint.resume import DATA, Origin


def record_data(
    data: ReplayBuffer | None, settings: Settings, origin: Origin | None
) -> dict[str, Any] | None:
    """Record of the dataset for checkpoints: path, source checkpoint, number of rows and digest.

    Args:
        data: the dataset, if the run has one.
        settings: settings of the run.
        origin: what the run resumes from; a fork may use another dataset.

    Raises:
        UserError: if a resumed run would learn from other rows than before.
    """
    if data is None:
        return None
    now = {
        "path": str(find(settings.shown, DATA)),
        "checkpoint": getattr(data, "read_from", None),
        "rows": len(data),
        "digest": compute_digest(data),
    }
    if origin is None:
        return now
    then = origin.data
    if not isinstance(then, Mapping):
        warn_once(
            f"the checkpoint is of an earlier version and does not record which rows of {DATA} the run began "
            f"with; it goes on with {describe_data(now)}"
        )
    elif then.get("digest") != now["digest"] and origin.forked:
        warn_once(
            f"the fork learns from {describe_data(now)}; {origin.folder} learned from {describe_data(then)}"
        )
    elif then.get("digest") != now["digest"]:
        again = then.get("checkpoint")
        restored = f"name {DATA}={again}, if it is still there" if again else "restore the first"
        raise UserError(
            f"{DATA}={now['path']} has other rows than the run began with: {describe_data(then)}, and now "
            f"{describe_data(now)}; {restored}, or add hydra.run.dir=NEW to fork the run with these"
        )
    return now


def describe_data(read: Mapping[str, Any]) -> str:
    """A dataset's rows, path and digest in words."""
    place = read.get("checkpoint") or read.get("path")
    return f"{read.get('rows')} rows of {place}, digest {read.get('digest')}"


def compute_digest(data: ReplayBuffer) -> str:
    """Digest of all rows, in the environment's own units, and of deduplicated frames."""
    digest = blake2b(digest_size=16)
    beside = [transform.buffer for transform in data._transform if isinstance(transform, FrameDedup)]
    for buffer in (data, *beside):
        rows: TensorDictBase = buffer.storage[:]
        for name, values in sorted(rows.items(True, True), key=lambda item: str(item[0])):
            digest.update(f"{name} {values.dtype} {list(values.shape)} ".encode())
            digest.update(values.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
