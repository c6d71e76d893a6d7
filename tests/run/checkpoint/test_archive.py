"""Checkpoints: whole or not there, read through before they are trusted, and never run."""

import json
import pickle
import random
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from hydrl.errors import RunError, SaveError, UserError
from hydrl.run import atomic_files
from hydrl.run.checkpoint import archive as checkpoint

STATES = {
    "actor": {"weight": torch.arange(6.0).reshape(2, 3)},
    "normaliser": {"0": {"loc": torch.tensor([1.0, 2.0])}},
    "optimizer": {"step": 3, "groups": [{"lr": 0.5}]},
}
NOTHING = {"rows": [0, 0], "files": {}}


def save(run: Path, frames: int, score: float | None = None, keep: int = 3) -> Path:
    metadata = {"frames": frames, "memory": NOTHING} | ({} if score is None else {"eval/return_mean": score})
    return checkpoint.save(run, STATES, metadata, keep=keep)


def names(run: Path) -> list[int]:
    return [checkpoint.frames_of(archive) for archive in checkpoint.archives(run)]


def inside(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_what_was_written_comes_back_with_its_metadata(tmp_path):
    archive = save(tmp_path, 32_768, score=1.5)
    assert inside(tmp_path) == ["checkpoint-000000032768.torchrl"]
    assert checkpoint.verify(archive) == {"frames": 32_768, "memory": NOTHING, "eval/return_mean": 1.5}
    found = checkpoint.load(archive, list(STATES))
    assert torch.equal(found["actor"]["weight"], STATES["actor"]["weight"])
    assert found["optimizer"] == {"step": 3, "groups": [{"lr": 0.5}]}
    assert torch.equal(found["normaliser"]["0"]["loc"], torch.tensor([1.0, 2.0]))


def test_the_newest_and_the_best_stay(tmp_path):
    for frames, score in [(10, 1.0), (20, 5.0), (30, None), (40, 2.0), (50, None)]:
        save(tmp_path, frames, score, keep=2)
    assert names(tmp_path) == [50, 40, 20]
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "best")) == 20
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "last")) == 50
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "40")) == 40
    with pytest.raises(UserError, match=r"checkpoint=30: no such .*\. Use one of best, last, 20, 40, 50\."):
        checkpoint.find(tmp_path, "30")


@pytest.mark.parametrize(
    ("status", "frames", "best"), [("finished", 20, 20), ("finished", 30, 10), ("interrupted", 20, 10)]
)
def test_a_finished_run_s_closing_evaluation_is_its_last_checkpoint_s(status, frames, best, tmp_path):
    save(tmp_path, 10, score=5.0)
    save(tmp_path, 20, score=2.0)
    told = {"status": status, "frames": frames, "eval/return_mean": 7.0}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "best")) == best


def test_a_damaged_best_is_passed_over_with_a_word(tmp_path, capsys):
    save(tmp_path, 10, score=1.0)
    best = save(tmp_path, 20, score=5.0)
    best.write_bytes(best.read_bytes().replace(b"weight", b"weighs"))
    assert checkpoint.frames_of(checkpoint.find(tmp_path, "best")) == 10
    assert (
        capsys.readouterr().out == f"warning: {best} is damaged: it is not as it was written; skipping it\n"
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
    assert inside(tmp_path) == ["checkpoint-000000000010.torchrl"]


def test_any_flipped_byte_is_found_or_changes_nothing_and_any_cut_is_found(tmp_path, capsys):
    """Three hundred of each at random: what is not refused gives the very numbers that were saved."""
    older, newer = save(tmp_path, 10), save(tmp_path, 20)
    whole, draw, harmless = newer.read_bytes(), random.Random(0), 0
    metadata = checkpoint.verify(newer)
    for position in (draw.randrange(len(whole)) for _ in range(300)):
        newer.write_bytes(whole[:position])
        assert checkpoint.find(tmp_path, "last") == older, position
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        newer.write_bytes(flipped)
        if checkpoint.find(tmp_path, "last") == newer:
            harmless += 1
            assert checkpoint.verify(newer) == metadata
            found = checkpoint.load(newer, list(STATES))
            assert torch.equal(found["actor"]["weight"], STATES["actor"]["weight"])
            assert found["optimizer"] == STATES["optimizer"]
    assert harmless < 30  # such as the time of a member of the archive
    assert len(capsys.readouterr().out.splitlines()) == 600 - harmless


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


def test_a_disk_that_fills_up_in_the_middle_of_a_save_leaves_the_checkpoint_before(small_disk):
    older = save(small_disk, 10)
    states, metadata = {"actor": {"weight": torch.zeros(50_000)}}, {"frames": 20, "memory": NOTHING}
    with pytest.raises(SaveError, match=r"cannot be written: it needs 0\.4 MB and 0\.3 MB were free"):
        checkpoint.save(small_disk, states, metadata, keep=3)
    assert checkpoint.find(small_disk, "last") == older
    assert inside(small_disk) == [older.name]


def test_a_write_that_fails_for_another_reason_says_it(tmp_path, monkeypatch):
    save(tmp_path, 10)

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(atomic_files.os, "fsync", broken)
    with pytest.raises(SaveError, match="Input/output error; what was saved before is whole"):
        save(tmp_path, 20)
    assert inside(tmp_path) == ["checkpoint-000000000010.torchrl"]


def test_a_run_folder_that_was_removed_is_not_made_again(tmp_path):
    with pytest.raises(RunError, match=r"cannot be written: .*gone is gone, deleted or moved$"):
        save(tmp_path / "gone", 10)
    assert not (tmp_path / "gone").exists()


def test_what_a_kill_left_goes_with_the_next_checkpoint(tmp_path):
    save(tmp_path, 10)
    half = tmp_path / "checkpoints" / "..checkpoint-000000000020.torchrl.stage-1"
    half.mkdir()
    (half / "manifest.json").write_text("{")
    assert names(tmp_path) == [10]
    save(tmp_path, 20)
    assert inside(tmp_path) == ["checkpoint-000000000010.torchrl", "checkpoint-000000000020.torchrl"]


class Planted:
    """Runs when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (self.canary.write_text, ("ran",))


WEIGHTS = Path("components/0000-actor/state.pt")


def pickled(folder, canary):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Planted(canary)))


def pickled_by_torch(folder, canary):
    torch.save({"weight": Planted(canary)}, folder / WEIGHTS, pickle_module=pickle)


def pickled_in_the_old_format(folder, canary):
    torch.save(Planted(canary), folder / WEIGHTS, pickle_module=pickle, _use_new_zipfile_serialization=False)


def a_whole_model(folder, canary):
    torch.save(torch.nn.Linear(1, 1), folder / WEIGHTS)


def pickled_beside_tensors(folder, canary):
    """TensorDict's own format keeps what is no tensor in a pickle, and TorchRL finds it by itself."""
    (folder / WEIGHTS).unlink()
    state = (folder / WEIGHTS).with_name("state")
    state.mkdir()
    (state / "other.pickle").write_bytes(pickle.dumps(Planted(canary)))
    (state / "meta.json").write_text("{}")
    change_manifest(folder, files=["state/other.pickle", "state/meta.json"])


def pickled_beside_tensors_and_not_listed(folder, canary):
    pickled_beside_tensors(folder, canary)
    change_manifest(folder, files=["state.pt"])


def a_module_beside(folder, canary):
    (folder / WEIGHTS).with_name("sitecustomize.py").write_text(f"open({str(canary)!r}, 'w')")


def a_path_that_climbs_out(folder, canary):
    change_manifest(folder, path="../..")


def an_absolute_path(folder, canary):
    change_manifest(folder, path=str(folder.parent))


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["components"]["actor"] |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


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
    a_whole_model,
    pickled_beside_tensors,
    pickled_beside_tensors_and_not_listed,
    a_module_beside,
    a_path_that_climbs_out,
    an_absolute_path,
    frames_of_another,
    no_json,
]


@pytest.mark.parametrize("plant", HOSTILE, ids=lambda plant: plant.__name__)
def test_a_hostile_checkpoint_is_refused_in_a_line_and_runs_nothing(plant, tmp_path):
    """Made as an attacker would: the archive's checksums fit."""
    archive, folder, canary = save(tmp_path, 10), tmp_path / "unpacked", tmp_path / "canary"
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    plant(folder, canary)
    shutil.make_archive(str(tmp_path / "made"), "zip", folder)
    with (
        zipfile.ZipFile(tmp_path / "made.zip") as made,
        zipfile.ZipFile(archive, "w") as file,
    ):
        for name in made.namelist():
            if not name.endswith("/"):
                file.writestr(name, made.read(name))
    with pytest.raises(UserError, match=r"10\.torchrl(: | is damaged| cannot be read)") as refused:
        checkpoint.load(checkpoint.find(tmp_path, "10"), ("actor", "normaliser"))
    assert "\n" not in str(refused.value)
    assert not canary.exists()
