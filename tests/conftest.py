"""Shared helpers: composing the real configuration tree, and running it in this process."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from hydrl.config import CONFIGS
from hydrl.config.settings import Settings, load
from hydrl.parts.losses import make_loss
from hydrl.run import checkpoint, process
from hydrl.run.memory import read

ROOT = Path(__file__).resolve().parents[1]


def settings(*overrides: str, run_dir: Path | str = "unused") -> Settings:
    """The checked settings that ``python train.py *overrides`` would train with."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return load(compose("train", overrides=[f"run_dir={run_dir}", *overrides]))


def loss_of(chosen: Settings, env: Any, **parts: Any) -> Any:
    """The configured loss over ``parts``; ``env`` or an action spec says how it acts."""
    given, spec = chosen.loss, getattr(env, "action_spec_unbatched", env)
    there = {name: each for name, each in parts.items() if each is not None}
    return make_loss(chosen.build("loss"), there, spec, given.networks, given.keys, given.value_estimator)


def needs_vmas() -> None:
    """Skips a test where VMAS is not installed; importing it takes seconds."""
    if importlib.util.find_spec("vmas") is None:
        pytest.skip("needs pip install -e '.[vmas]'")


def start(*arguments: str, script: str = "train.py", **options: Any) -> subprocess.Popen[str]:
    """``python train.py`` or another script as a user starts it, its output in one stream."""
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def saved(folder: Path, part: str, which: str = "last") -> Any:
    """One part of a checkpoint of the run in ``folder``; of the buffer, its rows from the oldest on."""
    archive = checkpoint.find(folder, which)
    if part != "buffer":
        return checkpoint.load(archive, [part])[part]
    told = checkpoint.verify(archive, memory=True)["memory"]
    return torch.cat([rows for _, rows in read(archive.parent, told)]).to_dict()


process.quieten_libraries()
# Under nohup or in a shell's background some are ignored, and so would be what tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Trains in this process and returns the run folder."""
    from hydrl.run.resume import origin
    from train import train

    def call(*overrides: str, folder: str = "run") -> Path:
        chosen = settings(*overrides, run_dir=tmp_path / folder)
        train(chosen, origin(chosen))
        return tmp_path / folder

    return call
