"""The table of results: declared runs, beside what others published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.errors import DivergedError, RunError
from hydrl.run.files import atomically
from hydrl.run.folder import lock
from hydrl.study import figures
from hydrl.study.pages import code, number, spread, table
from hydrl.study.pool import Trainings
from hydrl.study.runs import Run, plain, read_all, summary
from hydrl.study.sweep import folder_name


class Results:
    """The runs of a table, and the page of those that have finished.

    Args:
        declared: a YAML file as ``scripts/results.yaml``.
        fast: only the smaller table's rows and seeds.
        out: the run folders lie or come to lie in it.
        page: a Markdown file; beside it lies its picture, of the same name and ``.png``.
    """

    def __init__(self, declared: Path, fast: bool, out: Path, page: Path) -> None:
        self.table = plain(declared)
        self.out, self.page, self.fast = out, page, fast
        self.seeds = self.table["fast_seeds" if fast else "seeds"]
        self.rows = [(row, self.folders(row)) for row in self.table["runs"] if row.get("fast") or not fast]
        self.failed: dict[Path, str] = {}

    def folders(self, row: Mapping[str, Any]) -> dict[Path, list[str]]:
        """The run folders of a row and the overrides that make them, in the order of the seeds."""
        lists = [[*row["overrides"], f"seed={seed}"] for seed in self.seeds]
        return {self.out / folder_name(each): each for each in lists}

    def run(self, jobs: int) -> None:
        """Runs row by row what has not finished yet, ``jobs`` at a time; writes the page as each row ends.

        Raises:
            UserError: if another process runs the table there.
            RunError: if a run failed, once all others have ended.
        """
        lock(self.out)
        todo = {folder: overrides for _, folders in self.rows for folder, overrides in folders.items()}
        total = len(todo)
        with Trainings(jobs) as pool:
            runs = (pool.start([*words, "resume=auto"], folder) for folder, words in list(todo.items()))
            for each in pool.each(runs):
                del todo[each.folder]
                if each.code not in (0, DivergedError.exit_code):  # diverging is a result
                    self.failed[each.folder] = f"failed: {each.error}; see {each.log}"
                score = summary(each.folder).get("eval/return_mean")
                text = self.failed.get(each.folder) or f"evaluation {score}"
                print(f"{total - len(todo)} of {total}: {each.folder.name}: {text}", flush=True)
                if any(each.folder in row and not row.keys() & todo.keys() for _, row in self.rows):
                    self.write()
        if self.failed:
            names = "; ".join(f"{folder.name} {text}" for folder, text in self.failed.items())
            raise RunError(f"{len(self.failed)} of {total} runs failed: {names}")

    def write(self) -> None:
        """Writes the page and its picture, of the rows with a finished run; nothing if none has."""
        ended = [(row, [each for each in folders if each not in self.failed]) for row, folders in self.rows]
        every = [(row, read_all(folders)[0]) for row, folders in ended]
        if not (rows := [(row, runs) for row, runs in every if runs]):
            return
        tasks: dict[str, dict[str, Sequence[Run]]] = {}
        for _, runs in rows:
            tasks.setdefault(runs[0].env, {})[runs[0].algo] = runs
        looks = figures.styles(sorted({runs[0].algo for _, runs in rows}))
        panels = [(env, groups, 0) for env, groups in tasks.items()]
        picture = self.page.with_suffix(".png")
        figures.save(panels, min(3, len(panels)), looks, picture)
        sources, cells = self.table["sources"], []
        for row, runs in rows:
            scores = {run.seed: run.score for run in runs}
            missing = f" ({len(runs)} of {len(self.seeds)} seeds)" if len(runs) < len(self.seeds) else ""
            each = "; ".join(number(scores[seed]) if seed in scores else "-" for seed in self.seeds)
            ours = [f"**{spread(np.array([*scores.values()]))}**{missing}", each]
            frames = f"{np.median([run.curve[-1, 0] for run in runs]):,.0f}"
            published = [row.get("published", {}).get(source, "") for source in sources]
            cells.append([code(" ".join(row["overrides"])), *ours, frames, *published])
        used = sorted({each for _, runs in rows for run in runs for each in run.versions.items()})
        names = ["`python train.py`", "hydrl", f"seed={','.join(map(str, self.seeds))}", "frames"]
        command = f"make results{' fast=true' if self.fast else ''}"
        parts = ["# Results", f"Written by `{command}`, which goes on where it was stopped."]
        parts += [table([*names, *sources.values()], cells)]
        parts += [f"![Learning curves]({picture.name})", self.table["notes"].strip()]
        parts += [f"The runs were made with {', '.join(map(' '.join, used))}."]
        with atomically(self.page) as partial:
            partial.write_text("\n\n".join(parts) + "\n")
