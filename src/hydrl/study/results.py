"""The table of results: declared runs, beside what others published."""

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrl.errors import DivergedError, RunError, UserError
from hydrl.run.files import atomically
from hydrl.run.folder import lock
from hydrl.study import figures
from hydrl.study.pages import code, number, spread, table, write
from hydrl.study.pool import Trainings
from hydrl.study.runs import Run, read, summary
from hydrl.study.sweep import folder_name

PUBLISHED = re.compile(r"-?[\d.]+( ± [\d.]+)? @ \d+[kM]")


@dataclass
class Row:
    """A row: overrides of train.py, whether the smaller table has it, and ``RETURN @ FRAMES`` by source."""

    overrides: list[str]
    fast: bool = False
    published: dict[str, str] = field(default_factory=dict)


@dataclass
class Table:
    """What is run, the names of the sources it is compared with, and what the page says of them."""

    seeds: list[int]
    fast_seeds: list[int]
    runs: list[Row]
    sources: dict[str, str]
    notes: str


def load(path: Path, *, fast: bool) -> Table:
    """Reads the declaration; only the rows and seeds of the smaller table where ``fast``.

    Raises:
        UserError: if it declares anything but a table.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Table), OmegaConf.load(path))
        found = cast(Table, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    for source, text in [each for row in found.runs for each in row.published.items()]:
        if source not in found.sources or not PUBLISHED.fullmatch(text):
            raise UserError(
                f"{path}: {source}: {text}: write one of sources: RETURN @ FRAMES, as 490 ± 6 @ 500k"
            )
    if fast:
        found.runs, found.seeds = [row for row in found.runs if row.fast], found.fast_seeds
    return found


class Results:
    """The runs of a table, and the page of those that have finished.

    Args:
        declared: what to run.
        out: the run folders lie or come to lie in it.
        page: a Markdown file; beside it lies its picture, of the same name and ``.png``.
        command: what makes the page again.
    """

    def __init__(self, declared: Table, out: Path, page: Path, command: str) -> None:
        self.declared, self.out, self.page, self.command = declared, out, page, command
        self.failed: dict[Path, str] = {}

    def folders(self, row: Row) -> dict[Path, list[str]]:
        """The run folders of a row and the overrides that make them, in the order of the seeds."""
        lists = [[*row.overrides, f"seed={seed}"] for seed in self.declared.seeds]
        return {self.out / folder_name(each): each for each in lists}

    def run(self, jobs: int) -> None:
        """Runs row by row what has not finished yet, ``jobs`` at a time; writes the page as each row ends.

        Raises:
            UserError: if another process runs the table there.
            RunError: if a run failed, once all others have ended.
        """
        lock(self.out)
        rows = [self.folders(row) for row in self.declared.runs]
        todo = {folder: overrides for row in rows for folder, overrides in row.items()}
        waiting, total = list(todo), len(todo)
        with Trainings(jobs) as pool:
            while todo:
                while waiting and pool.room:
                    pool.start(todo[waiting[0]], waiting.pop(0))
                for each in pool.wait():
                    del todo[each.folder]
                    if each.code not in (0, DivergedError.exit_code):  # diverging is a result
                        self.failed[each.folder] = f"failed: {each.error}; see {each.log}"
                    text = self.failed.get(each.folder) or f"ended, {summary(each.folder).get('status')}"
                    print(f"{total - len(todo)} of {total}: {each.folder.name}: {text}", flush=True)
                    if any(each.folder in row and not row.keys() & todo.keys() for row in rows):
                        self.write()
        if self.failed:
            names = "; ".join(f"{folder.name} {text}" for folder, text in self.failed.items())
            raise RunError(f"{len(self.failed)} of {total} runs failed: {names}")

    def finished(self, row: Row) -> list[Run]:
        """The runs of a row that have finished, in the order of the seeds."""
        found = []
        for folder in self.folders(row):
            with suppress(UserError):
                if folder not in self.failed:
                    found.append(read(folder))
        return found

    def write(self) -> None:
        """Writes the page and its picture, of the rows that have a finished run; nothing if none has."""
        every = [(row, self.finished(row)) for row in self.declared.runs]
        if not (rows := [(row, runs) for row, runs in every if runs]):
            return
        seeds, sources = self.declared.seeds, self.declared.sources
        picture = self.page.with_suffix(".png")
        with matplotlib.rc_context(figures.LOOK), atomically(picture) as partial:
            draw(rows, sources).savefig(partial, format="png", dpi=110)
        cells = []
        for row, runs in rows:
            missing = f" ({len(runs)} of {len(seeds)} seeds)" if len(runs) < len(seeds) else ""
            each = ", ".join(number(run.score) for run in runs)
            ours = [f"**{spread([run.score for run in runs])}**{missing}", each]
            frames = f"{np.median([run.curve[-1, 0] for run in runs]):,.0f}"
            published = [row.published.get(source, "") for source in sources]
            cells.append([code(" ".join(row.overrides)), *ours, frames, *published])
        used = [summary(run.folder).get("versions", {}).items() for _, runs in rows for run in runs]
        versions = ", ".join(sorted({f"{name} {each}" for pairs in used for name, each in pairs}))
        names = [
            "`python train.py`",
            "hydrl",
            f"seed={','.join(map(str, seeds))}",
            "frames",
            *sources.values(),
        ]
        parts = ["# Results", f"Written by `{self.command}`, which goes on where it was stopped."]
        parts += [table(names, cells), f"![Learning curves and published returns]({picture.name})"]
        write(self.page, [*parts, self.declared.notes.strip(), f"The runs were made with {versions}."])


def draw(rows: list[tuple[Row, list[Run]]], sources: Mapping[str, str]) -> Figure:
    """A panel for each task: learning curves, and the published returns at the right edge."""
    tasks: dict[str, list[tuple[Row, list[Run]]]] = defaultdict(list)
    for row, runs in rows:
        tasks[runs[0].env].append((row, runs))
    looks = figures.styles(sorted({runs[0].algo for _, runs in rows}))
    marks = dict(zip(sources, cycle("<DvP"), strict=False))
    hollow: dict[str, Any] = {"linestyle": "", "markersize": 8, "markerfacecolor": "none"}
    figure, panels = figures.panels(len(tasks), min(3, len(tasks)))
    for axes, (env, members) in zip(panels, tasks.items(), strict=True):
        axes.set_title(env)
        for place, (row, runs) in enumerate(members):
            look = looks[runs[0].algo]
            figures.curve(axes, runs, look)
            edge = {"color": look["color"], "transform": axes.get_yaxis_transform(), "clip_on": False}
            for source, text in row.published.items():
                axes.plot(1.03 + 0.06 * place, float(text.split()[0]), marker=marks[source], **edge, **hollow)
    handles = [Line2D([], [], **look, label=f"hydrl, {algo}") for algo, look in looks.items()]
    for source, mark in marks.items():
        handles.append(Line2D([], [], marker=mark, color="#444444", label=sources[source], **hollow))
    figures.legend(figure, handles)
    return figure
