"""Checkpoint folders: whole or not there, read through before they are trusted, and never run."""

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from hydrl.errors import SaveError, UserError
from hydrl.run import checkpoint

STATES = {
    "actor": {"weight": torch.arange(6.0).reshape(2, 3)},
    "normaliser": {"0": {"loc": torch.tensor([1.0, 2.0])}},
    "buffer": {"count": 3, "data": {"action": torch.tensor([1, 2, 3])}},
}


def save(run: Path, frames: int, score: float | None = None, keep: int = 3) -> Path:
    metadata = {"frames": frames} | ({} if score is None else {"eval/return_mean": score})
    return checkpoint.save(run, STATES, metadata, keep=keep)


def names(run: Path) -> list[int]:
    return [checkpoint.frames_of(folder) for folder in checkpoint.folders(run)]


def test_what_was_written_comes_back_with_its_metadata(tmp_path):
    folder = save(tmp_path, 32_768, score=1.5)
    assert folder.name == "checkpoint-000000032768"
    assert checkpoint.verify(folder) == {"frames": 32_768, "eval/return_mean": 1.5}
    found = checkpoint.load(folder, list(STATES))
    assert torch.equal(found["actor"]["weight"], STATES["actor"]["weight"])
    assert torch.equal(found["buffer"]["data"]["action"], torch.tensor([1, 2, 3]))
    policy = checkpoint.load_policy(folder, "cpu")
    assert policy["frames"] == 32_768
    assert torch.equal(policy["normaliser"]["0"]["loc"], torch.tensor([1.0, 2.0]))


def test_the_inventory_has_size_and_checksum_of_every_file(tmp_path):
    folder = save(tmp_path, 10)
    files = json.loads((folder / "inventory.json").read_text())
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(files) == there - {"inventory.json"}
    weights = "components/0000-actor/state.pt"
    assert files[weights]["bytes"] == (folder / weights).stat().st_size
    digest = subprocess.run(["sha256sum", folder / weights], capture_output=True, text=True, check=True)
    assert files[weights]["sha256"] == digest.stdout.split()[0]


def test_the_newest_and_the_best_stay(tmp_path):
    for frames, score in [(10, 1.0), (20, 5.0), (30, None), (40, 2.0), (50, None)]:
        save(tmp_path, frames, score, keep=2)
    assert names(tmp_path) == [50, 40, 20]
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "best")) == 20
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "last")) == 50
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "40")) == 40
    with pytest.raises(UserError, match="checkpoint=30: there is none; use best, last or one of 20, 40, 50"):
        checkpoint.find(tmp_path, "30")


def test_a_damaged_best_is_passed_over_with_a_word(tmp_path, capsys):
    save(tmp_path, 10, score=1.0)
    best = save(tmp_path, 20, score=5.0)
    (best / "manifest.json").write_text("{}")
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "best")) == 10
    assert (
        capsys.readouterr().out
        == f"warning: {best} is damaged: manifest.json is not as it was written; " + ("passing over it\n")
    )


def test_a_course_that_was_left_goes_with_the_first_checkpoint_of_the_new_one(tmp_path):
    for frames in (10, 20, 30, 40):
        save(tmp_path, frames)
    save(tmp_path, 25)  # resumed from 20
    assert names(tmp_path) == [25, 20]


def test_the_same_frames_again_take_the_place_of_the_old(tmp_path):
    save(tmp_path, 10, score=1.0)
    save(tmp_path, 10, score=2.0)
    assert checkpoint.verify(checkpoint.find(tmp_path, "10"))["eval/return_mean"] == 2.0
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000000000010"]


def test_any_flipped_byte_and_any_cut_is_refused_and_the_one_before_taken(tmp_path, capsys):
    """Every file; the first, the last and a byte in between, each flipped in one bit and cut off there."""
    older = save(tmp_path, 10)
    newer = save(tmp_path, 20)
    files = [path for path in newer.rglob("*") if path.is_file()]
    assert len(files) == 5
    for path in files:
        whole = path.read_bytes()
        for position in (0, len(whole) // 2, len(whole) - 1):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << position % 8
            for damaged in (bytes(flipped), whole[:position]):
                path.write_bytes(damaged)
                assert checkpoint.newest(tmp_path) == older, (path, position)
                lines = capsys.readouterr().out.splitlines()
                assert len(lines) == 1
                assert str(newer) in lines[0]
        path.write_bytes(whole)
    assert checkpoint.newest(tmp_path) == newer


def test_a_missing_and_an_added_file_are_refused(tmp_path):
    folder = save(tmp_path, 10)
    (folder / "components/0000-actor/state.pt").unlink()
    with pytest.raises(UserError, match=r"damaged: components/0000-actor/state\.pt"):
        checkpoint.verify(folder)
    folder = save(tmp_path, 20)
    (folder / "components/0000-actor/more.pkl").write_bytes(b"")
    with pytest.raises(UserError, match=r"damaged: components/0000-actor/more\.pkl"):
        checkpoint.verify(folder)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_too_little_room_is_said_before_anything_is_written(small_disk):
    with pytest.raises(SaveError, match=r"it needs 1\.0 MB and 0\.3 MB were free"):
        save(small_disk, 10)
    assert list((small_disk / "checkpoints").iterdir()) == []


def test_a_disk_that_fills_up_in_the_middle_of_a_save_leaves_the_checkpoint_before(small_disk, monkeypatch):
    monkeypatch.setattr(checkpoint, "HEADROOM", 0)
    older = save(small_disk, 10)
    room = shutil.disk_usage(small_disk).free // 4 - 100  # for the numbers, and not for what is around them
    with pytest.raises(SaveError, match=r"cannot be written: it needs 0\.3 MB and 0\.3 MB were free"):
        checkpoint.save(small_disk, {"buffer": {"data": torch.zeros(room)}}, {"frames": 20}, keep=3)
    assert checkpoint.newest(small_disk) == older
    assert [path.name for path in (small_disk / "checkpoints").iterdir()] == [older.name]


def test_a_write_that_fails_for_another_reason_says_it(tmp_path, monkeypatch):
    save(tmp_path, 10)

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint.os, "fsync", broken)
    with pytest.raises(SaveError, match="Input/output error; what was saved before is whole"):
        save(tmp_path, 20)
    assert names(tmp_path) == [10]


def test_what_a_kill_left_is_swept_away(tmp_path):
    save(tmp_path, 10)
    half = tmp_path / "checkpoints" / ".stage-checkpoint-000000000020-1"
    half.mkdir()
    (half / "manifest.json").write_text("{")
    assert names(tmp_path) == [10]
    checkpoint.sweep(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000000000010"]


class Planted:
    """Runs when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (self.canary.write_text, ("ran",))


def seal(folder: Path) -> None:
    """As an attacker would: the checksums fit."""
    (folder / "inventory.json").write_text(checkpoint.as_text(checkpoint.inventory(folder)))


def pickled(folder, canary):
    with (folder / "components/0000-actor/state.pt").open("wb") as file:
        pickle.dump(Planted(canary), file)


def pickled_by_torch(folder, canary):
    torch.save({"weight": Planted(canary)}, folder / "components/0000-actor/state.pt", pickle_module=pickle)


def pickled_in_the_old_format(folder, canary):
    path = folder / "components/0000-actor/state.pt"
    torch.save(Planted(canary), path, pickle_module=pickle, _use_new_zipfile_serialization=False)


def pickled_beside_tensors(folder, canary):
    """TensorDict's own format keeps what is no tensor in a pickle."""
    state = folder / "components/0000-actor/state"
    state.mkdir()
    (folder / "components/0000-actor/state.pt").unlink()
    (state / "other.pickle").write_bytes(pickle.dumps(Planted(canary)))
    (state / "meta.json").write_text("{}")


def a_module_beside(folder, canary):
    (folder / "components/0000-actor/sitecustomize.py").write_text(f"open({str(canary)!r}, 'w')")


def a_whole_model(folder, canary):
    torch.save(torch.nn.Linear(1, 1), folder / "components/0000-actor/state.pt")


def a_path_that_climbs_out(folder, canary):
    torch.save({"weight": Planted(canary)}, folder.parent / "state.pt", pickle_module=pickle)
    change_manifest(folder, path="../..")


def an_absolute_path(folder, canary):
    torch.save({"weight": Planted(canary)}, folder.parent / "state.pt", pickle_module=pickle)
    change_manifest(folder, path=str(folder.parent))


def a_foreign_adapter(folder, canary):
    change_manifest(folder, adapter="torchrl.dump_load")


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["components"]["actor"] |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


def a_file_that_is_a_link(folder, canary):
    path = folder / "components/0000-actor/state.pt"
    outside = folder.parents[1] / "outside.pt"
    shutil.move(path, outside)
    path.symlink_to(outside)


def a_folder_that_is_a_link(folder, canary):
    path = folder / "components/0000-actor"
    outside = folder.parents[1] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def a_pipe(folder, canary):
    path = folder / "components/0000-actor/state.pt"
    path.unlink()
    os.mkfifo(path)


def frames_of_another(folder, canary):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["metadata"]["frames"] = 11
    (folder / "manifest.json").write_text(json.dumps(manifest))


def no_json(folder, canary):
    (folder / "manifest.json").write_text("[" * 100_000)


HOSTILE = [
    pickled,
    pickled_by_torch,
    pickled_in_the_old_format,
    pickled_beside_tensors,
    a_module_beside,
    a_whole_model,
    a_path_that_climbs_out,
    an_absolute_path,
    a_foreign_adapter,
    a_file_that_is_a_link,
    a_folder_that_is_a_link,
    a_pipe,
    frames_of_another,
    no_json,
]


@pytest.mark.parametrize("plant", HOSTILE, ids=lambda plant: plant.__name__)
def test_a_hostile_checkpoint_is_refused_in_a_line_and_runs_nothing(plant, tmp_path):
    folder = save(tmp_path, 10)
    canary = tmp_path / "canary"
    plant(folder, canary)
    if plant not in (a_file_that_is_a_link, a_folder_that_is_a_link, a_pipe):
        seal(folder)
    with pytest.raises(UserError, match=r"10: |10 is damaged") as refused:
        checkpoint.load_policy(checkpoint.find(tmp_path, "10"), "cpu")
    assert "\n" not in str(refused.value)
    assert not canary.exists()


def test_a_checkpoint_that_is_itself_a_link_is_refused(tmp_path):
    folder = save(tmp_path / "elsewhere", 10)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / folder.name).symlink_to(folder)
    with pytest.raises(UserError, match="is a link"):
        checkpoint.find(tmp_path, "10")
