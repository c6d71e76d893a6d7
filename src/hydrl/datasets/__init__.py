"""Offline data: reading, recording, converting and summarising datasets of transitions."""
