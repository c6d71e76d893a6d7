"""The record of a run: log rows, evaluations, the saved policies, the summary and the picture."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDictBase
from torch import nn
from torchrl import timeit

from hydrl import loggers, runtime
from hydrl.checkpoint import save_policy
from hydrl.config import Settings
from hydrl.display import Display, print_summary
from hydrl.evaluation import Evaluation
from hydrl.metrics import (
    ended_episodes,
    episode_metrics,
    loss_metrics,
    seconds_spent,
    time_shares,
    value_metrics,
)
from hydrl.plots import save_curves


class Record:
    """Keeps what a run reports and writes it to the run folder, the screen and the chosen logger.

    Args:
        settings: the run's; saved as ``config_resolved.yaml``.
        started: when the run's clock started, seconds since the epoch.
        actor: saved with the normaliser under ``checkpoints/``.
        critic: saved beside it, if there is one.
    """

    def __init__(
        self, settings: Settings, started: float, actor: nn.Module, critic: nn.Module | None
    ) -> None:
        self.settings, self.started = settings, started
        self.actor, self.critic = actor, critic
        self.directory = Path(settings.run_dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        config = settings.model_dump()
        OmegaConf.save(OmegaConf.create(config), self.directory / "config_resolved.yaml")
        self.metrics = loggers.MetricsFile(self.directory / "metrics.csv")
        name = f"{settings.algo}-{settings.task}-seed{settings.seed}"
        self.logger = settings.build("logger")(directory=self.directory, config=config, name=name)
        self.display = Display(
            f"{settings.algo} {settings.task}", settings.batches * settings.frames_per_batch
        )
        timeit.erase()
        self.loop_started = time.time()
        self.compiled_before = runtime.compile_seconds()  # by earlier members of a sweep
        self.frames = self.updates = 0
        self.episodes: list[TensorDictBase] = []
        self.losses: list[TensorDictBase] = []
        self.pending: dict[str, float] = {}
        self.best: float | None = None
        self.last_evaluation: Evaluation | None = None
        self.solved_at_frames: int | None = None
        self.solved_at_seconds: float | None = None

    def learned(self, batch: TensorDictBase, losses: list[TensorDictBase]) -> None:
        """Takes in a batch and the losses of its updates."""
        self.frames += batch.numel()
        self.updates += len(losses)
        self.episodes.append(ended_episodes(batch))
        self.pending |= value_metrics(batch)
        if losses:
            self.losses.append(torch.stack(losses).mean(0))

    def evaluated(self, evaluation: Evaluation, normaliser: dict[str, Any]) -> bool:
        """Takes in an evaluation, saves the policy if it is the best so far; whether it counts as solved."""
        self.pending |= evaluation.metrics()
        self.last_evaluation = evaluation
        if self.best is None or evaluation.mean > self.best:
            self.best = evaluation.mean
            self.save("best", normaliser)
        solved = self.solves(evaluation)
        if solved and self.solved_at_frames is None:
            self.solved_at_frames, self.solved_at_seconds = self.frames, time.time() - self.started
        return solved

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
            **time_shares(elapsed),
            **({"time/compile": self.compile_seconds() / elapsed} if self.settings.compile else {}),
            "time/elapsed": time.time() - self.started,
            "time/frames_per_second": self.frames / elapsed,
        }
        self.metrics.write(self.frames, row)
        loggers.log(self.logger, self.frames, row)
        self.display.update(self.frames, row)
        self.episodes, self.losses, self.pending = [], [], {}

    def compile_seconds(self) -> float:
        """Seconds this run has spent compiling; ``time/update`` holds them too."""
        return runtime.compile_seconds() - self.compiled_before

    def save(self, name: str, normaliser: dict[str, Any]) -> None:
        """Saves the policy with its normaliser as ``checkpoints/NAME.pt``."""
        path = self.directory / "checkpoints" / f"{name}.pt"
        save_policy(path, actor=self.actor, critic=self.critic, normaliser=normaliser, frames=self.frames)

    def finish(self, final: Evaluation | None, note: str = "") -> None:
        """Writes ``summary.json`` and ``curves.png``, closes the logger and prints the closing table.

        Args:
            final: the closing evaluation; an interrupted run has none and reports its last.
            note: said beside the title, for a run that was cut short.
        """
        if self.episodes or self.pending:  # what came in since the last row
            self.write({})
        self.close()
        seconds = time.time() - self.started
        spent = seconds_spent()
        compiling = self.compile_seconds()
        learning = sum(spent.get(f"time/{each}", 0.0) for each in ("collect", "sample", "update")) - compiling
        shown = final or self.last_evaluation
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
            "compile_seconds": compiling,
            "overhead_share": 1 - learning / seconds,
            "frames_per_second": self.frames / (time.time() - self.loop_started),
            "eval/return_mean": shown.mean if shown else None,
            "eval/return_std": shown.std if shown else None,
            "eval/episodes": shown.returns.numel() if shown else 0,
            "best_eval/return_mean": self.best,
            "solved_at_frames": self.solved_at_frames,
            "solved_at_seconds": self.solved_at_seconds,
            "versions": runtime.versions(),
        }
        partial = self.directory / "summary.json.partial"
        partial.write_text(json.dumps(summary, indent=2) + "\n")
        os.replace(partial, self.directory / "summary.json")
        title = f"{self.settings.algo} on {self.settings.task}, seed {self.settings.seed}"
        solved_at = self.settings.eval.solved_at
        save_curves(self.metrics, self.directory / "curves.png", title=title, solved_at=solved_at)
        print_summary(summary, self.directory, note)

    def close(self) -> None:
        """Stops the progress bar and finishes the logger, however the run ended; again does nothing."""
        self.display.close()
        loggers.close(self.logger)
        self.logger = None
