"""The exact state of an environment in the middle of an episode; only checkpointing imports it."""
