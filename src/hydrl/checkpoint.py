"""The trained policy with its normaliser, in one file that is whole or not there."""

import io
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydrl.errors import UserError


def save_policy(
    path: Path, *, actor: nn.Module, critic: nn.Module | None, normaliser: dict[str, Any], frames: int
) -> None:
    """Writes beside ``path`` and then renames, so that a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "actor": actor.state_dict(),
        "critic": {} if critic is None else critic.state_dict(),
        "normaliser": normaliser,
        "frames": frames,
    }
    packed = io.BytesIO()  # a full disk then fails in our own write, with the system's own words
    torch.save(state, packed)
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(packed.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def load_policy(path: Path, device: str) -> dict[str, Any]:
    """Reads :func:`save_policy`'s file; only tensors and plain containers are accepted.

    Raises:
        UserError: if the file is missing or is not such a file.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; was the run stopped before its first checkpoint?") from None
    except Exception as error:
        raise UserError(f"{path} is not a readable policy: damaged, or not written by hydrl") from error
    return state
