"""Report on runs: learning curves, scores and comparisons, with uncertainty over seeds."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, count, groupby
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hydrl.config import user_dirs
from hydrl.config.overrides import localize_commands
from hydrl.errors import printable, printable_lines
from hydrl.experiments import figures
from hydrl.experiments.baselines import PublishedReturn, baseline_curves, last_frame
from hydrl.experiments.runs import RunResult
from hydrl.experiments.statistics import MIN_RUNS, RESAMPLES, estimate, iqm, probability_of_improvement
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.html import as_text, code, fenced, table

IN_LINKS = ":/?#@!$&'*+,;=%~"
LONGEST = 100  # characters of a task in the name of its picture

METHOD = f"""## How it was computed

- **Score** of a run: mean return of its closing evaluation, fresh episodes played by the last policy; of its
  last evaluation if it diverged. Runs of a **group** were started with the same overrides but task and seed.
- **IQM**: the mean of the middle half of the runs; of fewer than four, of all.
- **Intervals** are 95%, by percentile bootstrap over runs ({RESAMPLES:,} resamples), and need
  {MIN_RUNS} seeds. From few seeds they come out narrower than they should.
- **Curves** carry a run that ended early on at its end; where seeds are too few for a band, thin lines are
  the seeds.
- **To solve**: medians up to the first evaluation at the threshold; "-" where half of the runs got to none.
- **Probability** that a run of one group scores higher than one of another: ties count half. An interval that
  holds 0.5 shows no difference."""
SECONDS = """- **Seconds** count from when all was built, without a process's start and imports, and depend on
  the machine."""
PUBLISHED = """- **Published** figures are others', from where the table links to, drawn hollow and grey with
  their standard deviation, where it is known; those of the same frames stand a little apart. Each was
  measured as its row says: a return in training holds exploration, and tuning, versions of a task, whose
  rewards may differ, and what is averaged are others', so that a picture is no ranking."""


def write_report(
    runs: Sequence[RunResult],
    left_out: Mapping[Path, str],
    page: Path,
    command: str,
    sections: str = "",
    figure_prefix: str = "",
    title: str = "",
    published: Sequence[PublishedReturn] = (),
    seconds: bool = True,
) -> str:
    """Writes and returns the report in Markdown, and its figures as PNG and SVG.

    Args:
        runs: the runs that count, by :func:`hydrl.experiments.runs.load_runs`.
        left_out: folders that do not count, with the reason.
        page: the file to write, in an existing folder.
        command: command that writes the page again.
        sections: Markdown before the sections of the tasks.
        figure_prefix: prefix of the figures' paths, relative to the page, such as ``folder/``.
        title: title of the page; default: the names of the tasks.
        published: published baselines of the tasks.
        seconds: includes times, which mean nothing across different machines.
    """
    places = figures.assign_styles(runs)
    tasks = {env: [run for run in runs if run.env == env] for env in sorted({run.env for run in runs})}
    parts = [f"# {as_text(title or 'Runs on ' + ', '.join(tasks))}", *header_parts(runs, left_out), sections]
    for (env, members), name in zip(tasks.items(), figure_names(tasks), strict=True):
        picture = f"{figure_prefix}curves-{name}"
        files = [page.parent / f"{picture}.{kind}" for kind in ("png", "svg")]
        figures.draw_curves(members, places, *files, published=published, seconds=seconds)
        parts += [f"## {as_text(env)}", f"![{picture}]({picture}.png)", f"As [SVG]({picture}.svg)."]
        parts += [baseline_table(published, members) if published else "", task_tables(members, seconds)]
    parts += ["\n".join([METHOD, *[SECONDS] * seconds, *[PUBLISHED] * bool(published)]), "## Commands"]
    words = [
        ["python", "train.py", *user_dirs.folder_options(user_dirs.saved_folders(run.folder)), *run.overrides]
        for run in runs
    ]
    places_of = [printable(str(run.folder)) for run in runs]  # in a comment, which a new line would end
    typed = [f"# {place}\n{shlex.join(arguments)}" for place, arguments in zip(places_of, words, strict=True)]
    commands = "\n".join([command, *typed])
    parts += [localize_commands(fenced(commands))]
    text = "\n\n".join(filter(None, parts)) + "\n"
    text = printable_lines(text)
    with atomically(page) as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def figure_names(tasks: Iterable[str]) -> list[str]:
    """A unique file name for each task's figure, also on case-insensitive file systems."""
    names: list[str] = []
    for task in tasks:
        name, taken = re.sub(r"[^\w.-]", "_", task)[:LONGEST], {used.lower() for used in names}
        others = (name if n == 1 else f"{name}-{n}" for n in count(1))
        names.append(next(candidate for candidate in others if candidate.lower() not in taken))
    return names


def header_parts(runs: Sequence[RunResult], left_out: Mapping[Path, str]) -> list[str]:
    """Opening paragraphs: versions, warnings, and runs that do not count."""
    used = sorted({" ".join(package) for run in runs for package in run.versions.items()})
    parts = [f"{len(runs)} of {len(runs) + len(left_out)} runs count, made with {as_text(', '.join(used))}."]
    seeds = Counter(f"{code(run.group)} on {as_text(run.env)}" for run in runs)
    if few := [f"{name} ({count})" for name, count in seeds.items() if count < MIN_RUNS]:
        parts += [f"**Too few seeds for an interval**, {MIN_RUNS} are needed: {', '.join(few)}."]
    if diverged := [code(run.folder) for run in runs if run.status == "diverged"]:
        parts += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}."]
    if left_out:
        parts += [table(["left out", "because"], ([*map(code, reason)] for reason in left_out.items()))]
    return parts


def task_tables(runs: Sequence[RunResult], seconds: bool) -> str:
    """Tables of a task's scores, in the environment's own units."""
    scores, rows = {}, []
    for name, group in groupby(runs, lambda run: run.group):
        members = list(group)
        scores[name] = np.array([run.score for run in members])
        solved = [(run.solved_at_frames or np.inf, run.solved_at_seconds or np.inf) for run in members]
        took = [f"{value:,.0f}" if np.isfinite(value) else "-" for value in np.median(solved, axis=0)]
        share = f"{np.isfinite(solved).all(axis=1).sum()} of {len(members)}"
        ours = format_interval(estimate(iqm, scores[name])), format_mean_std(scores[name])
        rows.append([code(name), str(len(members)), *ours, share, *took[: 1 + seconds]])
    columns = ["group", "seeds", "IQM [95%]", "mean ± std", "solved", "frames to solve"]
    parts = [table([*columns, *["seconds to solve"] * seconds], rows)]
    rows = []
    for one, other in combinations(scores, 2):
        probability = estimate(probability_of_improvement, scores[one], scores[other])
        rows.append([code(one), code(other), format_interval(probability)])
    if rows:
        parts += [table(["group", "scores higher than", "with probability [95%]"], rows)]
    return "\n\n".join(parts)


def baseline_table(published: Sequence[PublishedReturn], runs: Sequence[RunResult]) -> str:
    """Table of published baselines of the runs' task, and which of them the figure shows."""
    by_name = baseline_curves(published, runs)
    if not by_name:
        return "Nothing that others published was found for this task."
    end = last_frame(by_name, max(run.curve[-1, 0] for run in runs))
    rows = []
    for members in by_name.values():
        first = members[0]
        figures_by_place: dict[bool, list[str]] = {True: [], False: []}
        for row in members:
            std = "" if row.std is None else f" ± {row.std:,g}"
            figures_by_place[row.frames <= end].append(f"{row.return_mean:,g}{std} @ {row.frames:,}")
        how = {text: None for row in members for text in (row.protocol, row.note) if text}
        task = " ".join(filter(None, [first.task, first.version]))
        source = as_text(first.by)
        if first.link:  # in which nothing ends the link or the cell
            source = f"[{source}]({quote(first.link, safe=IN_LINKS)})"
        returns = ["; ".join(figures_by_place[drawn]) or "-" for drawn in (True, False)]
        cells = [as_text(text) for text in (first.method, task, "; ".join(how))]
        rows.append([*cells[:2], first.seeds, *returns, cells[2], source])
    columns = ["published", "task", "seeds", "return @ frames", "further on, not drawn", "measured", "source"]
    return table(columns, rows)


def format_number(value: float) -> str:
    """About three digits, with thousands separators."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def format_interval(interval: np.ndarray) -> str:
    """A value with its interval, if it has one."""
    value, low, high = map(format_number, interval)
    return value if np.isnan(interval[1]) else f"{value} [{low}, {high}]"


def format_mean_std(values: np.ndarray) -> str:
    """Mean and sample standard deviation."""
    std = f" ± {format_number(values.std(ddof=1))}" if len(values) > 1 else ""
    return format_number(values.mean()) + std
