"""Scores a finished run and films it: python scripts/evaluate.py run=outputs/… episodes=100 video=true

Keys: run (a run folder), episodes, checkpoint (last, best or a number of frames), stream (another number,
other episodes), video (true films the first of them, at most eval.max_steps steps, as video-CHECKPOINT.mp4
in the run folder), device, trust (true allows environments that are not hydrl's own).
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from hydrl.config.command_line import read, script
from hydrl.errors import UserError
from hydrl.run import headless
from hydrl.run.files import atomically
from hydrl.run.screen import console, key_value_table


@dataclass
class Arguments:
    """What the command line can set."""

    run: str = MISSING
    episodes: int = 100
    checkpoint: str = "last"
    stream: int = 2  # 0 and 1 are the episodes the run itself was scored on
    video: bool = False
    device: str = "cpu"
    trust: bool = False


def main(arguments: Arguments) -> None:
    """Rebuilds the policy with its normaliser, plays it, prints the scores and writes ``evaluation.json``."""
    check(arguments)
    directory = Path(arguments.run)
    if arguments.video:
        headless.prepare()  # before anything below imports MuJoCo

    from hydrl.run import process
    from hydrl.run.finished import open_run

    process.prepare(0, arguments.device, "auto")
    finished = open_run(
        directory, checkpoint=arguments.checkpoint, device=arguments.device, trust=arguments.trust
    )
    settings = finished.settings
    scores: dict[str, Any] = {
        "run": str(directory),
        "checkpoint": arguments.checkpoint,
        "frames": finished.frames,
        "seed": settings.seed,
        "stream": arguments.stream,
    }
    which = f"{arguments.checkpoint} policy" if arguments.checkpoint in ("best", "last") else "policy"
    table = key_value_table(f"{settings.algo} on {settings.task}, {which}")
    film = None
    if arguments.video:  # first, so that what cannot be filmed is said before the episodes are played
        path = directory / f"video-{arguments.checkpoint}.mp4"
        with console().status("filming the first episode"):
            film = finished.film(path, arguments.episodes, arguments.stream)
        scores["video"] = {"file": path.name, "return": film.episode_return, "length": film.length}
    with console().status("playing the episodes"):
        evaluation = finished.evaluate(arguments.episodes, arguments.stream)
    shortest, longest = evaluation.lengths.min().item(), evaluation.lengths.max().item()
    scores |= evaluation.metrics() | {"eval/length_min": shortest, "eval/length_max": longest}
    scores |= {"returns": evaluation.returns.tolist(), "lengths": evaluation.lengths.tolist()}

    table.add_row("return", f"{evaluation.mean:,.1f} ± {evaluation.std:,.1f}")
    table.add_row("range", f"{scores['eval/return_min']:,.1f} to {scores['eval/return_max']:,.1f}")
    table.add_row("episode length", f"{scores['eval/length_mean']:,.1f}, {shortest:,} to {longest:,}")
    table.add_row("episodes", f"{arguments.episodes:,}")
    table.add_row("trained", f"{finished.frames:,} frames")
    if film:
        table.add_row("first episode", f"return {film.episode_return:,.1f}, length {film.length:,}")
        table.add_row("its video", str(film.path))
    console().print(table)
    with atomically(directory / "evaluation.json") as partial:
        partial.write_text(json.dumps(scores, indent=2) + "\n")


def check(arguments: Arguments) -> None:
    """What can be known before PyTorch's seconds.

    Raises:
        UserError: for a value out of range, or a folder that is not a run's.
    """
    if arguments.episodes < 1:
        raise UserError(f"episodes={arguments.episodes}: give 1 or more")
    if arguments.stream < 0:
        raise UserError(f"stream={arguments.stream}: give 0 or more")
    if not re.fullmatch(r"last|best|[0-9]+", arguments.checkpoint):
        raise UserError(f"checkpoint={arguments.checkpoint}: use last, best or a number of frames")
    if not (Path(arguments.run) / "config_resolved.yaml").is_file():
        raise UserError(f"run={arguments.run}: no run lies there (it has no config_resolved.yaml)")


if __name__ == "__main__":
    sys.exit(script(lambda words: main(read(Arguments, words, "run=outputs/… episodes=100")), __doc__))
