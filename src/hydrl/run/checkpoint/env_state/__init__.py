"""The exact state of environments in the middle of an episode; only checkpointing imports it."""

from hydrl.run.checkpoint.env_state.capture import NotCapturedError, capture, restore
from hydrl.run.checkpoint.env_state.episodes import running_episodes

__all__ = ["NotCapturedError", "capture", "restore", "running_episodes"]
