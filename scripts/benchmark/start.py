"""Seconds from a typed command to the first environment step, measured from outside.

A wrapper, :mod:`first_step`, writes the time of the first step; the run is then killed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORDS = ("algo=ppo", "env=inverted_double_pendulum", "+env.wrappers.first_step._target_=first_step.FirstStep")
FILE = "HYDRL_FIRST_STEP"  # the variable that first_step.py reads
LIMIT = 120.0  # seconds after which a run that has not stepped has failed


def start_seconds(checkout: Path) -> float:
    """Starts ``train.py`` of a checkout in a new process and waits for its first environment step.

    Raises:
        RuntimeError: if the run ends before, with what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "first_step"
        paths = os.pathsep.join([str(checkout / "src"), str(HERE)])
        command = [sys.executable, "train.py", *WORDS, f"hydra.run.dir={folder}/run"]
        environment = os.environ | {"PYTHONPATH": paths, FILE: str(file)}
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            while not (text := file.read_text() if file.exists() else ""):
                if process.poll() is not None or time.monotonic() - began > LIMIT:
                    process.kill()
                    raise RuntimeError(f"{checkout}: no step: {process.communicate()[1].decode()}")
                time.sleep(0.05)  # the file has the time
            process.kill()
        return float(text) - began


def summarise(seconds: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """One row a checkout: median, least and most seconds, and the median ratio to the first checkout."""
    base = next(iter(seconds.values()))
    return [
        {
            "checkout": name,
            "seconds": statistics.median(rounds),
            "least": min(rounds),
            "most": max(rounds),
            "ratio": statistics.median(own / other for own, other in zip(rounds, base, strict=True)),
        }
        for name, rounds in seconds.items()
    ]


def measure(checkouts: Sequence[Path], repeats: int) -> list[dict[str, Any]]:
    """Starts each checkout in turn, ``repeats`` times after one unmeasured round, and summarises."""
    seconds: dict[str, list[float]] = {str(checkout): [] for checkout in checkouts}
    for number in range(repeats + 1):
        for checkout in checkouts:
            elapsed = start_seconds(checkout)
            if number:  # the first round fills the system's cache of files
                seconds[str(checkout)].append(elapsed)
                print(f"round {number} of {repeats}: {checkout}, {elapsed:.2f} s", flush=True)
    return summarise(seconds)
