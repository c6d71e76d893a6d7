"""Records a run's policy as an offline dataset: python scripts/record.py run=outputs/… frames=100_000 out=DIR

Observations, actions and rewards are in the environment's own units, without the run's transforms.
algo=bc data=npz data.path=DIR trains on the dataset.

Keys: run (a run folder), out (a new folder; with format=minari the dataset's name, such as
pendulum/expert-v0), frames (100,000; complete episodes with at least so many steps), checkpoint (last, best
or a number of frames), sampled (true samples actions from the policy's distribution), random (0; share of
the frames with random actions, in episodes after the policy's), format (npz, h5 or minari; h5 and minari
need pip install 'hydrl[minari]'), stream (another number gives other episodes), device (cpu; cuda or auto),
trust (true allows your own environments).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from hydrl.config.command_line import exit_process, read_arguments, script
from hydrl.errors import UserError
from hydrl.run.logging.console import console, outlive_readers
from hydrl.run.run_folder import require_run

# Minari's own pattern takes no namespace of one letter, and it reads v01 as v1.
MINARI_NAME = r"(?!./[^/]*$)([\w-]+/)*[\w-]+-v(0|[1-9]\d*)"


@dataclass
class Arguments:
    """What the command line can set."""

    run: str = MISSING
    out: str = MISSING
    frames: int = 100_000
    checkpoint: str = "last"
    sampled: bool = False
    random: float = 0.0
    format: str = "npz"
    stream: int = 3  # 2 are the episodes of `evaluate`
    device: str = "cpu"
    trust: bool = False


def main(arguments: Arguments) -> None:
    """Plays the policy and writes the dataset.

    Raises:
        UserError: for a wrong value, no run folder, an output folder that is not empty, and a missing extra;
            before PyTorch is imported.
    """
    run, out, kind = Path(arguments.run), Path(arguments.out), arguments.format
    check(arguments)
    from hydrl.datasets import minari, record
    from hydrl.datasets.files import import_extra
    from hydrl.deploy.load import open_run
    from hydrl.run import process

    if kind != "npz":
        import_extra({"h5": "h5py", "minari": "minari"}[kind], f"format={kind}")
    (minari if kind == "minari" else record).check_does_not_exist(out)
    device = process.prepare(0, arguments.device, 1)
    settings, trained, evaluator = open_run(
        run, checkpoint=arguments.checkpoint, device=device, trust=arguments.trust
    )
    actions: dict[str, Any] = {"sampled": arguments.sampled, "random": arguments.random}
    with console().status("recording"):
        columns = record.record_episodes(
            settings, evaluator, trained, frames=arguments.frames, stream=arguments.stream, **actions
        )
    about = record.describe_dataset(settings, columns, run, arguments.checkpoint, trained, **actions)
    if kind == "minari":
        minari.save_minari(str(out), columns, about, settings.env, settings.build("env"))
    else:
        record.save_dataset(kind, out, columns, about)
    score = f"return {about['return_mean']:,.1f} ± {about['return_std']:,.1f}" if about["episodes"] else ""
    print(f"{out}: {about['rows']:,} frames of {about['episodes']:,} episodes, {score}")


def check(arguments: Arguments) -> None:
    """Checks the arguments before anything is loaded.

    Raises:
        UserError: see :func:`main`.
    """
    if arguments.frames < 1:
        raise UserError(f"frames={arguments.frames}: out of range. Use 1 or more.")
    if not 0 <= arguments.random <= 1:
        raise UserError(f"random={arguments.random}: out of range. Use a share from 0 to 1.")
    if arguments.stream < 0:
        raise UserError(f"stream={arguments.stream}: out of range. Use 0 or more.")
    if not re.fullmatch(r"last|best|[0-9]+", arguments.checkpoint):
        raise UserError(f"checkpoint={arguments.checkpoint}: unknown. Use last, best or a number of frames.")
    if arguments.format not in ("npz", "h5", "minari"):
        raise UserError(f"format={arguments.format}: unknown. Use npz, h5 or minari.")
    if arguments.format == "minari" and not re.fullmatch(MINARI_NAME, arguments.out):
        raise UserError(
            f"out={arguments.out}: not a name of a Minari dataset. Use a name such as pendulum/expert-v0: "
            "a namespace of two letters or more, and a version without leading zero."
        )
    require_run(Path(arguments.run))


if __name__ == "__main__":
    outlive_readers()
    exit_process(
        script(lambda words: main(read_arguments(Arguments, words, "run=outputs/… out=DIR")), __doc__)
    )
