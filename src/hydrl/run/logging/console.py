"""Console output: a progress bar during training, a table at the end."""

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
from hydrl.metric_names import (
    BEST_RETURN,
    CUT_EPISODES,
    EVAL_EPISODES,
    EVAL_FRAMES,
    FRAMES_PER_SECOND,
    RETURN_MEAN,
    RETURN_STD,
    TRAIN_RETURN,
    TRAIN_REWARD,
)  # fmt: skip
from hydrl.run.run_folder import from_here

# The rows of the summary table, from summary.json.
ROWS = {
    "evaluation": "{mean:z,.1f} ± {std:,.1f} over {episodes} episodes",
    "cut short": "{cut:,} of these episodes, still running at eval.max_steps",
    "best evaluation": "{best:z,.1f}",
    "first at threshold": "{solved_at_frames:,} frames, {solved_at_seconds:.1f} s",
    "trained": "{frames:,} frames, {updates:,} updates",
    "time": "{wall_seconds:.1f} s: {start_seconds:.1f} starting, {compile_seconds:.1f} compiling, "
    "{learning_seconds:.1f} learning, {evaluation_seconds:.1f} evaluating, {video_seconds:.1f} video",
    "speed": "{frames_per_second:,.0f} frames/s in the loop",
}
IN_ROWS = {RETURN_MEAN, RETURN_STD, EVAL_EPISODES, CUT_EPISODES, EVAL_FRAMES}


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
        data: whether the frames come from an offline dataset.
    """

    def __init__(self, title: str, total_frames: int, data: bool = False) -> None:
        self.title, self.console, self.source = printable(title), console(), "dataset " if data else ""
        is_wide = self.console.width > 120  # else the title would leave the bar no room
        self.progress = Progress(
            *([TextColumn("{task.description}", style="bold", markup=False)] if is_wide else []),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[training]}"),
            TextColumn(f"eval {{task.fields[{RETURN_MEAN}]}}"),
            TextColumn(f"{{task.fields[{FRAMES_PER_SECOND}]}} frames/s"),
            TimeRemainingColumn(compact=True),
            *([TextColumn("left")] if is_wide else []),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.training, self.has_printed = "reward -", False
        unknown: Any = dict.fromkeys((RETURN_MEAN, FRAMES_PER_SECOND), "-")
        self.task = self.progress.add_task(self.title, total=total_frames, training=self.training, **unknown)
        self.progress.start()

    def update(self, frames: int, metrics: dict[str, float]) -> None:
        """Moves the bar; shows the frame rate of the whole run, the newest return and evaluation."""
        if TRAIN_RETURN in metrics:
            self.training = f"{self.source}return {metrics[TRAIN_RETURN]:,.1f}"
        elif TRAIN_REWARD in metrics and "reward" in self.training:
            self.training = f"{self.source}reward {metrics[TRAIN_REWARD]:,.3f}/step"
        if not self.console.is_terminal:
            self.print_line(frames, metrics)
        known: Any = {key: f"{value:,.{0 if 'second' in key else 1}f}" for key, value in metrics.items()}
        self.progress.update(self.task, completed=frames, training=self.training, **known)

    def print_line(self, frames: int, metrics: dict[str, float]) -> None:
        """Prints a line if it is the first, or there is an evaluation."""
        mean, std = metrics.get(RETURN_MEAN), metrics.get(RETURN_STD)
        if mean is not None or (metrics and not self.has_printed):
            evaluation = "" if mean is None else f"  evaluation {mean:,.1f} ± {std:,.1f}"
            print(f"{self.title}{frames:>12,} frames  {self.training}{evaluation}", flush=True)
            self.has_printed = True

    def close(self) -> None:
        """Stops the bar and leaves it on the terminal."""
        self.progress.stop()


def print_summary(summary: dict[str, Any], directory: Path, resume_command: str = "") -> None:
    """Prints the summary table, and below it the command that resumes the run."""
    note = "" if summary["status"] == "finished" else f" ({summary['status']})"
    title = f"{summary['algo']} on {summary['env']}, seed {summary['seed']}{note}"
    print_table(title, summary_rows(summary, directory))
    if resume_command:
        say(f"resume with: {resume_command}")


def short(value: float | None) -> str:
    """A number of any size, as a table shows it."""
    if value is None:
        return "unknown"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def summary_rows(summary: dict[str, Any], directory: Path) -> dict[str, str]:
    """The rows of the summary table, by name."""
    metrics = {"mean": RETURN_MEAN, "std": RETURN_STD, "episodes": EVAL_EPISODES, "best": BEST_RETURN}
    known = {name: summary.get(metric) for name, metric in metrics.items()} | summary
    known["cut"] = summary.get(CUT_EPISODES) or None
    rows = {}
    for name, text in ROWS.items():
        with suppress(TypeError, KeyError, ValueError):  # None if not evaluated or solved; a damaged file
            row = text.format(**known)
            rows[name] = row.replace(", 0.0 compiling", "").replace(", 0.0 video", "")
        if name == "evaluation" and known["episodes"]:  # and the metrics of its info
            at = summary.get(EVAL_FRAMES)
            if isinstance(at, int) and at != summary.get("frames"):  # of a run that was stopped since
                rows[name] += f", at {at:,} frames"
            info = {key: value for key, value in summary.items() if key.startswith("eval/")}
            rows |= {
                key.removeprefix("eval/"): short(value)
                for key, value in info.items()
                if key not in IN_ROWS and isinstance(value, int | float | None)
            }
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
