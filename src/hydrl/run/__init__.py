"""One run's process and folder: signals, evaluation schedule, videos, checkpoints, logging."""

from hydrl.run.session import Session

__all__ = ["Session"]
