"""Errors that a user can fix, reported in a line or two without a traceback."""

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO


def printable(text: str) -> str:
    """Untrusted text with unprintable characters, such as terminal controls, replaced by ``?``."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """:func:`printable` for text of several lines."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def print_lines(text: str, file: TextIO | None = None) -> None:
    """Prints lines with unprintable characters replaced."""
    print(printable_lines(text), file=file, flush=True)


class UserError(ValueError):
    """Mistake in the configuration; the message names the key, the value and what to write instead."""

    exit_code = 2


class ConfigError(UserError):
    """Several mistakes at once: unknown keys and wrong values.

    Args:
        lines: the message for each key.
    """

    def __init__(self, lines: Mapping[str, str]) -> None:
        super().__init__(dict(lines))
        self.lines = dict(lines)

    def __str__(self) -> str:
        """The message of one key, or the number of mistakes and a line for each."""
        messages = list(self.lines.values())
        return messages[0] if len(messages) == 1 else "\n  ".join([f"{len(messages)} mistakes:", *messages])


class RunError(Exception):
    """Error that ends a run and is no mistake in its configuration; reported without a traceback."""

    exit_code = 1


class SaveError(RunError):
    """Failure to write a file of the run.

    Args:
        path: of the file.
        needed: bytes.
        free: free bytes on the disk.
        reason: why, if the disk is not full.
    """

    def __init__(self, path: Path, needed: int, free: int, reason: str) -> None:
        room = f"it needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB were free"
        why = room if needed > free > 0 else reason
        super().__init__(f"{path} cannot be written: {why}; what was saved before is whole")


class DivergedError(RunError):
    """NaN or infinity in data, a loss or a gradient; raised before the optimizer's step.

    Args:
        terms: the non-finite terms, with their values.
        frames: frames at which it happened, if known.
        saved_at: frames of the newest checkpoint.
    """

    exit_code = 3

    def __init__(self, terms: str, frames: int = 0, saved_at: int | None = None) -> None:
        saved = "no checkpoint was due before" if saved_at is None else f"saved at {saved_at:,}"
        super().__init__(f"diverged at frame {frames:,}: {terms}; no step was taken on it, {saved}")
        self.terms, self.frames = terms, frames


class WorkerError(RunError):
    """Death or hang of a collecting process; the message names it and has its traceback."""

    status = "failed"
    midway = False


class Interrupted(BaseException):
    """SIGINT or SIGTERM; the run saves a checkpoint and exits with code ``128 + signal``.

    Not an ``Exception``: it ends a whole sweep, while a failed run ends only itself.

    Args:
        signum: the signal.
        midway: whether it came during a batch that takes too long to wait for.
    """

    status = "interrupted"

    def __init__(self, signum: int, *, midway: bool = False) -> None:
        super().__init__(f"signal {signum}")
        self.exit_code = 128 + signum
        self.midway = midway
