"""The record of a run: log rows, the summary and the picture, for the folder, the screen and the loggers."""

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hydrl.config.settings import Settings
from hydrl.errors import RunError
from hydrl.run import process
from hydrl.run.atomic_files import atomically
from hydrl.run.checkpoint.resume import Origin, command
from hydrl.run.checkpoint.warm_start import Source
from hydrl.run.logging import loggers
from hydrl.run.logging.console import Display, closing_rows, print_summary, say
from hydrl.run.logging.curves import save_curves
from hydrl.run.logging.html import as_text, code, fenced, table, write_page
from hydrl.training.evaluator import Evaluation
from hydrl.training.metrics import Metrics
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock


class Record:
    """Writes what a run reports, and its settings as ``config_resolved.yaml``.

    The loop's time counts from when it is there.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        metrics: Metrics,
        clock: Clock,
        origin: Origin | None = None,
        source: Source | None = None,
        data: Mapping[str, Any] | None = None,
        classes: Mapping[str, str] | None = None,
    ) -> None:
        self.settings, self.progress, self.metrics, self.clock = settings, progress, metrics, clock
        # Which rows of data it learns from, and digests of the user's own classes.
        self.data, self.classes = data, classes or {}
        self.directory = Path(settings.run_dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        config = settings.shown
        self.configuration = self.directory / "config_resolved.yaml"
        with atomically(self.configuration) as partial:
            OmegaConf.save(OmegaConf.create(config), partial)
        self.file = loggers.MetricsFile(self.directory / "metrics.csv")
        name = f"{settings.algo}-{settings.task}-seed{settings.seed}"
        known, told = origin.run_ids if origin else {}, {"directory": self.directory, "config": config}
        self.fork = origin if origin and origin.forked else None
        self.lineage = {"init_from": source.told} if source else {}  # for the summary
        self.loggers = {
            key: build(**told, name=name, run_id=known.get(key))
            for key, build in settings.logger_builders.items()
        }
        self.run_ids = loggers.run_ids(self.loggers)
        # Rows, and films by key and path, that wait for an evaluation, for W&B takes them in order alone.
        self.held: list[tuple[int, dict[str, float], tuple[str, str] | None]] = []
        self.display = Display(name, progress.total_frames, data=settings.from_data)
        for line in [*settings.chosen, *(source.lines if source else [])]:
            self.say(line)
        clock.start_loop()

    def write(self) -> None:
        """Writes one log row of everything that came in since the last.

        While an evaluation is not over, the row of its moment and those after it wait for it.
        """
        self.require_folder()
        frames = self.progress.frames
        self.held.append((frames, {**self.metrics.row(), **self.clock.metrics(frames)}, None))
        self.release(self.progress.known_before)
        self.display.update(frames, {})

    def show(self, key: str, film: Path) -> None:
        """Sends a film of this moment to the loggers, after the rows before it."""
        self.held.append((self.progress.frames, {}, (key, str(film))))
        self.release(self.progress.known_before)

    def release(self, before: float = inf) -> None:
        """Writes what waited, up to ``before`` frames; the last evaluation in the row of its own."""
        while self.held and self.held[0][0] < before:
            frames, row, film = self.held.pop(0)
            known = frames == self.progress.evaluated_at
            if film:
                loggers.show(self.loggers.values(), frames, film[0], Path(film[1]))
            else:
                self.write_row(frames, row, self.progress.evaluation if known else None)

    def write_row(self, frames: int, row: dict[str, float], evaluation: Evaluation | None) -> None:
        """Writes a row and says what is to be said of it."""
        row = {**row, **(evaluation.metrics() if evaluation else {})}
        if evaluation and not any(each.get("eval/cut_episodes") for each in self.file.rows):
            self.say_cut(evaluation)
        if "train/episodes" in row and not any("train/episodes" in each for each in self.file.rows):
            self.say_unknown(row)
        self.file.write(frames, row)
        loggers.log(self.loggers.values(), frames, row)
        self.display.update(frames, row)

    def require_folder(self) -> None:
        """Refuses to begin the run folder anew where it was deleted, without what was in it.

        Raises:
            RunError: naming it.
        """
        if not self.configuration.exists():
            raise RunError(f"{self.directory} is gone or not whole: it was deleted or moved under the run")

    def say_cut(self, evaluation: Evaluation) -> None:
        """Says that episodes of an evaluation were cut short, if any were."""
        if cut := evaluation.cut_episodes:
            steps = int(evaluation.lengths.max())
            self.say(
                f"{cut} of {len(evaluation.returns)} episodes were still running after {steps:,} steps and "
                f"count as they stand; eval.max_steps={10 * steps:_} lets them go on"
            )

    def say_unknown(self, row: dict[str, float]) -> None:
        """Says which of ``env.info_keys`` none of the first episodes that ended gave."""
        for name in self.settings.env.get("info_keys") or []:
            if name in self.metrics.followed and f"train/{name}" not in row:
                self.say(
                    f"env.info_keys: none of the first {row['train/episodes']} episodes gave {name} in info "
                    "where it counts; where none does, there will be no such number"
                )

    def say(self, text: str) -> None:
        """A line above the progress bar."""
        say(text, self.display.console)

    def state_dict(self) -> dict[str, Any]:
        """How much of ``metrics.csv`` there is, the rows that wait, and what the run began with."""
        return {"rows": len(self.file.rows), "held": [*self.held], "lineage": self.lineage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the rows of :meth:`state_dict`; later ones go, and the summary."""
        written = (self.fork.folder if self.fork else self.directory) / "metrics.csv"
        if (again := self.file.keep(state["rows"], written)) and self.run_ids and not self.fork:
            self.say(
                f"{', '.join(self.run_ids)}: keeps {again} log rows that it was sent after this checkpoint; "
                "where they come otherwise now, metrics.csv is right"
            )
        if (count := len(self.file.rows)) < state["rows"]:
            self.say(f"{written} has {count} of the {state['rows']} rows of before; the others are lost")
        self.held = [*state.get("held", [])]  # this and the next are not in those of older runs
        self.lineage = state.get("lineage", {})
        if self.fork:
            self.lineage = {**self.lineage, "forked_from": self.fork.told}
        (self.directory / "summary.json").unlink(missing_ok=True)
        self.display.update(self.progress.frames, {})

    def go_back(self, state: dict[str, Any]) -> None:
        """Takes back the rows that came after those of :meth:`state_dict`, of this process."""
        if len(self.file.rows) > state["rows"]:
            self.file.keep(state["rows"])
        self.held = [*state["held"]]

    def finish(self, closing: Evaluation | None = None, status: str = "finished") -> None:
        """Writes ``summary.json`` and the pictures, closes the loggers and prints the closing table.

        Args:
            closing: the closing evaluation; a run that was cut short has none and reports its last.
            status: ``finished``, or how it was cut short.
        """
        self.require_folder()
        progress, settings = self.progress, self.settings
        if self.metrics.episodes:  # of batches since the last row
            self.write()
        for frames in progress.awaited:
            self.say(f"the evaluation after {frames:,} frames was not over; a resumed run plays it anew")
        self.release()
        if closing:  # after the last row and checkpoint: a longer run goes on as if it had not been
            progress.evaluated(closing, self.clock.elapsed)
        followed = self.metrics.followed or list(progress.evaluation.info if progress.evaluation else ())
        reached = {"status": status, **self.reached(followed)}
        summary = {
            "algo": settings.algo,
            "env": settings.task,
            "seed": settings.seed,
            "frames": progress.frames,
            "updates": progress.updates,
            **self.clock.summary(progress.frames),
            **reached,
            "resumed_at_frames": progress.resumed_at,
            **self.lineage,
            **({"data": self.data} if self.data else {}),
            **({"classes": self.classes} if self.classes else {}),
            "versions": process.versions(),
        }
        with atomically(self.directory / "summary.json") as partial:
            partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        title = f"{settings.algo} on {settings.task}, seed {settings.seed}"
        last = (progress.frames, closing.mean, closing.std) if closing else None
        picture = self.directory / "curves.png"
        ends = {
            name: (progress.frames, value)
            for name, value in (closing.info_means() if closing else {}).items()
        }
        told: dict[str, Any] = {"closing": last, "followed": followed, "ends": ends}
        if settings.from_data:
            told |= {"frames_are": "transitions drawn from data", "training": "the data's episodes, mean"}
        save_curves(self.file, picture, title=title, solved_at=progress.solved_at, **told)
        rows, stopped = closing_rows(summary, self.directory), status in ("interrupted", "failed")
        going_on = {"go on with": command(settings, rows["folder"])} if stopped else {}
        self.page(title, rows | going_on)
        self.close(reached)
        print_summary(summary, self.directory, *going_on.values())

    def reached(self, followed: list[str]) -> dict[str, Any]:
        """The last evaluation, the best and the first that solved the task, as the summary has them."""
        progress, last = self.progress, self.progress.evaluation
        return {
            "eval/return_mean": last.mean if last else None,
            "eval/return_std": last.std if last else None,
            "eval/episodes": last.returns.numel() if last else 0,
            "eval/cut_episodes": last.cut_episodes if last else 0,
            "eval/frames": progress.evaluated_at,
            **{f"eval/{name}": None for name in followed},
            **(last.info_means() if last else {}),
            "best_eval/return_mean": progress.best,
            "solved_at_frames": progress.solved_at_frames,
            "solved_at_seconds": progress.solved_at_seconds,
        }

    def page(self, title: str, rows: dict[str, str]) -> None:
        """Writes ``run.html``: the curves, the closing table's rows and the configuration."""
        cells = [[as_text(name), code(text)] for name, text in rows.items()]
        config = fenced(self.configuration.read_text(encoding="utf-8"), "yaml")
        parts = [f"# {as_text(title)}", "![curves](curves.png)", table(["", ""], cells)]
        parts += ["## Configuration", config]
        write_page("\n\n".join(parts), self.directory / "run.html")

    def close(self, reached: dict[str, Any] | None = None) -> None:
        """Stops the progress bar and finishes the loggers, however the run ended; again does nothing."""
        self.display.close()
        while self.loggers:
            loggers.close(self.loggers.popitem()[1], reached)
