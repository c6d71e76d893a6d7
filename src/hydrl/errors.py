"""What a user can mend: told in a line or two, never with a traceback."""

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO


def printable(text: str) -> str:
    """Text of others, without what would move a terminal's cursor, name its window or end the line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """The same of several lines, which stay lines."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def print_lines(text: str, file: TextIO | None = None) -> None:
    """Prints lines in which text of others does nothing but stand there."""
    print(printable_lines(text), file=file, flush=True)


class UserError(ValueError):
    """A mistake in the configuration; the message names the key, the value and what would do."""

    exit_code = 2


class ConfigError(UserError):
    """Unknown keys and wrong values, all of them at once.

    Args:
        lines: the message for each key.
    """

    def __init__(self, lines: Mapping[str, str]) -> None:
        super().__init__(dict(lines))
        self.lines = dict(lines)

    def __str__(self) -> str:
        """The message of one key, or how many there are and a line for each."""
        messages = list(self.lines.values())
        return messages[0] if len(messages) == 1 else "\n  ".join([f"{len(messages)} mistakes:", *messages])


class RunError(Exception):
    """What ends a run and is no mistake in its configuration; told without a traceback of hydrl's own."""

    exit_code = 1


class SaveError(RunError):
    """A file of the run could not be written.

    Args:
        path: of the file.
        needed: bytes it takes.
        free: bytes there were.
        reason: why, where it is not for want of room.
    """

    def __init__(self, path: Path, needed: int, free: int, reason: str) -> None:
        room = f"it needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB were free"
        why = room if needed > free > 0 else reason
        super().__init__(f"{path} cannot be written: {why}; what was saved before is whole")


class DivergedError(RunError):
    """What is learned from, a loss or its gradient is not finite; raised before the optimizer takes the step.

    Args:
        terms: that are not, with their values.
        frames: at which it was found, where that is known.
        saved_at: frames of the newest checkpoint.
    """

    exit_code = 3

    def __init__(self, terms: str, frames: int = 0, saved_at: int | None = None) -> None:
        saved = "no checkpoint was due before" if saved_at is None else f"saved at {saved_at:,}"
        super().__init__(f"diverged at frame {frames:,}: {terms}; no step was taken on it, {saved}")
        self.terms, self.frames = terms, frames


class WorkerError(RunError):
    """A process that collects died or hangs; the message names it and says where, in its own traceback."""

    status = "failed"
    in_batch = False


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; the run saves what it has and leaves with ``128 + signal``.

    Not an ``Exception``: it ends a whole sweep, where a failed member only ends itself.

    Args:
        signum: the signal.
        in_batch: a batch was being collected or learned from, and takes too long to wait for.
    """

    status = "interrupted"

    def __init__(self, signum: int, *, in_batch: bool = False) -> None:
        super().__init__(f"signal {signum}")
        self.exit_code = 128 + signum
        self.in_batch = in_batch
