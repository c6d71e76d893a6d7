"""Scores a finished run: python scripts/evaluate.py run=outputs/… episodes=100

Keys: run (a run folder), episodes, checkpoint (last or best), stream (another number, other episodes),
device, trust (true allows environments that are not hydrl's own).
"""

import json
import sys
import typing
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrl.cli import complain
from hydrl.display import console, key_value_table
from hydrl.errors import UserError


@dataclass
class Arguments:
    """What the command line can set."""

    run: str = MISSING
    episodes: int = 100
    checkpoint: str = "last"
    stream: int = 2  # 0 and 1 are the episodes the run itself was scored on
    device: str = "cpu"
    trust: bool = False


def main(arguments: Arguments) -> None:
    """Rebuilds the policy with its normaliser, plays it, prints the scores and writes ``evaluation.json``."""
    if arguments.episodes < 1:
        raise UserError(f"episodes={arguments.episodes}: give 1 or more")
    if arguments.checkpoint not in ("last", "best"):
        raise UserError(f"checkpoint={arguments.checkpoint}: use last or best")
    directory = Path(arguments.run)
    if not (directory / "config_resolved.yaml").is_file():
        raise UserError(f"run={directory}: no run lies there (it has no config_resolved.yaml)")

    from hydrl import runtime
    from hydrl.finished import open_run

    runtime.prepare(0, arguments.device, "auto")
    finished = open_run(
        directory, checkpoint=arguments.checkpoint, device=arguments.device, trust=arguments.trust
    )
    evaluation = finished.evaluate(arguments.episodes, arguments.stream)
    scores = {
        "run": str(directory),
        "checkpoint": arguments.checkpoint,
        "frames": finished.frames,
        "stream": arguments.stream,
        **evaluation.metrics(),
    }
    settings = finished.settings
    table = key_value_table(f"{settings.algo} on {settings.task}, {arguments.checkpoint} policy")
    table.add_row("return", f"{evaluation.mean:,.1f} ± {evaluation.std:,.1f}")
    table.add_row("range", f"{scores['eval/return_min']:,.1f} to {scores['eval/return_max']:,.1f}")
    table.add_row("episode length", f"{scores['eval/length_mean']:,.1f}")
    table.add_row("episodes", f"{arguments.episodes:,}")
    table.add_row("trained", f"{finished.frames:,} frames")
    console().print(table)
    try:
        (directory / "evaluation.json").write_text(json.dumps(scores, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"evaluation.json cannot be written to {directory}: {error.strerror}") from None


def read(words: list[str]) -> Arguments:
    """``key=value`` words to arguments.

    Raises:
        UserError: for an unknown key, a wrong type or a missing run.
    """
    if bad := [word for word in words if "=" not in word]:
        raise UserError(f"{bad[0]}: write key=value, as run=DIR episodes=100")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Arguments), OmegaConf.from_cli(words))
    except OmegaConfBaseException as error:
        raise UserError(
            f"{str(error).splitlines()[0]}; keys: {', '.join(Arguments.__annotations__)}"
        ) from None
    if OmegaConf.is_missing(merged, "run"):
        raise UserError("run has no value; give a run folder, as run=outputs/…")
    return typing.cast(Arguments, OmegaConf.to_object(merged))


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    try:
        main(read(sys.argv[1:]))
    except UserError as error:
        sys.exit(complain(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)
