"""Checkpoints of a run: saving, resuming, forking, warm starts, replay buffers on disk."""
