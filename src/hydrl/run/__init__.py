"""One run's process and folder: signals, evaluation schedule, video, checkpoints, logging."""
