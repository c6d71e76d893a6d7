"""The record of a run: log rows, evaluations, the summary and the picture."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict, TensorDictBase
from torchrl import timeit

from hydrl.config.settings import Settings
from hydrl.loop.evaluation import Evaluation
from hydrl.loop.metrics import (
    due,
    ended_episodes,
    episode_metrics,
    loss_metrics,
    seconds_spent,
    value_metrics,
)
from hydrl.run import loggers, process
from hydrl.run.curves import save_curves
from hydrl.run.files import atomically
from hydrl.run.profile import Profile
from hydrl.run.resume import Origin
from hydrl.run.screen import Display, print_summary

COUNTERS = (
    "frames",
    "before",
    "updates",
    "best",
    "best_at",
    "evaluated_at",
    "solved_at_frames",
    "solved_at_seconds",
)


class Record:
    """Keeps what a run reports and writes it to the run folder, the screen and the chosen logger.

    Args:
        settings: the run's; saved as ``config_resolved.yaml``.
        started: when the run's clock started, seconds since the epoch.
        origin: what the run goes on from, if it is resumed.
    """

    def __init__(self, settings: Settings, started: float, origin: Origin | None = None) -> None:
        self.settings, self.started = settings, started
        run_id = origin.run_id if origin else None
        self.directory = Path(settings.run_dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        config = settings.shown
        OmegaConf.save(OmegaConf.create(config), self.directory / "config_resolved.yaml")
        self.metrics = loggers.MetricsFile(self.directory / "metrics.csv")
        name = f"{settings.algo}-{settings.task}-seed{settings.seed}"
        self.logger = settings.build("logger")(
            directory=self.directory, config=config, name=name, run_id=run_id
        )
        self.run_id = loggers.run_id(self.logger)
        self.display = Display(
            f"{settings.algo} {settings.task}", settings.batches * settings.frames_per_batch
        )
        self.profile = Profile(self.directory, settings.batches, settings.profile_batches)
        timeit.erase()
        self.loop_started = time.time()
        self.compiled_before = process.compile_seconds()  # by earlier members of a sweep
        self.frames = self.before = self.updates = 0
        self.spent_before: dict[str, float] = {}
        self.resumed_at: list[int] = []
        self.evaluated_at: int | None = None
        self.best_at: int | None = None
        self.episodes: list[TensorDictBase] = []
        self.losses: list[TensorDictBase] = []
        self.pending: dict[str, float] = {}
        self.best: float | None = None
        self.last_evaluation: Evaluation | None = None
        self.solved_at_frames: int | None = None
        self.solved_at_seconds: float | None = None

    def collected(self, batch: TensorDictBase) -> int:
        """Takes in a fresh batch; the frames so far."""
        self.before, self.frames = self.frames, self.frames + batch.numel()
        return self.frames

    @property
    def batches_left(self) -> int:
        """Batches still to come."""
        return max(0, self.settings.batches - self.frames // self.settings.frames_per_batch)

    def due(self, every: int) -> bool:
        """Whether the batch reached or passed a multiple of ``every`` frames."""
        return due(every, self.frames, self.before)

    def learned(self, batch: TensorDictBase, losses: list[TensorDictBase]) -> None:
        """Takes in what was learned from the batch: the losses of its updates."""
        self.updates += len(losses)
        self.profile.step()
        self.episodes.append(ended_episodes(batch))
        self.pending |= value_metrics(batch)
        if losses:
            self.losses.append(torch.stack(losses).mean(0))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Takes in an evaluation."""
        self.pending |= evaluation.metrics()
        self.last_evaluation, self.evaluated_at = evaluation, self.frames
        if self.best is None or evaluation.mean > self.best:
            self.best, self.best_at = evaluation.mean, self.frames
        if self.solved and self.solved_at_frames is None:
            self.solved_at_frames, self.solved_at_seconds = self.frames, time.time() - self.started

    @property
    def solved(self) -> bool:
        """Whether the run was evaluated at these frames and reached the task's threshold."""
        return (
            self.last_evaluation is not None
            and self.evaluated_at == self.frames
            and self.solves(self.last_evaluation)
        )

    def solves(self, evaluation: Evaluation) -> bool:
        """Whether a mean return reaches the task's threshold; never, where it has none."""
        threshold = self.settings.eval.solved_at
        return threshold is not None and evaluation.mean >= threshold

    def write(self, metrics: dict[str, float]) -> None:
        """Writes one log row of everything taken in since the last."""
        elapsed = time.time() - self.loop_started
        row = {
            **episode_metrics(self.episodes),
            **loss_metrics(self.losses),
            **self.pending,
            **metrics,
            **{name: seconds / elapsed for name, seconds in self.seconds_spent().items()},
            "time/elapsed": time.time() - self.started,
            "time/frames_per_second": self.frames / elapsed,
        }
        self.metrics.write(self.frames, row)
        loggers.log(self.logger, self.frames, row)
        self.display.update(self.frames, row)
        self.episodes, self.losses, self.pending = [], [], {}

    def seconds_spent(self) -> dict[str, float]:
        """Seconds under each ``time/`` name in all of the run's processes; updates hold the compiling."""
        spent = seconds_spent()
        if self.settings.compile:
            spent["time/compile"] = process.compile_seconds() - self.compiled_before
        return {
            name: spent.get(name, 0.0) + self.spent_before.get(name, 0.0)
            for name in {**self.spent_before, **spent}
        }

    def state_dict(self) -> dict[str, Any]:
        """Counters, clocks and what came in since the last row: plain data."""
        now, last = time.time(), self.last_evaluation
        return {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "elapsed": now - self.started,
            "looped": now - self.loop_started,
            "spent": self.seconds_spent(),
            "resumed_at": self.resumed_at,
            "rows": len(self.metrics.rows),
            "episodes": [(len(each), each.to_dict()) for each in self.episodes],
            "losses": [each.to_dict() for each in self.losses],
            "pending": dict(self.pending),
            "last_evaluation": None if last is None else (last.returns, last.lengths),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`: later rows of ``metrics.csv`` go, and the clocks run on."""
        for name in COUNTERS:
            setattr(self, name, state["counters"].get(name, getattr(self, name)))
        self.started -= state["elapsed"]
        self.loop_started -= state["looped"]
        self.spent_before = state["spent"]
        self.metrics.keep(state["rows"])
        self.episodes = [TensorDict(each, batch_size=[count]) for count, each in state["episodes"]]
        self.losses = [TensorDict(each) for each in state["losses"]]
        self.pending = dict(state["pending"])
        last = state["last_evaluation"]
        self.last_evaluation = None if last is None else Evaluation(*last)
        self.resumed_at = [*state["resumed_at"], self.frames]
        self.display.update(self.frames, {})

    def say(self, text: str) -> None:
        """A line above the progress bar."""
        self.display.console.print(text, highlight=False, soft_wrap=True)

    def finish(self, final: Evaluation | None, status: str = "finished") -> None:
        """Writes ``summary.json`` and ``curves.png``, closes the logger and prints the closing table.

        Args:
            final: the closing evaluation; a run that was cut short has none and reports its last.
            status: ``finished``, or how it was cut short.
        """
        if self.episodes or self.pending:  # what came in since the last row
            self.write({})
        shown = final or self.last_evaluation
        reached = {
            "status": status,
            "eval/return_mean": shown.mean if shown else None,
            "eval/return_std": shown.std if shown else None,
            "eval/episodes": shown.returns.numel() if shown else 0,
            "best_eval/return_mean": self.best,
            "solved_at_frames": self.solved_at_frames,
            "solved_at_seconds": self.solved_at_seconds,
        }
        loggers.conclude(self.logger, reached)
        self.close()
        seconds = time.time() - self.started
        spent = self.seconds_spent()
        compiling = spent.get("time/compile", 0.0)
        learning = sum(spent.get(f"time/{each}", 0.0) for each in ("collect", "sample", "update")) - compiling
        summary = {
            "algo": self.settings.algo,
            "env": self.settings.task,
            "seed": self.settings.seed,
            "frames": self.frames,
            "updates": self.updates,
            "wall_seconds": seconds,
            "start_seconds": self.loop_started - self.started,
            "learning_seconds": learning,
            "evaluation_seconds": spent.get("time/evaluate", 0.0),
            "video_seconds": spent.get("time/video", 0.0),
            "compile_seconds": compiling,
            "overhead_share": 1 - learning / seconds,
            "frames_per_second": self.frames / (time.time() - self.loop_started),
            **reached,
            "resumed_at_frames": self.resumed_at,
            "versions": process.versions(),
        }
        with atomically(self.directory / "summary.json") as partial:
            partial.write_text(json.dumps(summary, indent=2) + "\n")
        title = f"{self.settings.algo} on {self.settings.task}, seed {self.settings.seed}"
        solved_at = self.settings.eval.solved_at
        save_curves(self.metrics, self.directory / "curves.png", title=title, solved_at=solved_at)
        print_summary(summary, self.directory)

    def close(self) -> None:
        """Stops the progress bar and finishes the logger, however the run ended; again does nothing."""
        self.profile.close()
        self.display.close()
        loggers.close(self.logger)
        self.logger = None
