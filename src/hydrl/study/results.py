"""The table of results: runs declared in ``configs/results.yaml``, beside what others published."""

import re
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import cast

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrl.errors import DivergedError, RunError, UserError
from hydrl.run.files import atomically
from hydrl.run.folder import lock
from hydrl.run.screen import console
from hydrl.study import figures, runs, sweep
from hydrl.study.pool import Trainings
from hydrl.study.report import code, number, table
from hydrl.study.runs import Run
from hydrl.study.scores import curve, interval, iqm

PAGE = """\
# Results

Written by `{command}`, which goes on where it was stopped; the runs were made with {versions}.

{scores}
![Learning curves of hydrl, and the published returns]({picture})

Lines are interquartile means over the seeds, bands their 95% bootstrap intervals. Published returns stand at
the right edge in the colour of their algorithm, wherever their own frames end.

## What the numbers are

They were not measured in the same way, so a row is no ranking: tuning, versions of the tasks, what is
averaged and above all the frames differ. `@` says after how many frames a published return was taken.

- **hydrl**: mean ± standard deviation over the seeds ({seeds}), on which nothing was tuned, of the closing
  evaluation: 20 or 100 fresh episodes played deterministically by the last policy, not the best. MuJoCo
  tasks in version 4. Frames are the median over the seeds; a tuned run of a task that has a threshold stops
  once fresh episodes confirm that it is reached.
{protocols}

## Each seed

{single}
## Commands

```
{commands}
```
"""
MARKERS = "<DvP"  # of the sources
PUBLISHED = re.compile(r"-?[\d.]+( ± [\d.]+)? @ \d+[kM]")


@dataclass
class Row:
    """A row of the table.

    Attributes:
        overrides: of train.py.
        fast: whether the smaller table has it too.
        published: by source, ``RETURN @ FRAMES``.
    """

    overrides: list[str]
    fast: bool = False
    published: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """What runs it, but for the seed."""
        return shlex.join(["python", "train.py", *self.overrides])


@dataclass
class Source:
    """Where published returns are from."""

    name: str
    url: str
    protocol: str


@dataclass
class Table:
    """What is run, and what it is compared with."""

    seeds: list[int]
    fast_seeds: list[int]
    runs: list[Row]
    sources: dict[str, Source]


def load(path: Path, *, fast: bool) -> Table:
    """Reads the declaration.

    Args:
        path: the YAML file.
        fast: only the rows and seeds of the smaller table.

    Raises:
        UserError: if it declares anything but a table.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Table), OmegaConf.load(path))
        found = cast(Table, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    unknown = {each for row in found.runs for each in row.published} - set(found.sources)
    if unknown:
        raise UserError(
            f"{path}: published has {', '.join(sorted(unknown))}, which no entry of sources tells"
        )
    if odd := [
        each for row in found.runs for each in row.published.values() if not PUBLISHED.fullmatch(each)
    ]:
        raise UserError(f"{path}: {odd[0]}: write RETURN @ FRAMES, as 490 ± 6 @ 500k")
    if fast:
        found.runs, found.seeds = [row for row in found.runs if row.fast], found.fast_seeds
    return found


def run_all(declared: Table, folder: Path, jobs: int) -> list[list[Run]]:
    """Runs what has not finished yet: every row with the first seed, then every row with the second.

    Args:
        declared: what to run.
        folder: the run folders lie or come to lie in it.
        jobs: how many at a time.

    Returns:
        for each row its runs, in the order of the seeds.

    Raises:
        UserError: if another process runs the table there.
        RunError: if a run failed, once all others have ended.
    """
    waiting = [(row, seed) for seed in declared.seeds for row in range(len(declared.runs))]
    total = len(waiting)
    places: dict[Path, tuple[int, int]] = {}
    found: dict[tuple[int, int], Run] = {}
    failed: dict[Path, str] = {}
    lock(folder)
    with Trainings(jobs) as pool:
        while waiting or pool.running:
            while waiting and pool.room:
                row, seed = waiting.pop(0)
                overrides = [*declared.runs[row].overrides, f"seed={seed}"]
                place = folder / sweep.folder_name(overrides)
                places[place] = row, seed
                pool.start(overrides, place)
            for each in pool.wait():
                try:
                    if each.code not in (0, DivergedError.exit_code):  # diverging is a result
                        raise UserError(each.error)
                    run = found[places[each.folder]] = runs.read(each.folder)
                    text = f"{number(run.score)} after {run.curve[0, -1]:,.0f} frames, {run.status}"
                except UserError as error:
                    failed[each.folder] = text = f"failed: {error}"
                say(f"{len(found) + len(failed)} of {total}: {each.folder.name}: {text}")
    if failed:
        place, text = next(iter(failed.items()))
        raise RunError(f"{len(failed)} of {total} runs failed, as {place.name}: {text}; see {place}.log")
    return [[found[row, seed] for seed in declared.seeds] for row in range(len(declared.runs))]


def say(text: str) -> None:
    """A line on the screen."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def write(declared: Table, found: Sequence[Sequence[Run]], page: Path, command: str) -> None:
    """Writes the page, and beside it its picture, of the same name and ``.png``.

    Args:
        declared: what was run.
        found: for each row its runs.
        page: a Markdown file.
        command: what makes it again.
    """
    picture = page.with_suffix(".png")
    with matplotlib.rc_context(figures.LOOK):
        draw(declared, found).savefig(picture, dpi=110)
    sources = declared.sources.values()
    scores, single = [], []
    for row, each in zip(declared.runs, found, strict=True):
        what = [each[0].env, code(each[0].algo)]
        frames = statistics.median(run.curve[0, -1] for run in each)
        published = [row.published.get(source, "") for source in declared.sources]
        scores.append([*what, f"**{spread(each)}**", f"{frames:,.0f}", *published])
        single.append([*what, *(number(run.score) for run in each)])
    text = PAGE.format(
        command=command,
        versions=versions(found),
        scores="\n".join(
            table(["task", "algorithm", "hydrl", "frames", *(each.name for each in sources)], scores)
        ),
        picture=picture.name,
        seeds=", ".join(map(str, declared.seeds)),
        protocols="\n".join(f"- **[{each.name}]({each.url})**: {each.protocol}" for each in sources),
        single="\n".join(table(["task", "algorithm", *(f"seed {each}" for each in declared.seeds)], single)),
        commands="\n".join(f"{row.command} seed={declared.seeds[0]}" for row in declared.runs),
    )
    with atomically(page) as partial:
        partial.write_text(text)


def spread(found: Sequence[Run]) -> str:
    """Mean and standard deviation (sample) of the scores."""
    values = [run.score for run in found]
    deviation = f" ± {number(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{number(statistics.mean(values))}{deviation}"


def versions(found: Sequence[Sequence[Run]]) -> str:
    """What the runs were made with."""
    made = [run.versions for row in found for run in row]
    kinds = {
        name: sorted({each.get(name, "?") for each in made})
        for name in ("hydrl", "torchrl", "torch", "mujoco")
    }
    return ", ".join(f"{name} {' and '.join(each)}" for name, each in kinds.items())


def draw(declared: Table, found: Sequence[Sequence[Run]]) -> Figure:
    """A panel for each task: learning curves, and the published returns at the right edge."""
    rows: dict[str, list[tuple[Row, Sequence[Run]]]] = {}
    for row, each in zip(declared.runs, found, strict=True):
        rows.setdefault(each[0].env, []).append((row, each))
    looks = figures.styles(sorted({each[0].algo for each in found}))
    marks = dict(zip(declared.sources, cycle(MARKERS), strict=False))
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.5 * lines + 0.6), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels:
        axes.set_axis_off()
    for axes, (env, members) in zip(panels, rows.items(), strict=False):
        axes.set_axis_on()
        axes.set_title(env)
        axes.set_xlabel("environment frames")
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.10g}k" if value else "0")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        for place, (row, each) in enumerate(members):
            look = {**looks[each[0].algo], "marker": ""}
            points, returns = curve(each, 0)
            axes.plot(points, iqm(returns), **looks[each[0].algo], markevery=[-1], markersize=7)
            if band := interval(iqm, returns):
                figures.shade(axes, points, band, look)
            edge = {"color": look["color"], "transform": axes.get_yaxis_transform(), "clip_on": False}
            for source, text in row.published.items():
                axes.plot(
                    1.03 + 0.06 * place,
                    value(text),
                    marks[source],
                    markersize=8,
                    markerfacecolor="none",
                    **edge,
                )
    handles = [
        Line2D([], [], **{**look, "marker": ""}, label=f"hydrl, {algo}") for algo, look in looks.items()
    ]
    for source, mark in marks.items():
        look = {
            "marker": mark,
            "markersize": 8,
            "linestyle": "",
            "color": "#444444",
            "markerfacecolor": "none",
        }
        handles.append(Line2D([], [], **look, label=declared.sources[source].name))
    figure.supylabel("evaluation return, IQM")
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns)
    return figure


def value(published: str) -> float:
    """``500 ± 6 @ 100k`` to 500."""
    return float(published.split()[0])
