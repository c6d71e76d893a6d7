"""Replay buffer of an earlier run as an offline dataset."""

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

NORMALIZER_NAMES = ("Norm", "normaliser", "normalizer", "Running")  # in the names of transforms
RECORD_ADVICE = "Record its policy, python scripts/record.py run=RUN out=DIR, and use data=npz data.path=DIR"


def read_run_buffer(path: Path, key: str) -> tuple[ReplayBuffer, dict[str, Any], list[str], Path]:
    """Replay buffer of a run's checkpoint, sampled uniformly.

    Reward scaling is undone. If any reward transform cannot be undone (clipping, normalization), rewards stay
    transformed.

    Args:
        path: a run folder, whose newest checkpoint is read, or a checkpoint.
        key: the key the user set, for messages.

    Returns:
        the buffer, the run's settings, the names of reward transforms still applied, and the checkpoint.

    Raises:
        UserError: if there is no such run or it has no replay buffer.
    """
    if not path.exists():
        raise UserError(f"{key}={path}: no such folder. Name a run folder or a checkpoint.")
    if files.guess_kind(path) != "replay_buffer":
        raise UserError(f"{key}={path}: not a run folder. {files.suggest_kind(path, 'replay_buffer')}.")
    try:
        archive = path if path.suffix == ".torchrl" else checkpoint.find(path, "last")
        metadata = checkpoint.verify(archive, with_rows=True)
        with checkpoint.report_damage(archive):
            return (*read_checkpoint_rows(archive, metadata, f"{key}={path}"), archive)
    except UserError as error:
        label = f"{key}={path}: "
        raise UserError(label + str(error).removeprefix(label).replace(f"run={path}", "it")) from None


def read_checkpoint_rows(
    archive: Path, metadata: Mapping[str, Any], label: str
) -> tuple[ReplayBuffer, dict[str, Any], list[str]]:
    """Rows of a verified checkpoint, for :func:`read_run_buffer`; ``label`` names it in messages."""
    state = metadata["memory"]
    parts = [rows for _, rows in read(archive.parent, state)]
    if not parts or holds_one_batch(metadata["settings"]):
        raise UserError(f"{label}: the run has no replay buffer. {RECORD_ADVICE}.")
    rows: Any = torch.cat(parts)
    settings = dict(metadata["settings"])
    transforms = settings["transforms"]
    applied = [name for name in transforms if "reward" in class_name(transforms[name]).lower()]
    if all(is_factor(transforms[name]) for name in applied):
        for name in applied:
            rows["next", "reward"].div_(transforms[name]["scale"])
        applied = []
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    buffer.extend(rows)
    if "frames" in state:
        frames = FrameDedup(buffer.storage, (), 1)
        frames.load_state(state["frames"]["state"])
        images = BufferFiles(frames.buffer, archive.parent.parent, "frames")
        images.load(state["frames"], torch.device("cpu"), archive.parent)
        buffer.append_transform(frames)
    return buffer, settings, applied


def class_name(component: Mapping[str, Any]) -> str:
    """Class or function that a component's settings name, without its module."""
    return component["_target_"].rpartition(".")[2]


def holds_one_batch(settings: Mapping[str, Any]) -> bool:
    """Whether a run's buffer holds only the current batch, as PPO's does."""
    sampler = (settings.get("buffer") or {}).get("sampler") or {}
    return sampler.get("_target_", "").endswith("SamplerWithoutReplacement")


def is_normalized(settings: Mapping[str, Any]) -> bool:
    """Whether a run's settings have an observation normalizer."""
    return any(name in str(settings["transforms"]) for name in NORMALIZER_NAMES)


def is_factor(scaling: Mapping[str, Any]) -> bool:
    """Whether a reward transform's settings only multiply by a number."""
    is_scaling = class_name(scaling) == "RewardScaling" and bool(scaling.get("scale"))
    return is_scaling and not (scaling.get("loc") or scaling.get("standard_normal"))
