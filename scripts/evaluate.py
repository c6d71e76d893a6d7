"""Evaluates a run: python scripts/evaluate.py run=outputs/… episodes=100 video=true

Keys: run (a run folder), episodes (their number, 100), checkpoint (last, best or a number of frames),
stream (another number gives other episodes), untrained (agent groups that act with their initial weights:
agent, or adversary,agent), video (true records the first episode, at most eval.max_steps steps, as
video-CHECKPOINT.mp4 in the run folder, and what a world model dreams of it as dream-CHECKPOINT.mp4),
nash (true measures the NashConv of the policy and of the average of its opponent pool, with
env=open_spiel), render (human shows 5 episodes in a window, without scores), export (FILE.onnx, FILE.pt2
or, of a language model, a new DIR; writes the policy for other programs),
device (cpu; cuda or auto), trust (true allows your own environments).
"""

import json
import re
from contextlib import closing
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from hydrl.config.command_line import exit_process, read_arguments, script
from hydrl.errors import UserError
from hydrl.run import rendering
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.console import console, outlive_readers, print_table, short
from hydrl.run.run_folder import require_run


@dataclass
class Arguments:
    """What the command line can set."""

    run: str = MISSING
    episodes: int | None = None  # 100, and 5 in a window
    checkpoint: str = "last"
    stream: int = 2  # 0 and 1 are the episodes the run itself was scored on
    untrained: str = ""
    video: bool = False
    nash: bool = False
    render: str = "none"
    export: str = ""
    device: str = "cpu"
    trust: bool = False


def main(arguments: Arguments) -> None:
    """Loads the policy with its normalizer, evaluates it, prints scores and writes ``evaluation.json``.

    Raises:
        UserError: for a wrong value or no run folder; before PyTorch is imported.
    """
    check(arguments)
    run, which, episodes = Path(arguments.run), arguments.checkpoint, arguments.episodes or 100
    from hydrl.deploy.load import measure_nash, open_run
    from hydrl.deploy.policy import Policy
    from hydrl.run import process
    from hydrl.run.video import record_episode

    device = process.prepare(0, arguments.device, 1)
    untrained = [group for group in arguments.untrained.split(",") if group]
    opened = open_run(run, checkpoint=which, device=device, trust=arguments.trust, untrained=untrained)
    settings, frames, evaluator = opened
    if arguments.export:
        Policy(*opened).export(arguments.export)
    if arguments.render == "human":
        return play(evaluator, frames, arguments.episodes or 5, arguments.stream)
    scores: dict[str, Any] = {"run": str(run), "checkpoint": which, "frames": frames, "seed": settings.seed}
    scores |= {"stream": arguments.stream, "untrained": untrained}
    nash_values = measure_nash(run, which, evaluator) if arguments.nash else {}
    if arguments.video:  # first, so that an environment without a video is an error before the evaluation
        path = run / f"video-{'-'.join([which, *(f'untrained-{group}' for group in untrained)])}.mp4"
        with console().status("recording a video of the first episode"):
            dream = path.with_name(path.name.replace("video", "dream", 1))
            video_return, length, cut = record_episode(
                evaluator, path, frames, arguments.stream, dream_path=dream
            )
        scores["video"] = {"file": path.name, "return": video_return, "length": length, "cut": cut}
    # Closed, for an environment may be a process that outlives this one.
    with console().status("evaluating"), closing(evaluator):
        evaluation = evaluator(frames, episodes, arguments.stream)
    scores |= {f"eval/{name}": value for name, value in nash_values.items()}
    lengths = evaluation.lengths.tolist()
    scores |= evaluation.metrics() | {"eval/length_min": min(lengths), "eval/length_max": max(lengths)}
    scores |= {"returns": evaluation.returns.tolist(), "lengths": lengths}
    info = {name: values.tolist() for name, values in evaluation.info.items()}
    scores["info"] = {name: [None if isnan(value) else value for value in info[name]] for name in info}
    policy = "policy" if which.isdigit() else f"{which} policy"
    show(scores, f"{settings.algo} on {settings.task}, {policy}")
    with atomically(run / "evaluation.json") as partial:
        partial.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def check(arguments: Arguments) -> None:
    """Checks the arguments before anything is loaded, and prepares rendering.

    Raises:
        UserError: see :func:`main`.
    """
    if arguments.episodes is not None and arguments.episodes < 1:
        raise UserError(f"episodes={arguments.episodes}: out of range. Use 1 or more.")
    if arguments.stream < 0:
        raise UserError(f"stream={arguments.stream}: out of range. Use 0 or more.")
    if not re.fullmatch(r"last|best|[0-9]+", arguments.checkpoint):
        raise UserError(f"checkpoint={arguments.checkpoint}: unknown. Use last, best or a number of frames.")
    if arguments.render not in ("none", "human"):
        raise UserError(f"render={arguments.render}: unknown. Use human for a window, or video=true.")
    if arguments.render == "human" and arguments.video:
        raise UserError("render=human: does not go with video=true. Use one of the two.")
    require_run(Path(arguments.run))
    if arguments.render == "human":
        rendering.require_display("render=human")
    rendering.prepare(wanted=arguments.video)


def play(evaluator: Any, frames: int, episodes: int, stream: int) -> None:
    """Shows episodes in a window and prints their returns."""
    from hydrl.run.video import watch

    for number, (score, length, cut) in enumerate(watch(evaluator, frames, episodes, stream), 1):
        print(f"episode {number}: return {score:,.1f}, length {length:,}{', cut short' * cut}", flush=True)


def show(scores: dict[str, Any], title: str) -> None:
    """Prints the scores as a table."""
    evaluation = {key.removeprefix("eval/"): value for key, value in scores.items() if "eval/" in key}
    rows = {"return": "{return_mean:,.1f} ± {return_std:,.1f}".format(**evaluation)}
    rows["range"] = "{return_min:,.1f} to {return_max:,.1f}".format(**evaluation)
    lengths = "{length_mean:,.1f}, {length_min:,} to {length_max:,}"
    rows["episode length"] = lengths.format(**evaluation)
    rows["episodes"] = "{episodes:,}".format(**evaluation)
    if cut := evaluation["cut_episodes"]:
        rows["cut short"] = f"{cut:,} of them, still running after {evaluation['length_max']:,} steps"
    for name, values in scores["info"].items():
        known = len(values) - values.count(None)
        part = "" if known == len(values) else f" over {known:,} episodes that have it"
        rows[name] = short(evaluation.get(name)) + part * bool(known)
    if "nash_conv" in evaluation:
        rows["NashConv"] = f"{evaluation['nash_conv']:.4g}"
        count, average = int(evaluation["nash_policies"]), evaluation.get("nash_conv_average")
        name = f"of the average over {count:,} kept opponents"
        rows[name] = f"{average:.4g}" if count else "no opponent was kept"
    untrained = f"; untrained: {', '.join(scores['untrained'])}" * bool(scores["untrained"])
    rows["trained"] = f"{scores['frames']:,} frames{untrained}"
    if video := scores.get("video"):
        cut = ", cut short" if video["cut"] else ""
        rows["video"] = str(Path(scores["run"], video["file"]))
        rows["episode of the video"] = f"return {video['return']:,.1f}, length {video['length']:,}{cut}"
    print_table(title, rows)


if __name__ == "__main__":
    outlive_readers()
    exit_process(
        script(lambda words: main(read_arguments(Arguments, words, "run=outputs/… episodes=100")), __doc__)
    )
