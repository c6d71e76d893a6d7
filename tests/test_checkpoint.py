import pickle

import pytest
import torch
from torch import nn

from hydrl import checkpoint
from hydrl.errors import UserError


def test_networks_normaliser_and_frames_come_back(tmp_path):
    actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
    normaliser = {"0": {"loc": torch.tensor([1.0, 2.0]), "scale": torch.tensor([3.0, 4.0])}}
    path = tmp_path / "checkpoints" / "last.pt"
    checkpoint.save_policy(path, actor=actor, critic=critic, normaliser=normaliser, frames=1234)

    state = checkpoint.load_policy(path, "cpu")
    assert torch.equal(state["actor"]["weight"], actor.weight)
    assert torch.equal(state["critic"]["bias"], critic.bias)
    assert torch.equal(state["normaliser"]["0"]["scale"], torch.tensor([3.0, 4.0]))
    assert state["frames"] == 1234


def test_a_failed_write_leaves_the_old_file_and_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    checkpoint.save_policy(path, actor=nn.Linear(1, 1), critic=None, normaliser={}, frames=1)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save_policy(path, actor=nn.Linear(1, 1), critic=None, normaliser={}, frames=2)
    assert checkpoint.load_policy(path, "cpu")["frames"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_a_missing_or_broken_file_is_told_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"none\.pt does not exist"):
        checkpoint.load_policy(tmp_path / "none.pt", "cpu")
    (tmp_path / "broken.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"broken\.pt is not a readable policy"):
        checkpoint.load_policy(tmp_path / "broken.pt", "cpu")


def test_code_planted_in_a_file_does_not_run(tmp_path):
    canary = tmp_path / "canary"

    class Planted:
        def __reduce__(self):
            return (canary.write_text, ("ran",))

    torch.save({"actor": Planted()}, tmp_path / "planted.pt", pickle_module=pickle)
    with pytest.raises(UserError, match="not a readable policy"):
        checkpoint.load_policy(tmp_path / "planted.pt", "cpu")
    assert not canary.exists()
