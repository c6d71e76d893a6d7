"""The table of results: declared runs, kept seed by seed beside the page, and what others published."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hydrl.config import CONFIGS
from hydrl.errors import DivergedError, RunError, UserError
from hydrl.experiments import algorithms, report, runs
from hydrl.experiments.processes import Trainings
from hydrl.experiments.runs import Run
from hydrl.experiments.statistics import estimate, iqm
from hydrl.experiments.sweep import folder_name, train_all
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.html import as_text, code, table

POINTS = 20  # of a learning curve that are kept


def make(declared: Path, names: Sequence[str], jobs: int, out: Path, page: Path) -> None:
    """Runs what is not kept yet, keeps each run as it ends, and writes the page of all that are kept.

    Args:
        declared: a YAML file as ``scripts/results.yaml``.
        names: of the rows to run; none are all.
        jobs: runs at a time.
        out: the run folders lie or come to lie in it.
        page: a Markdown file; in the folder of its name lie its pictures, and ``ROW.jsonl`` with a line for
            each run of a row.

    Raises:
        UserError: for a name that no row has.
        RunError: if a run failed, once all others have ended and the page is written; to diverge is a result.
    """
    said = yaml.safe_load(declared.read_text(encoding="utf-8"))
    rows = {folder_name(row["overrides"]): row for row in said["runs"]}
    store, seeds = page.with_suffix(""), said["seeds"]
    store.mkdir(exist_ok=True)
    wanted = chosen(names, list(rows))
    lists: list[list[str]] = []
    seconds = 0.0
    for name in wanted:
        known = kept(store / f"{name}.jsonl")
        missing = [seed for seed in seeds if seed not in [run.seed for run in known]]
        lists += [[*rows[name]["overrides"], f"seed={seed}"] for seed in missing]
        took = np.mean([run.curve[-1, 1] for run in known]) if known else 60 * rows[name]["minutes"]
        seconds += float(took) * len(missing)
    total, hours = len(wanted) * len(seeds), seconds / 3600 / max(1, min(jobs, len(lists)))
    ahead = f"the others take about {hours:.1f} h" if lists else "nothing is left to run"
    print(f"{total - len(lists)} of {total} runs are kept in {store}; {ahead}")

    def keep(overrides: Sequence[str], folder: Path) -> None:
        with suppress(UserError):  # of one that has no score, as the closing table says
            run = runs.read(folder)
            add(store / f"{folder_name(overrides[:-1])}.jsonl", run)

    try:
        code = train_all(lists, out, Trainings(jobs), ["resume=auto"], ended=keep) if lists else 0
    finally:
        write(said, {name: kept(store / f"{name}.jsonl") for name in rows}, page)
    if code not in (0, DivergedError.exit_code):
        raise RunError(f"not all runs have finished; what they printed is in {out}/*.log")


def chosen(names: Sequence[str], rows: Sequence[str]) -> list[str]:
    """The rows whose names begin with one of ``names``, as ``ppo-hopper`` does; all where there are none.

    Raises:
        UserError: for a name that none begins with.
    """
    for name in names:
        if not any(f"{row}-".startswith(f"{name}-") for row in rows):
            raise UserError(f"rows={name}: there is no such row; try {', '.join(rows)}")
    return [row for row in rows if not names or any(f"{row}-".startswith(f"{name}-") for name in names)]


def kept(file: Path) -> list[Run]:
    """The runs of a row, by seed.

    Raises:
        UserError: for a damaged file.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return sorted(map(Run.model_validate_json, lines), key=lambda run: run.seed)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {str(error).splitlines()[0]}; remove it") from None


def add(file: Path, run: Run) -> None:
    """Keeps a run, its curve thinned out."""
    places = np.unique(np.linspace(0, len(run.curve) - 1, POINTS).round().astype(int))
    short = run.model_copy(update={"curve": run.curve[places].round(2), "folder": Path(run.folder.name)})
    others = [each for each in kept(file) if each.seed != run.seed]
    with atomically(file) as partial:
        lines = [each.model_dump_json(by_alias=True) for each in [*others, short]]
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write(said: Mapping[str, Any], found: Mapping[str, Sequence[Run]], page: Path) -> None:
    """The page of the runs ``found`` of each row."""
    counted = [run for each in found.values() for run in each]
    if not counted:
        return
    runs.name_groups(counted)
    cells, how = [], []
    for row, ours in zip(said["runs"], found.values(), strict=True):
        command, seeds = code(" ".join(row["overrides"])), f"{len(ours)} of {len(said['seeds'])}"
        reached = ["-"] * 4
        if ours:
            scores = np.array([run.score for run in ours])
            reached = [as_text(ours[0].id or ours[0].env), report.between(estimate(iqm, scores))]
            reached.append(f"**{report.spread(scores)}**")
            reached.append(f"{np.median([run.curve[-1, 0] for run in ours]):,.0f}")
        published = [row["published"].get(each, "") for each in said["sources"]]
        cells.append([command, seeds, *reached, *published])
        how.append(f"- {command}: {tuned(row['overrides'])}")
    names = ["`python train.py`", "seeds", "task", "IQM [95%]", "mean ± std", "frames"]
    names += said["sources"].values()
    parts = ["## Beside what others published", table(names, cells), said["notes"].strip()]
    parts += ["## How each was tuned", "\n".join(how)]
    report.save(counted, {}, page, "make results", "\n\n".join(parts), f"{page.stem}/", "Results")
    with atomically(page.with_name("algorithms.md")) as partial:
        partial.write_text(algorithms.page(found.values()), encoding="utf-8")


def tuned(overrides: Sequence[str]) -> str:
    """Where a row's numbers come from, as the file with those of its task says at its top."""
    words = dict(each.partition("=")[::2] for each in overrides)
    file = CONFIGS / "tuned" / words["algo"] / f"{words['env']}.yaml"
    if {"~tuned", "tuned=null"} & set(overrides) or not file.is_file():
        return f"not at all; the numbers are those of `algo={words['algo']}` for every task."
    return algorithms.comment(file)
