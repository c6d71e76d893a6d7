"""What a run leaves of its command, and what a refused one does not."""

import sys
from collections.abc import Callable

import hydra
import pytest
from omegaconf import OmegaConf

import train
from hydrl.config import CONFIGS, command_line
from hydrl.errors import RunError, UserError


@pytest.fixture
def started(tmp_path, monkeypatch) -> Callable[..., int]:
    """``python train.py seed=N`` in this process with a stand-in for ``train``; gives the exit code."""
    main = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(
        train.main.__wrapped__
    )
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets

    def call(seed: int, error: Exception | None = None) -> int:
        def stand_in(*_: object) -> None:
            assert (tmp_path / ".hydra" / "overrides.yaml").is_file()
            if error:
                raise error

        monkeypatch.setattr(train, "train", stand_in)
        monkeypatch.setattr(sys, "argv", ["train.py", f"seed={seed}", f"hydra.run.dir={tmp_path}"])
        return command_line.run(main)

    return call


def test_a_run_that_is_refused_once_its_environment_is_there_leaves_nothing(started, tmp_path):
    assert started(1, UserError("refused")) == 2
    assert list(tmp_path.iterdir()) == []
    assert started(1, RunError("failed")) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [".hydra", ".lock"]
    (tmp_path / "config_resolved.yaml").touch()  # it has begun
    assert started(1, UserError("refused")) == 2
    assert (tmp_path / ".hydra" / "overrides.yaml").is_file()


def test_the_command_is_replaced_whole(started, tmp_path, monkeypatch):
    file, save = tmp_path / ".hydra" / "overrides.yaml", OmegaConf.save
    assert started(1) == 0
    (tmp_path / "config_resolved.yaml").touch()

    def die(config: object, f: object) -> None:
        save(config, f)
        if "overrides" in str(f):
            raise KeyboardInterrupt

    monkeypatch.setattr(OmegaConf, "save", die)
    assert started(2) == 130
    assert file.read_text() == "- seed=1\n"
    assert len(list(file.parent.iterdir())) == 3
