"""Errors with one message and an exit code instead of a traceback, and printing text of unknown origin."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import parent_process
from pathlib import Path
from typing import TextIO

# Warnings printed by the present run; outside of runs, by the process.
PRINTED: ContextVar[set[str]] = ContextVar("printed warnings", default=set())  # noqa: B039


def printable(text: str) -> str:
    """Replaces control characters and line breaks, so that text cannot act on the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """As :func:`printable`, but keeps line breaks."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def print_lines(text: str, file: TextIO | None = None) -> None:
    """Prints lines without control characters."""
    print(printable_lines(text), file=file, flush=True)


@contextmanager
def warnings_of_one_run() -> Iterator[None]:
    """Context manager in which :func:`warn_once` prints each text once."""
    outer = PRINTED.set(set())
    try:
        yield
    finally:
        PRINTED.reset(outer)


def warn_once(text: str) -> None:
    """Prints a warning once a run, and never in a worker process, as its run has printed it."""
    printed = PRINTED.get()
    if text not in printed and parent_process() is None:
        printed.add(text)
        print_lines(f"warning: {text}", sys.stderr)


class UserError(ValueError):
    """A mistake in the configuration; the message names the key, the value and what to write instead."""

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
    """A failure that ends a run and is no mistake in its configuration."""

    exit_code = 1


class SaveError(RunError):
    """A file of the run could not be written.

    Args:
        path: of the file.
        needed: bytes it takes.
        free: bytes there were.
        reason: why, if there was enough space.
        is_first: whether nothing was saved before it that the message could speak of.
    """

    def __init__(self, path: Path, needed: int, free: int, reason: str, *, is_first: bool = False) -> None:
        room = f"it needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB were free"
        why = room if needed > free > 0 else reason
        earlier = "" if is_first else "; what was saved before is whole"
        super().__init__(f"{path} cannot be written: {why}{earlier}")


class DivergedError(RunError):
    """A ``RunError``: a batch, a loss or its gradient is NaN or infinite. Raised before the optimizer's step.

    Args:
        terms: those that are not finite, with their values.
        frames: of training, if known.
        saved_at: frames of the newest checkpoint.
    """

    exit_code = 3

    def __init__(self, terms: str, frames: int = 0, saved_at: int | None = None) -> None:
        saved = "no checkpoint was due before" if saved_at is None else f"saved at {saved_at:,}"
        super().__init__(f"diverged at frame {frames:,}: {terms}; no step was taken on it, {saved}")
        self.terms, self.frames = terms, frames


class WorkerError(RunError):
    """A ``RunError``: a worker process died or hangs. The message names it and has its traceback."""

    status = "failed"
    in_batch = False


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; the run saves a checkpoint and exits with ``128 + signal``.

    Not an ``Exception``: it ends a whole sweep, while a failed run ends only itself.

    Args:
        signum: the signal.
        in_batch: a batch was being collected or learned from, and takes too long to wait for.
    """

    status = "interrupted"

    def __init__(self, signum: int, *, in_batch: bool = False) -> None:
        super().__init__(f"signal {signum}")
        self.exit_code = 128 + signum
        self.in_batch = in_batch
