"""Console output: a progress bar while a run trains, a table at its end."""

import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hydrl.errors import printable, printable_lines
from hydrl.run.run_folder import from_here

# The rows of the closing table, from the keys of summary.json.
CLOSING = {
    "evaluation": "{eval/return_mean:z,.1f} ± {eval/return_std:,.1f} over {eval/episodes} episodes",
    "cut short": "{eval/cut_episodes:,} of these episodes, still running at eval.max_steps",
    "best evaluation": "{best_eval/return_mean:z,.1f}",
    "first solved": "{solved_at_frames:,} frames, {solved_at_seconds:.1f} s",
    "trained": "{frames:,} frames, {updates:,} updates",
    "time": "{wall_seconds:.1f} s: {start_seconds:.1f} to start, {compile_seconds:.1f} compiling, "
    "{learning_seconds:.1f} learning, {evaluation_seconds:.1f} evaluating, {video_seconds:.1f} filming",
    "speed": "{frames_per_second:,.0f} frames/s in the loop",
}


class LastingOutput(io.FileIO):
    """An output that outlives its reader: what a closed pipe or terminal no longer takes is dropped."""

    def write(self, data: Any) -> int:
        """Returns how many bytes were written; all of them, where no reader is left."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def outlive_readers() -> None:
    """Keeps the process running whatever happens to its terminal.

    Output is dropped where its reader is gone, as after ``| head``, or where it was closed from the start, as
    a daemon's. A character that the encoding lacks becomes ``?``.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: this opens the lowest number that is free, and no file of ours gets it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, mode), "utf-8"))
        elif mode == "w":
            with suppress(AttributeError, io.UnsupportedOperation):  # there is no file behind it
                file = io.BufferedWriter(LastingOutput(stream.fileno(), "w", closefd=False))
                text = io.TextIOWrapper(file, stream.encoding, "replace", line_buffering=True)
                setattr(sys, name, text)


class Display:
    """A progress bar on a terminal; in a file or pipe, a first line and one for each evaluation.

    Shows the reward per step until the first training episode has ended, then the return.

    Args:
        title: of the run.
        total_frames: of the whole run.
        data: whether they are drawn from an offline dataset.
    """

    def __init__(self, title: str, total_frames: int, data: bool = False) -> None:
        self.title, self.console, self.owner = printable(title), console(), "data's " if data else ""
        is_wide = self.console.width > 120  # else the title would leave the bar no room
        self.progress = Progress(
            *([TextColumn("{task.description}", style="bold", markup=False)] if is_wide else []),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[training]}"),
            TextColumn("eval {task.fields[eval/return_mean]}"),
            TextColumn("{task.fields[time/frames_per_second]} frames/s"),
            TimeRemainingColumn(compact=True),
            *([TextColumn("left")] if is_wide else []),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.training, self.has_printed = "reward -", False
        unknown: Any = dict.fromkeys(("eval/return_mean", "time/frames_per_second"), "-")
        self.task = self.progress.add_task(self.title, total=total_frames, training=self.training, **unknown)
        self.progress.start()

    def update(self, frames: int, metrics: dict[str, float]) -> None:
        """Moves the bar; shows the frame rate of the whole run, the newest return and evaluation."""
        if "train/return" in metrics:
            self.training = f"{self.owner}return {metrics['train/return']:,.1f}"
        elif "train/reward" in metrics and "reward" in self.training:
            self.training = f"{self.owner}reward {metrics['train/reward']:,.3f}/step"
        if not self.console.is_terminal:
            self.print_line(frames, metrics)
        known: Any = {key: f"{value:,.{0 if 'second' in key else 1}f}" for key, value in metrics.items()}
        self.progress.update(self.task, completed=frames, training=self.training, **known)

    def print_line(self, frames: int, metrics: dict[str, float]) -> None:
        """Prints a line if it is the first, or there is an evaluation."""
        if "eval/return_mean" in metrics or (metrics and not self.has_printed):
            text = "  evaluation {eval/return_mean:,.1f} ± {eval/return_std:,.1f}"
            evaluation = text.format(**metrics) if "eval/return_mean" in metrics else ""
            print(f"{self.title}{frames:>12,} frames  {self.training}{evaluation}", flush=True)
            self.has_printed = True

    def close(self) -> None:
        """Stops the bar and leaves it on the terminal."""
        self.progress.stop()


def print_summary(summary: dict[str, Any], directory: Path, resume_command: str = "") -> None:
    """Prints the closing table, and below it the command that resumes the run."""
    note = "" if summary["status"] == "finished" else f" ({summary['status']})"
    title = f"{summary['algo']} on {summary['env']}, seed {summary['seed']}{note}"
    print_table(title, closing_rows(summary, directory))
    if resume_command:
        say(f"go on with: {resume_command}")


def short(value: float | None) -> str:
    """A number of any size, as a table shows it."""
    if value is None:
        return "not known"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def closing_rows(summary: dict[str, Any], directory: Path) -> dict[str, str]:
    """The rows of the closing table, by name."""
    rows, known = {}, summary | {"eval/cut_episodes": summary.get("eval/cut_episodes") or None}
    for name, text in CLOSING.items():
        # A None, where it was not evaluated, not cut or not solved; and what a damaged file lacks.
        with suppress(TypeError, KeyError, ValueError):
            rows[name] = text.format(**known).replace(", 0.0 compiling", "").replace(", 0.0 filming", "")
        if name == "evaluation" and summary.get("eval/episodes"):  # and the metrics of its info
            at = summary.get("eval/frames")
            if isinstance(at, int) and at != summary.get("frames"):  # of a run that was stopped since
                rows[name] += f", at {at:,} frames"
            info = (key for key in summary if key.startswith("eval/") and f"{{{key}" not in str(CLOSING))
            info = (key for key in info if key != "eval/frames")
            numbers = (key for key in info if isinstance(summary[key], int | float | None))
            rows |= {key.removeprefix("eval/"): short(summary[key]) for key in numbers}
    return rows | {"folder": str(from_here(directory))}


def console() -> Console:
    """A console as wide as the terminal; for a file or a pipe, wide enough for a path."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=120)


def say(text: str, on: Console | None = None) -> None:
    """Prints a line, in which nothing is markup; ``on`` is the console of a progress bar below it."""
    (on or console()).print(printable_lines(text), highlight=False, markup=False, soft_wrap=True)


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Prints a table of two columns, names and values, in which nothing is markup."""
    table = Table(show_header=False, title=Text(printable(title), "table.title"), min_width=60)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows.items():
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)
