"""What an earlier run kept in its replay memory, in the task's own units."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer

from hydrl.datasets import files
from hydrl.errors import UserError
from hydrl.experience.frame_dedup import FrameDedup
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.checkpoint.replay_buffer import BufferFiles, read

NORMALISERS = ("Norm", "normaliser", "Running")  # in what a transform is called


def kept(path: Path, key: str) -> tuple[ReplayBuffer, dict[str, Any], list[str], Path]:
    """The replay memory that a run's checkpoint holds, to be drawn from evenly, and whose it is.

    The settings of the run, its transforms of rewards that are left, and the checkpoint come with it.

    What the run multiplied rewards by they are divided by again. What is cut off or learned from cannot be
    undone: where such a transform was among those of rewards, these are left as they are, and all are named.

    Raises:
        UserError: if there are none.
    """
    if not path.exists():
        raise UserError(f"{key}={path}: there is no such folder; give a run's or a checkpoint")
    if (other := files.instead(path)) != "use data=run":
        raise UserError(f"{key}={path} is no run; {other}")
    try:
        archive = path if path.suffix == ".torchrl" else checkpoint.find(path, "last")
        metadata = checkpoint.verify(archive, with_rows=True)
        with checkpoint.report_damage(archive):
            return (*kept_rows(archive, metadata, f"{key}={path}"), archive)
    except UserError as error:
        told = f"{key}={path}: "
        raise UserError(told + str(error).removeprefix(told).replace(f"run={path}", "it")) from None


def kept_rows(
    archive: Path, metadata: Mapping[str, Any], place: str
) -> tuple[ReplayBuffer, dict[str, Any], list[str]]:
    """What a verified checkpoint holds of it, for :func:`kept`; ``place`` is how the user named it."""
    told = metadata["memory"]
    found = [rows for _, rows in read(archive.parent, told)]
    if not found or holds_one_batch(metadata["settings"]):
        raise UserError(
            f"{place}: the run kept no replay memory; use one of algo=sac or dqn, or play its policy, "
            "by python scripts/record.py run=RUN out=DIR, and use data=npz data.path=DIR"
        )
    rows: Any = torch.cat(found)
    settings = dict(metadata["settings"])
    kinds = {name: each["_target_"].rpartition(".")[2] for name, each in settings["transforms"].items()}
    left = [name for name, kind in kinds.items() if "reward" in kind.lower()]
    if all(is_factor(settings["transforms"][name]) for name in left):
        for name in left:
            rows["next", "reward"].div_(settings["transforms"][name]["scale"])
        left = []
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    buffer.extend(rows)
    if "frames" in told:
        frames = FrameDedup(buffer.storage, (), 1)
        frames.load_state(told["frames"]["state"])
        pictures = BufferFiles(frames.buffer, archive.parent.parent, "frames")
        pictures.load(told["frames"], torch.device("cpu"), archive.parent)
        buffer.append_transform(frames)
    return buffer, settings, left


def holds_one_batch(settings: Mapping[str, Any]) -> bool:
    """Whether a run keeps, by its settings, what it learns from next and nothing longer, as PPO does."""
    sampler = (settings.get("buffer") or {}).get("sampler") or {}
    return sampler.get("_target_", "").endswith("SamplerWithoutReplacement")


def standardised(settings: Mapping[str, Any]) -> bool:
    """Whether rows are as a normaliser of the run showed them, by its settings."""
    return any(each in str(settings["transforms"]) for each in NORMALISERS)


def is_factor(scaling: Mapping[str, Any]) -> bool:
    """Whether a transform of rewards, by its settings, multiplies them by a number, and does nothing else."""
    known = scaling["_target_"].endswith(".RewardScaling") and bool(scaling.get("scale"))
    return known and not (scaling.get("loc") or scaling.get("standard_normal"))
