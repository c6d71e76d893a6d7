"""Shared helpers: composing the real configuration tree, and running it in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from hydrl import runtime
from hydrl.config import CONFIGS, Settings, load

ROOT = Path(__file__).resolve().parents[1]


def settings(*overrides: str, run_dir: Path | str = "unused") -> Settings:
    """The checked settings that ``python train.py *overrides`` would train with."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return load(compose("train", overrides=[f"run_dir={run_dir}", *overrides]))


runtime.quieten_libraries()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Trains in this process and returns the run folder."""
    from train import train

    def call(*overrides: str, folder: str = "run") -> Path:
        train(settings(*overrides, run_dir=tmp_path / folder))
        return tmp_path / folder

    return call
