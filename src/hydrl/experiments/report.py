"""Report on runs: learning curves, scores and comparisons, with uncertainty over seeds."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, count, groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from hydrl.config import user_dirs
from hydrl.config.overrides import localize_commands, words_to_repeat
from hydrl.errors import printable, printable_lines
from hydrl.experiments import figures
from hydrl.experiments.baselines import PublishedReturn, baseline_curves, last_frame
from hydrl.experiments.objectives import draw_front, has_objectives, objective_table
from hydrl.experiments.runs import RunResult
from hydrl.experiments.statistics import (
    MIN_RUNS,
    RESAMPLES,
    estimate,
    format_number,
    iqm,
    probability_of_improvement,
)
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.html import as_text, code, fenced, table

LINK_CHARACTERS = ":/?#@!$&'*+,;=%~"
MAX_FIGURE_NAME = 100  # characters of an environment in the name of its figure

METHOD = f"""## How it was computed

- **Score** of a run: mean return of the final evaluation, with fresh episodes of the last policy. A run that
  diverged has the score of its last evaluation.
- **Group**: runs with the same overrides, except for environment and seed.
- **IQM**: interquartile mean, the mean of the middle half of the runs; of fewer than four runs, their mean.
- **95% interval**: percentile bootstrap over runs ({RESAMPLES:,} resamples), from {MIN_RUNS} seeds
  on. With few seeds it is too narrow. **min to max** is the range of the seeds, for any number of them.
- **Curves**: the thick line is the IQM. The band is its 95% interval; with too few seeds thin lines are the
  seeds. A run that ended early keeps its last value.
- **To solve**: median up to the first evaluation at the reward threshold; "-" if fewer than half of the runs
  reached it.
- **Probability** that a run of one group scores higher than one of another; ties count half. An interval that
  contains 0.5 shows no difference. Groups that ran for different **frames** (medians) are compared as they
  ended, not after equal training.
- IQM, intervals and probability are those of [Agarwal et al. (2021)](https://arxiv.org/abs/2108.13264), for
  each environment alone."""
SECONDS = """- **Seconds** are training time, without imports and building, and depend on the machine."""
PUBLISHED = """- **Published** returns link to their source. They are drawn hollow and grey, with their
  standard deviation if it is known. Protocols, tuning and versions of the environment differ: they are no
  ranking."""


def write_report(
    runs: Sequence[RunResult],
    skipped: Mapping[Path, str],
    page: Path,
    command: str,
    sections: str = "",
    figure_prefix: str = "",
    title: str = "",
    published: Sequence[PublishedReturn] = (),
    seconds: bool = True,
    reward_threshold: bool = True,
    formats: Sequence[str] = ("png", "svg", "pdf"),
) -> str:
    """Writes and returns the report in Markdown, and writes its figures.

    Args:
        runs: runs that count, by :func:`hydrl.experiments.runs.load_runs`.
        skipped: folders that do not count, with the reason.
        page: the file to write, in an existing folder.
        command: command that writes the page again.
        sections: Markdown before the sections of the environments.
        figure_prefix: prefix of the figures' paths, relative to the page, such as ``folder/``.
        title: title of the page; default: the names of the environments.
        published: published returns of the environments.
        seconds: includes times, which mean nothing across different machines.
        reward_threshold: draws reward thresholds.
        formats: formats of the figures; the page shows the first.
    """
    style_numbers = figures.assign_styles(runs)
    envs = {env: [run for run in runs if run.env == env] for env in sorted({run.env for run in runs})}
    parts = [f"# {as_text(title or 'Runs on ' + ', '.join(envs))}", *header_parts(runs, skipped), sections]
    for (env, members), name in zip(envs.items(), figure_names(envs), strict=True):
        stem = f"{figure_prefix}curves-{name}"
        files = figure_files(page, stem, formats)
        shown: dict[str, Any] = {"seconds": seconds, "reward_threshold": reward_threshold}
        figures.draw_curves(members, style_numbers, *files, published=published, **shown)
        parts += [f"## {as_text(env)}", *figure_links(stem, formats)]
        parts += env_tables(members, seconds)
        parts += baseline_table(published, members) if published else []
        if has_objectives(members):
            stem = f"{figure_prefix}front-{name}"
            front = draw_front(members, style_numbers, *figure_files(page, stem, formats))
            parts += [*objective_table(members, front), *figure_links(stem, formats)]
    parts += ["\n".join([METHOD, *[SECONDS] * seconds, *[PUBLISHED] * bool(published)]), "## Commands"]
    parts += [localize_commands(fenced("\n".join([command, *map(train_command, runs)])))]
    text = printable_lines("\n\n".join(filter(None, parts)) + "\n")
    with atomically(page) as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def figure_files(page: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """The files of a figure beside its page, one for each format."""
    return [page.parent / f"{stem}.{suffix}" for suffix in formats]


def figure_links(stem: str, formats: Sequence[str]) -> list[str]:
    """The figure in its first format, and links to the others."""
    links = ", ".join(f"[{suffix.upper()}]({stem}.{suffix})" for suffix in formats[1:])
    return [f"![{stem}]({stem}.{formats[0]})", f"Also as {links}."]


def train_command(run: RunResult) -> str:
    """Command that repeats a run, below a comment with its folder."""
    words = [
        "python",
        "train.py",
        *user_dirs.folder_options(user_dirs.saved_folders(run.folder)),
        *words_to_repeat(run.overrides, run.folder),
    ]
    return f"# {printable(str(run.folder))}\n{shlex.join(words)}"  # a new line would end the comment


def figure_names(envs: Iterable[str]) -> list[str]:
    """A unique file name for each environment's figure, also on case-insensitive file systems."""
    names: list[str] = []
    for env in envs:
        name, used = re.sub(r"[^\w.-]", "_", env)[:MAX_FIGURE_NAME], {used.lower() for used in names}
        candidates = (name if n == 1 else f"{name}-{n}" for n in count(1))
        names.append(next(candidate for candidate in candidates if candidate.lower() not in used))
    return names


def header_parts(runs: Sequence[RunResult], skipped: Mapping[Path, str]) -> list[str]:
    """Opening paragraphs: versions, warnings, and runs that do not count."""
    versions = sorted({" ".join(package) for run in runs for package in run.versions.items()})
    total = len(runs) + len(skipped)
    parts = [f"{len(runs)} of {total} runs count, made with {as_text(', '.join(versions))}."]
    seeds = Counter(f"{code(run.group)} on {as_text(run.env)}" for run in runs)
    if few := [f"{name} ({count})" for name, count in seeds.items() if count < MIN_RUNS]:
        parts += [f"**Too few seeds for an interval**, {MIN_RUNS} are needed:"]
        parts += ["\n".join(f"- {group}" for group in few)]
    if diverged := [code(run.folder) for run in runs if run.status == "diverged"]:
        parts += [f"**Diverged**, counted with the last evaluation: {', '.join(diverged)}."]
    if skipped:
        parts += ["**Runs that do not count**"]
        parts += [table(["folder", "reason"], ([*map(code, row)] for row in skipped.items()))]
    return parts


def env_tables(runs: Sequence[RunResult], seconds: bool) -> list[str]:
    """Tables of an environment's scores, in its own units, with their headings."""
    scores, frames, rows = {}, {}, []
    has_intervals = max(Counter(run.group for run in runs).values()) >= MIN_RUNS
    for name, group in groupby(runs, lambda run: run.group):
        members = list(group)
        scores[name] = np.array([run.score for run in members])
        frames[name] = f"{np.median([run.curve[-1, 0] for run in members]):,.0f}"
        solved = [(run.solved_at_frames or np.inf, run.solved_at_seconds or np.inf) for run in members]
        medians = [f"{value:,.0f}" if np.isfinite(value) else "-" for value in np.median(solved, axis=0)]
        share = f"{np.isfinite(solved).all(axis=1).sum()} of {len(members)}"
        cells = [format_mean_std(scores[name]), format_range(scores[name])]
        cells += interval_cells(estimate(iqm, scores[name])) if has_intervals else []
        rows.append([code(name), str(len(members)), *cells, frames[name], share, *medians[: 1 + seconds]])
    columns = ["group", "seeds", "mean ± std", "min to max", *["IQM", "95% interval"] * has_intervals]
    columns += ["frames", "solved", "steps to solve", *["seconds to solve"] * seconds]
    parts = ["**Return of the final evaluation**", table(columns, rows)]
    rows = []
    for one, other in combinations([name for name in scores if len(scores[name]) >= MIN_RUNS], 2):
        probability = estimate(probability_of_improvement, scores[one], scores[other])
        both = " and ".join(dict.fromkeys([frames[one], frames[other]]))
        rows.append([code(one), code(other), *interval_cells(probability), both])
    if rows:
        columns = ["group", "scores higher than", "probability", "95% interval", "frames"]
        parts += ["**Comparison of groups**", table(columns, rows)]
    return parts


def baseline_table(published: Sequence[PublishedReturn], runs: Sequence[RunResult]) -> list[str]:
    """Table of published returns on the runs' environment, with its heading."""
    by_name = baseline_curves(published, runs)
    if not by_name:
        return ["There are no published returns for this environment."]
    end = last_frame(by_name, max(run.curve[-1, 0] for run in runs))
    rows = []
    for members in by_name.values():
        first = members[0]
        in_figure: list[str] = []
        later: list[str] = []
        for row in members:
            std = "" if row.std is None else f" ± {row.std:,g}"
            (in_figure if row.frames <= end else later).append(f"{row.return_mean:,g}{std} @ {row.frames:,}")
        protocol = dict.fromkeys(text for row in members for text in (row.protocol, row.note) if text)
        env = " ".join(filter(None, [first.task, first.version]))
        source = as_text(first.by)
        if first.link:  # quoted, so that nothing ends the link or the cell
            source = f"[{source}]({quote(first.link, safe=LINK_CHARACTERS)})"
        returns = ["; ".join(texts) or "-" for texts in (in_figure, later)]
        rows.append([as_text(first.method), as_text(env), first.seeds, *returns])
        rows[-1] += [as_text("; ".join(protocol)), source]
    columns = ["method", "environment", "seeds", "return @ steps", "later, not drawn", "protocol", "source"]
    return ["**Published returns**", table(columns, rows)]


def interval_cells(interval: np.ndarray) -> list[str]:
    """Table cells of a value and its interval; ``-`` if it has none."""
    value, low, high = map(format_number, interval)
    return [value, "-" if np.isnan(interval[1]) else f"{low} to {high}"]


def format_range(values: np.ndarray) -> str:
    """Minimum and maximum."""
    return f"{format_number(values.min())} to {format_number(values.max())}"


def format_mean_std(values: np.ndarray) -> str:
    """Mean and sample standard deviation."""
    std = f" ± {format_number(values.std(ddof=1))}" if len(values) > 1 else ""
    return format_number(values.mean()) + std
