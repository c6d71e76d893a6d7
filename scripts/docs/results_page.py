"""The page ``docs/results.md``: declared runs, stored seed by seed, beside published results."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hydrl.config import CONFIGS
from hydrl.errors import DivergedError, RunError, UserError
from hydrl.experiments import report, runs
from hydrl.experiments.runs import RunResult
from hydrl.experiments.statistics import estimate, iqm
from hydrl.experiments.sweep import folder_name, train_all
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.html import as_text, code, table
from scripts.docs import algorithms_page
from scripts.docs.keys import file_comment
from scripts.docs.prerequisites import ADDED, Prerequisites, RowPool

INTRODUCTION = """\
These figures are not a ranking: [what the numbers are](#what-the-numbers-are) says how each library measures.
`IQM [95%]` is the interquartile mean over seeds and its 95% interval. In tables of probabilities, `0.95`
means that a seed of the first group scores higher than a seed of the second in 95 of 100 pairs.
[How it was computed](#how-it-was-computed) has the rest."""
CURVE_POINTS = 20  # of a learning curve that are kept


def make_page(declared: Path, names: Sequence[str], jobs: int, out: Path, page: Path) -> None:
    """Runs what is missing, stores each run as it ends, and writes the page of all stored runs.

    Args:
        declared: a YAML file as ``scripts/results.yaml``.
        names: of the rows to run; none are all.
        jobs: runs at a time.
        out: the run folders lie or come to lie in it.
        page: a Markdown file; in the folder of its name lie its figures, and ``ROW.jsonl`` with a line for
            each run of a row.

    Raises:
        UserError: for a name that no row has.
        RunError: if a run failed, once all others have ended and the page is written; to diverge is a result.
    """
    table = yaml.safe_load(declared.read_text(encoding="utf-8"))
    rows = {folder_name(row["overrides"]): row for row in table["runs"]}
    store, seeds = page.with_suffix(""), table["seeds"]
    store.mkdir(exist_ok=True)
    wanted = [rows[name] for name in select_rows(names, list(rows))]
    missing, total, seconds = find_missing(wanted, seeds, store)
    hours = seconds / 3600 / max(1, min(jobs, len(missing)))
    ahead = f"the others take about {hours:.1f} h" if missing else "nothing is left to run"
    print(f"{total - len(missing)} of {total} runs are kept in {store}; {ahead}")
    try:
        code = run_rows(missing, Prerequisites(table.get("prerequisites", {}), out), store, jobs)
    finally:
        write_page(table, {name: read_runs(store / f"{name}.jsonl") for name in rows}, page)
    if code not in (0, DivergedError.exit_code):
        raise RunError(f"not all runs have finished; what they printed is in {out}/*.log")


def find_missing(
    rows: Sequence[Mapping[str, Any]], seeds: Sequence[int], store: Path
) -> tuple[list[tuple[Mapping[str, Any], int]], int, float]:
    """The rows and seeds without a kept run, the number of all, and seconds that the missing ones take.

    A row may have fewer ``seeds`` than the table.
    """
    missing, seconds, total = list[tuple[Mapping[str, Any], int]](), 0.0, 0
    for row in rows:
        row_seeds = seeds[: row.get("seeds", len(seeds))]
        known = read_runs(store / f"{folder_name(row['overrides'])}.jsonl")
        left = [seed for seed in row_seeds if seed not in [run.seed for run in known]]
        missing += [(row, seed) for seed in left]
        took = np.mean([run.curve[-1, 1] for run in known]) if known else 60 * row["minutes"]
        seconds, total = seconds + float(took) * len(left), total + len(row_seeds)
    return missing, total, seconds


def run_rows(
    missing: Sequence[tuple[Mapping[str, Any], int]], prerequisites: Prerequisites, store: Path, jobs: int
) -> int:
    """Runs rows, each with its seed, after what they start from, and keeps each run; the exit code."""
    if not missing:
        return 0

    def keep(overrides: Sequence[str], folder: Path) -> None:
        with suppress(UserError):  # a run without a score
            run = runs.read_run(folder)
            add_run(store / f"{folder_name(overrides[:-1])}.jsonl", run)

    prerequisites.make(missing, jobs)
    members = [[*row["overrides"], f"seed={seed}"] for row, seed in missing]
    folders = [prerequisites.out / folder_name(member) for member in members]
    words = {folder: prerequisites.words(*row) for folder, row in zip(folders, missing, strict=True)}
    return train_all(members, prerequisites.out, RowPool(jobs, words), ["resume=auto"], on_end=keep)


def select_rows(names: Sequence[str], rows: Sequence[str]) -> list[str]:
    """The rows whose names begin with one of ``names``, as ``ppo-hopper`` does; all where there are none.

    Raises:
        UserError: for a name that none begins with.
    """
    for name in names:
        if not any(f"{row}-".startswith(f"{name}-") for row in rows):
            raise UserError(f"rows={name}: there is no such row; try {', '.join(rows)}")
    return [row for row in rows if not names or any(f"{row}-".startswith(f"{name}-") for name in names)]


def read_runs(file: Path) -> list[RunResult]:
    """The runs of a row, by seed.

    Raises:
        UserError: for a damaged file.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return sorted(map(RunResult.model_validate_json, lines), key=lambda run: run.seed)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {str(error).splitlines()[0]}; remove it") from None


def add_run(file: Path, run: RunResult) -> None:
    """Keeps a run, its curve thinned out."""
    places = np.unique(np.linspace(0, len(run.curve) - 1, CURVE_POINTS).round().astype(int))
    short = run.model_copy(update={"curve": run.curve[places].round(2), "folder": Path(run.folder.name)})
    others = [other for other in read_runs(file) if other.seed != run.seed]
    with atomically(file) as partial:
        lines = [kept_run.model_dump_json(by_alias=True) for kept_run in [*others, short]]
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_page(
    declared: Mapping[str, Any], runs_by_row: Mapping[str, Sequence[RunResult]], page: Path
) -> None:
    """Writes the page, and the pages of algorithms beside it, from the runs of each row."""
    runs_by_row = {row: [as_typed(run) for run in row_runs] for row, row_runs in runs_by_row.items()}
    counted = [run for row_runs in runs_by_row.values() for run in row_runs]
    if not counted:
        return
    runs.name_groups(counted)
    rows = [*zip(declared["runs"], runs_by_row.values(), strict=True)]
    measured = [(row, ours) for row, ours in rows if ours]
    unmeasured = [row_command(row) for row, ours in rows if not ours]
    cells = [row_cells(declared, row, ours) for row, ours in measured]
    tuned: dict[str, list[str]] = {}  # commands by the comment of their preset
    for row, _ in measured:
        tuned.setdefault(tuning_note(row["overrides"]), []).append(row_command(row))
    names = ["`python train.py`", "seeds run", "environment", "IQM [95%]", "mean ± std"]
    names += ["frames", "published"]
    parts = [INTRODUCTION, "## Results and published figures", table(names, cells)]
    if unmeasured:
        parts += ["Not measured yet: " + ", ".join(unmeasured) + "."]
    entries = Prerequisites(declared.get("prerequisites", {}), Path()).described()
    if entries and any(row_starts(row) for row, _ in measured):
        rows_of_table = [[code(name), commands] for name, commands in entries]
        parts += ["Rows from data start from these, made anew for every seed:"]
        parts += [table(["from", "made by"], rows_of_table)]
    parts += [declared["notes"].strip()]
    if (sb3 := page.with_suffix("") / "sb3.md").is_file():
        parts += ["## Stable-Baselines3's defaults on both sides", sb3.read_text(encoding="utf-8").strip()]
    parts += ["## How each was tuned"]
    parts += ["\n".join(f"- {', '.join(commands)}: {note}" for note, commands in tuned.items())]
    options: dict[str, Any] = {"figure_prefix": f"{page.stem}/", "formats": ("png", "svg")}
    text = "\n\n".join(parts)
    report.write_report(counted, {}, page, "make results", text, title="Results", **options)
    for name, text in algorithms_page.make_pages(runs_by_row.values()).items():
        file = page.parent / name
        file.parent.mkdir(exist_ok=True)
        with atomically(file) as partial:
            partial.write_text(text, encoding="utf-8")


def row_command(row: Mapping[str, Any]) -> str:
    """A declared row's overrides."""
    return code(" ".join(row["overrides"]))


def row_starts(row: Mapping[str, Any]) -> list[str]:
    """What a declared row starts from: names of prerequisites."""
    return [row[key] for key in ("data", "init_from") if key in row]


def row_cells(declared: Mapping[str, Any], row: Mapping[str, Any], ours: Sequence[RunResult]) -> list[str]:
    """The cells of a declared row with runs."""
    started = " and ".join(map(code, row_starts(row)))
    command = f"{row_command(row)}, from {started}" if started else row_command(row)
    sources, scores = declared["sources"], np.array([run.score for run in ours])
    value, interval = report.interval_cells(estimate(iqm, scores))
    return [
        command,
        f"{len(ours)} of {row.get('seeds', len(declared['seeds']))}",
        as_text(ours[0].id or ours[0].env),
        value if interval == "-" else f"{value} [{interval}]",
        f"**{report.format_mean_std(scores)}**",
        f"{np.median([run.curve[-1, 0] for run in ours]):,.0f}",
        "<br>".join(f"{sources[source]}: {figure}" for source, figure in row["published"].items()),
    ]


def as_typed(run: RunResult) -> RunResult:
    """A run without the overrides that ``make results`` adds."""
    words = [word for word in run.overrides if word != "resume=auto" and not word.startswith(ADDED)]
    return run.model_copy(update={"overrides": words})


def tuning_note(overrides: Sequence[str]) -> str:
    """Where a row's hyperparameters come from: the comment at the top of its preset."""
    words = dict(override.partition("=")[::2] for override in overrides)
    file = CONFIGS / "tuned" / words["algo"] / f"{words['env']}.yaml"
    if {"~tuned", "tuned=null"} & set(overrides) or not file.is_file():
        return f"not tuned; the hyperparameters are the defaults of `algo={words['algo']}`."
    return file_comment(file)
