"""A run's process and folder: signals, checkpoints, resuming, loggers, screen, films.

Imports ``config``, ``parts`` and ``loop``.
"""
