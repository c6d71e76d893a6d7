"""Reports a run to its folder, the console and the loggers: rows, videos, summary, curves, ``run.html``."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from torchrl.record.loggers import Logger

from hydrl import metric_names as names
from hydrl.errors import RunError
from hydrl.run import process
from hydrl.run.atomic_files import atomically
from hydrl.run.checkpoint.resume import ResumePoint
from hydrl.run.checkpoint.resume_command import resume_command
from hydrl.run.checkpoint.warm_start import WarmStart
from hydrl.run.logging import loggers as backends
from hydrl.run.logging.console import Display, print_summary, say, summary_rows
from hydrl.run.logging.curves import save_curves
from hydrl.run.logging.run_page import write_run_page
from hydrl.run.run_folder import CONFIG, save_config
from hydrl.training.evaluator import Evaluation
from hydrl.training.metrics import Metrics
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock

SAMPLES = "samples.jsonl"  # prompts and answers of evaluations of language models


@dataclass(frozen=True)
class RunInfo:
    """What a run is and where it comes from, for its titles and its summary.

    Attributes:
        algo, task, seed: as configured.
        config: the run's settings as they are saved.
        from_data: whether its frames are drawn from an offline dataset.
        info_keys: of Gymnasium's ``info``, which it follows.
        notes: lines that are printed before the loop.
        needs_trust: whether resuming it takes ``trust=true``; called for a run that was stopped.
        data: which rows of an offline dataset it learns from; ``None`` without one.
        classes: digests of the user's own classes that it depends on.
        size_note: what is printed of the replay buffer's size.
        start: the checkpoint that it is resumed or forked from, or whose weights it begins with.
    """

    algo: str
    task: str
    seed: int
    config: Mapping[str, Any]
    from_data: bool = False
    info_keys: Sequence[str] = ()
    notes: Sequence[str] = ()
    needs_trust: Callable[[], bool] = bool
    data: Mapping[str, Any] | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    start: ResumePoint | WarmStart | None = None
    size_note: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name that loggers and the progress bar have for it."""
        return f"{self.algo}-{self.task}-seed{self.seed}".replace(":", "-")

    @property
    def title(self) -> str:
        """Its title in curves and ``run.html``."""
        return f"{self.algo} on {self.task}, seed {self.seed}"


def keep_samples(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Removes the samples that were written after the last log row."""
    if path.exists():
        last = rows[-1]["frames"] if rows else 0
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if json.loads(line)["frames"] <= last)
        with atomically(path) as partial:
            partial.write_text(text, encoding="utf-8")


class RunLogger:
    """Writes the log rows and results of a run to its folder, the console and the chosen loggers.

    Building it starts the loggers, and the loop's time.

    Args:
        run_dir: the run folder, which gets the configuration.
        builders: of the chosen loggers, by name.
        info: what the run is.
        progress, metrics, clock: the run's, which it reports.
    """

    def __init__(
        self,
        run_dir: Path,
        builders: Mapping[str, Callable[..., Logger]],
        info: RunInfo,
        progress: Progress,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        save_config(run_dir, info.config)
        shared = {"directory": run_dir, "config": info.config, "name": info.name}
        run_ids = info.start.run_ids if info.start else {}
        self.loggers = {key: build(**shared, run_id=run_ids.get(key)) for key, build in builders.items()}
        self.directory, self.info = run_dir, info
        self.progress, self.metrics, self.clock = progress, metrics, clock
        self.file = backends.MetricsFile(run_dir / "metrics.csv")
        self.forked_from = info.start.forked_from if info.start else None
        self.lineage = info.start.lineage if info.start else {}
        self.run_ids = backends.run_ids(self.loggers)
        # Rows, and videos by key and path, that wait for an evaluation: W&B takes them in order alone.
        self.pending_rows: list[tuple[int, dict[str, float], tuple[str, str] | None]] = []
        self.display = Display(info.name, progress.total_frames, data=info.from_data)
        self.say(*info.notes, *(info.start.lines if info.start else ()), *info.size_note)
        clock.start_loop()
        self.row_at = 0.0  # seconds of the loop at the last row

    @property
    def metadata(self) -> dict[str, Any]:
        """What checkpoints say of the run: its settings, dataset, user classes and ids at the loggers."""
        info = self.info
        return {"logger": self.run_ids, "settings": info.config, "data": info.data, "classes": info.classes}

    def write(self) -> None:
        """Writes one log row of everything since the last.

        While an evaluation is pending, the row of its moment and those after it wait for it.
        """
        self.require_folder()
        frames, now = self.progress.frames, self.clock.in_loop
        row = {**self.metrics.row(), **self.clock.metrics(frames)}
        if names.TRAIN_TOKENS in row:
            tokens = row[names.TRAIN_TOKENS] * row[names.TRAIN_EPISODES]
            row[names.TOKENS_PER_SECOND] = tokens / max(now - self.row_at, 1e-9)
        self.row_at = now
        self.pending_rows.append((frames, row, None))
        self.flush()
        self.display.update(frames, {})

    def show(self, key: str, video: Path) -> None:
        """Sends a video of this moment to the loggers, after the rows before it."""
        self.pending_rows.append((self.progress.frames, {}, (key, str(video))))
        self.flush()

    def flush(self, *_: object) -> None:
        """Writes what waits, up to the first pending evaluation; the last result goes into its own row."""
        self.write_pending_rows(self.progress.known_before)

    def write_pending_rows(self, before: float) -> None:
        """Writes what waits of the frames before ``before``."""
        while self.pending_rows and self.pending_rows[0][0] < before:
            frames, row, video = self.pending_rows.pop(0)
            if video:
                key, path = video
                backends.show(self.loggers.values(), frames, key, Path(path))
            else:
                is_evaluated = frames == self.progress.evaluated_at
                self.write_row(frames, row, self.progress.evaluation if is_evaluated else None)

    def write_row(self, frames: int, row: dict[str, float], evaluation: Evaluation | None) -> None:
        """Writes a row, and prints what the user should know of it."""
        row = {**row, **(evaluation.metrics() if evaluation else {})}
        if evaluation and not any(earlier.get(names.CUT_EPISODES) for earlier in self.file.rows):
            self.say_cut(evaluation)
        ended = names.TRAIN_EPISODES
        if ended in row and not any(ended in earlier for earlier in self.file.rows):
            self.say_missing_info(row)
        self.file.write(frames, row)
        if evaluation and evaluation.samples:
            lines = [json.dumps({"frames": frames, **sample}) + "\n" for sample in evaluation.samples]
            with (self.directory / SAMPLES).open("a", encoding="utf-8") as file:
                file.writelines(lines)
        backends.log(self.loggers.values(), frames, row)
        if evaluation and evaluation.samples:
            backends.show_samples(self.loggers.values(), frames, evaluation.samples)
        self.display.update(frames, row)

    def require_folder(self) -> None:
        """Refuses to start the run folder anew after it was deleted.

        Raises:
            RunError: naming it.
        """
        if not (self.directory / CONFIG).exists():
            raise RunError(f"{self.directory} was deleted or moved during the run")

    def say_cut(self, evaluation: Evaluation) -> None:
        """Prints that episodes of an evaluation were cut short, if any were."""
        if cut := evaluation.cut_episodes:
            steps = int(evaluation.lengths.max())
            self.say(
                f"{cut} of {len(evaluation.returns)} episodes were still running after {steps:,} steps and "
                f"count as they are; eval.max_steps={10 * steps:_} lets them continue"
            )

    def say_missing_info(self, row: dict[str, float]) -> None:
        """Prints which of ``env.info_keys`` were missing in the first episodes that ended."""
        for name in self.info.info_keys:
            if name in self.metrics.followed and f"train/{name}" not in row:
                self.say(
                    f"env.info_keys: {name} is missing in the info of the first {row[names.TRAIN_EPISODES]} "
                    "episodes; if it never comes, it is not logged"
                )

    def say(self, *lines: str) -> None:
        """Prints lines above the progress bar."""
        for line in lines:
            say(line, self.display.console)

    def state_dict(self) -> dict[str, Any]:
        """The number of rows in ``metrics.csv``, the rows that wait, and the run's lineage."""
        return {"rows": len(self.file.rows), "held": [*self.pending_rows], "lineage": self.lineage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the rows of :meth:`state_dict`; removes later ones, and the summary."""
        source = (self.forked_from or self.directory) / "metrics.csv"
        if (again := self.file.keep(state["rows"], source)) and self.run_ids and not self.forked_from:
            self.say(
                f"{', '.join(self.run_ids)}: keeps the {again} log rows sent after this checkpoint; if they "
                "differ from new ones, metrics.csv is right"
            )
        if (count := len(self.file.rows)) < state["rows"]:
            self.say(f"{source} has only {count} of {state['rows']} earlier rows; the others are lost")
        keep_samples(self.directory / SAMPLES, self.file.rows)
        self.row_at = self.clock.in_loop
        self.pending_rows = [*state.get("held", [])]  # this and the next are not in those of older runs
        self.lineage = {**state.get("lineage", {}), **self.lineage}
        (self.directory / "summary.json").unlink(missing_ok=True)
        self.display.update(self.progress.frames, {})

    def rewind(self, state: dict[str, Any]) -> None:
        """Takes back the rows that this process wrote after those of :meth:`state_dict`."""
        if len(self.file.rows) > state["rows"]:
            self.file.keep(state["rows"])
            keep_samples(self.directory / SAMPLES, self.file.rows)
        self.pending_rows = [*state["held"]]

    def finish(self, final: Evaluation | None = None, status: str = "finished") -> None:
        """Writes ``summary.json``, curves and ``run.html``, closes the loggers and prints the summary table.

        Args:
            final: the final evaluation; a run that was cut short has none and reports its last.
            status: ``finished``, or how it was cut short.
        """
        self.require_folder()
        progress = self.progress
        if self.metrics.episodes:  # of batches since the last row
            self.write()
        for frames in progress.awaited:
            self.say(f"the evaluation after {frames:,} frames was not finished; a resumed run repeats it")
        self.write_pending_rows(inf)
        if final:  # after the last row and checkpoint: a longer run goes on as if it had not been
            progress.evaluated(final, self.clock.elapsed)
        followed = self.metrics.followed or list(progress.evaluation.info if progress.evaluation else ())
        results = {"status": status, **self.results(followed)}
        summary = self.summary(results)
        with atomically(self.directory / "summary.json") as partial:
            partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        self.draw_curves(final, followed)
        rows, is_stopped = summary_rows(summary, self.directory), status in ("interrupted", "failed")
        command = {"resume with": resume_command(self.directory, self.info.needs_trust)} if is_stopped else {}
        samples = progress.evaluation.samples if progress.evaluation else ()
        write_run_page(self.directory, self.info.title, summary, rows | command, self.info.config, samples)
        self.close(results)
        print_summary(summary, self.directory, *command.values())

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The content of ``summary.json``."""
        info, progress = self.info, self.progress
        return {
            "algo": info.algo,
            "env": info.task,
            "seed": info.seed,
            "frames": progress.frames,
            "updates": progress.updates,
            **self.clock.summary(progress.frames),
            **results,
            "resumed_at_frames": progress.resumed_at,
            **self.lineage,
            **({"data": info.data} if info.data else {}),
            **({"classes": info.classes} if info.classes else {}),
            "versions": process.versions(),
        }

    def results(self, followed: list[str]) -> dict[str, Any]:
        """The last evaluation, the best and the first that solved the task, as the summary has them."""
        progress, last = self.progress, self.progress.evaluation
        return {
            names.RETURN_MEAN: last.mean if last else None,
            names.RETURN_STD: last.std if last else None,
            names.EVAL_EPISODES: last.returns.numel() if last else 0,
            names.CUT_EPISODES: last.cut_episodes if last else 0,
            names.EVAL_FRAMES: progress.evaluated_at,
            **{f"eval/{name}": None for name in (last.info if last else followed)},
            **(last.info_means() if last else {}),
            names.BEST_RETURN: progress.best,
            "solved_at_frames": progress.solved_at_frames,
            "solved_at_seconds": progress.solved_at_seconds,
        }

    def draw_curves(self, final: Evaluation | None, followed: list[str]) -> None:
        """Writes ``curves.png``."""
        frames = self.progress.frames
        labels = {"frames_are": "transitions drawn from data", "training": "the data's episodes, mean"}
        save_curves(
            self.file,
            self.directory / "curves.png",
            title=self.info.title,
            solved_return=self.progress.solved_return,
            final=(frames, final.mean, final.std) if final else None,
            followed=followed,
            ends={name: (frames, value) for name, value in (final.info_means() if final else {}).items()},
            **(labels if self.info.from_data else {}),
        )

    def close(self, results: dict[str, Any] | None = None) -> None:
        """Stops the progress bar and finishes the loggers, however the run ended; again does nothing."""
        self.display.close()
        while self.loggers:
            backends.close(self.loggers.popitem()[1], results)
