"""The tests, by the rooms of ``src/hydrl``."""
