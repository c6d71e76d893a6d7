"""The exact state of environments in the middle of an episode; only checkpointing imports it."""

from hydrl.run.checkpoint.env_state.capture import NotCapturedError, capture, restore
from hydrl.run.checkpoint.env_state.episodes import RunningEpisodes

__all__ = ["NotCapturedError", "RunningEpisodes", "capture", "restore"]
