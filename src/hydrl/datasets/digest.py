"""Digest of a run's offline dataset, stored in checkpoints and compared when the run resumes."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer

from hydrl.config.tree import find
from hydrl.datasets.recorded_env import warn_of_other_env
from hydrl.errors import UserError, warn_once
from hydrl.experience.frame_dedup import FrameDedup
from hydrl.run.checkpoint.resume import DATA, ResumePoint


def record_data(
    data: ReplayBuffer | None, settings: Mapping[str, Any], point: ResumePoint | None
) -> dict[str, Any] | None:
    """Record of the dataset for checkpoints: path, source checkpoint, number of rows and digest.

    Args:
        data: the dataset, if the run has one.
        settings: settings of the run, as they are saved.
        point: where the run is resumed; a fork may use another dataset.

    Raises:
        UserError: if a resumed run would learn from other rows than before.
    """
    if data is None:
        return None
    warn_of_other_env(data, settings)
    now = {
        "path": str(find(settings, DATA)),
        "checkpoint": getattr(data, "read_from", None),
        "rows": len(data),
        "digest": compute_digest(data),
    }
    if point is None:
        return now
    then = point.data
    if not isinstance(then, Mapping):
        warn_once(
            f"the checkpoint of an earlier version does not record the rows of {DATA}; "
            f"the run resumes with {describe_data(now)}"
        )
    elif then.get("digest") != now["digest"] and point.is_fork:
        warn_once(f"the fork uses {describe_data(now)}; {point.folder} used {describe_data(then)}")
    elif then.get("digest") != now["digest"]:
        checkpoint = then.get("checkpoint")
        advice = f"Use {DATA}={checkpoint}" if checkpoint else "Restore the dataset"
        raise UserError(
            f"{DATA}={now['path']}: the dataset has changed. The run began with {describe_data(then)}; now "
            f"it has {describe_data(now)}. {advice}, or add hydra.run.dir=NEW to fork the run."
        )
    return now


def describe_data(data: Mapping[str, Any]) -> str:
    """A dataset's rows, path and digest in words."""
    source = data.get("checkpoint") or data.get("path")
    return f"{data.get('rows')} rows of {source}, digest {data.get('digest')}"


def compute_digest(data: ReplayBuffer) -> str:
    """Digest of all rows, in the environment's own units, and of deduplicated frames."""
    digest = blake2b(digest_size=16)
    frames = [transform.buffer for transform in data._transform if isinstance(transform, FrameDedup)]
    for buffer in (data, *frames):
        rows: TensorDictBase = buffer.storage[:]
        for name, values in sorted(rows.items(True, True), key=lambda item: str(item[0])):
            digest.update(f"{name} {values.dtype} {list(values.shape)} ".encode())
            digest.update(values.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
