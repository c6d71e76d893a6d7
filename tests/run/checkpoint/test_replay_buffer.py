"""Replay memories on disk: every row once, at most 2.5 times the memory, and all of it comes back."""

import pickle
import random
import re
import shutil
import zipfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictMaxValueWriter,
)

from hydrl import envs
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.checkpoint import replay_buffer
from hydrl.run.checkpoint.replay_buffer import BufferFiles
from tests.run.checkpoint.test_archive import Planted

SIZE = 1_000
ROW = 8 + 4 * 63


def rows(first: int, end: int) -> TensorDict:
    count = torch.arange(first, end)
    return TensorDict({"number": count, "next": {"wide": count[:, None].expand(-1, 63) * 2.0}}, [end - first])


def made(run: Path, storage: type = LazyTensorStorage, **options) -> BufferFiles:
    run.mkdir(exist_ok=True)
    return BufferFiles(ReplayBuffer(storage=storage(SIZE, **options)), run)


def save(kept: BufferFiles, keep: int = 3) -> Path:
    frames = kept.buffer.write_count
    metadata = {"frames": frames, "memory": kept.save()}
    archive = checkpoint.save(kept.run, {"actor": {"frames": frames}}, metadata, keep=keep)
    kept.prune()
    return archive


def on_disk(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / "checkpoints").glob("*rows-*"))


def held(kept: BufferFiles) -> list[int]:
    return kept.buffer.storage.get(slice(0, len(kept.buffer)))["number"].tolist()


def loaded(archive: Path, **options) -> BufferFiles:
    kept = made(archive.parents[1], **options)
    told = checkpoint.verify(archive, with_rows=True)["memory"]
    kept.load(told, torch.device("cpu"))
    kept.buffer.writer.load_state_dict({"_cursor": told["rows"][1] % SIZE, "_write_count": told["rows"][1]})
    return kept


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_all_rows_come_back_to_their_places_and_each_is_written_once(tmp_path, storage):
    kept, written = made(tmp_path, storage), 0
    for _ in range(13):  # past the end and round again
        kept.buffer.extend(rows(written, written + 130))
        written += 130
        archive = save(kept)
        again = loaded(archive, storage=storage)
        assert held(again) == held(kept)
        wide = again.buffer.storage.get(slice(0, len(again.buffer)))["next", "wide"]
        assert torch.equal(wide[:, 5], 2.0 * torch.tensor(held(kept)))
        spans = [checkpoint.span(name) for name in kept.files]
        assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
        assert spans[-1][1] == written
    assert all(end - begin == 130 for begin, end in spans)


def test_it_goes_on_from_what_came_back_with_the_files_that_are_there(tmp_path):
    kept = made(tmp_path)
    kept.buffer.extend(rows(0, 900))
    again = loaded(save(kept))
    again.buffer.extend(rows(900, 1_200))
    assert again.save() == {"rows": [200, 1_200], "row": [], "files": again.files}
    assert [*again.files][:1] == [*kept.files]
    assert len(again.files) == 2


def test_the_bound_holds_at_every_moment_and_two_checkpoints_can_always_be_resumed(tmp_path, monkeypatch):
    """Steps of any length; the largest sum is seen while a file is written, beside all that is kept."""
    monkeypatch.setattr(replay_buffer, "SMALL", 0)
    most, draw, before = 0.0, random.Random(3), None
    kept = made(tmp_path)
    write = torch.save

    def look(state, path):
        nonlocal most
        write(state, path)
        most = max(most, on_disk(tmp_path) / (len(kept.buffer) * ROW))

    monkeypatch.setattr(replay_buffer.torch, "save", look)
    for _ in range(60):
        first = kept.buffer.write_count
        kept.buffer.extend(rows(first, first + draw.choice([20, 100, 300, 499, 501, 700, 1_000])))
        archive = save(kept)
        checkpoint.verify(archive, with_rows=True)
        if before:
            checkpoint.verify(before, with_rows=True)
        before = archive
    assert 2.0 < most < 2.5 * 1.05  # a file has a kilobyte or two of its own


def test_an_older_checkpoint_without_its_rows_can_be_played_and_not_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_buffer, "SMALL", 0)
    kept, archives = made(tmp_path), []
    for first in range(0, 4_000, 1_000):
        kept.buffer.extend(rows(first, first + 1_000))
        archives.append(save(kept))
    assert checkpoint.archives(tmp_path) == archives[:0:-1]  # the newest three
    assert checkpoint.verify(archives[1])["frames"] == 2_000
    with pytest.raises(UserError, match=r"rows of its replay buffer are gone, .* policy can be evaluated"):
        checkpoint.verify(archives[1], with_rows=True)
    checkpoint.verify(archives[2], with_rows=True)


def test_damage_is_found_and_the_checkpoint_before_taken(tmp_path, capsys):
    kept = made(tmp_path)
    kept.buffer.extend(rows(0, 600))
    older = save(kept)
    kept.buffer.extend(rows(600, 800))
    newer = save(kept)
    file = newer.with_name([*kept.files][-1])
    whole, draw, there = file.read_bytes(), random.Random(0), checkpoint.archives(tmp_path)
    for position in (draw.randrange(len(whole)) for _ in range(100)):
        for damaged in (whole[:position], whole[:position] + b"\x00\xff" + whole[position + 2 :]):
            file.write_bytes(damaged)
            if damaged == whole:
                continue
            found, _ = next(checkpoint.readable(there, with_rows=True))
            assert found == older
    capsys.readouterr()
    file.write_bytes(whole[:9])
    assert not [*checkpoint.readable([newer, newer], with_rows=True)]  # of two that share the file
    warning = f"warning: {file} is damaged; skipping the checkpoints that need it\n"
    assert capsys.readouterr().out == warning
    file.unlink()
    found, _ = next(checkpoint.readable(there, with_rows=True))
    assert found == older
    assert "rows of its replay buffer are gone" in capsys.readouterr().out.splitlines()[-1]


def change(archive: Path, now: str, before: str) -> None:
    """Another text in the members of an archive."""
    with zipfile.ZipFile(archive) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in members.items():
            file.writestr(name, content.replace(before.encode(), now.encode()))


def test_a_pickle_among_the_rows_is_not_run(tmp_path):
    kept, canary = made(tmp_path), tmp_path / "canary"
    kept.buffer.extend(rows(0, 100))
    archive = save(kept)
    [(name, value)] = kept.files.items()
    file = archive.with_name(name)
    torch.save({"number": Planted(canary)}, file, pickle_module=pickle)
    change(archive, str(checkpoint.crc(file)), str(value))  # as an attacker would
    told = checkpoint.verify(archive, with_rows=True)["memory"]
    with pytest.raises(UserError, match="cannot be read: Weights only load failed"):
        made(tmp_path).load(told, torch.device("cpu"))
    assert not canary.exists()


def test_a_path_among_the_names_leads_nowhere(tmp_path):
    outside = tmp_path / "rows-000000000000-000000000100.pt"
    kept = made(tmp_path / "run")
    kept.buffer.extend(rows(0, 100))
    archive = save(kept)
    [name] = kept.files
    shutil.copy(archive.with_name(name), outside)
    change(archive, f"../../{name}", name)
    with pytest.raises(UserError, match="is damaged: Invalid name"):
        checkpoint.verify(archive, with_rows=True)


def test_what_no_checkpoint_needs_is_removed(tmp_path):
    kept = made(tmp_path)
    for first in range(0, 3_000, 100):
        kept.buffer.extend(rows(first, first + 100))
        save(kept, keep=1)
    assert {file.name for file in (tmp_path / "checkpoints").glob("rows-*")} == set(kept.files)
    assert on_disk(tmp_path) < 1.2 * SIZE * ROW


def test_a_buffer_filled_in_another_order_is_refused(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), writer=TensorDictMaxValueWriter())
    with pytest.raises(
        UserError, match=r"buffer\.writer=TensorDictMaxValueWriter: .* Use a RoundRobinWriter"
    ):
        BufferFiles(buffer, tmp_path)
    with pytest.raises(UserError, match=r"buffer\.storage=ListStorage: .* Use a TensorStorage"):
        BufferFiles(ReplayBuffer(storage=ListStorage(10)), tmp_path)


def test_a_buffer_that_outgrows_its_disk_is_refused_with_a_size_that_fits(run, tmp_path, monkeypatch):
    monkeypatch.setattr(replay_buffer.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000_000))
    with pytest.raises(
        UserError, match=r"^buffer.storage.max_size=1000000: .* there are 1\. Use "
    ) as refused:
        run("algo=dqn", "env=cartpole", "buffer=memmap", "buffer.storage.max_size=1_000_000")
    wanted, size = re.search(r"takes (\d+) MB of disk.*max_size=(\d+)\.$", str(refused.value)).groups()
    assert 60 < int(wanted) < 100  # two observations of four numbers, and 30 to 70 bytes of others
    assert int(size) == pytest.approx(500_000 / int(wanted), rel=0.02)
    assert not (tmp_path / "run/replay").exists()


def test_what_a_memory_has_on_the_disk_already_is_its_own_room(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_buffer.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000))
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay/a.memmap").write_bytes(bytes([1]) * 8_192)
    assert replay_buffer.room_on_disk(str(tmp_path / "replay")) == 9_192


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^buffer.storage.scratch_dir=.*/file/in: cannot be made: Not a dir"):
        replay_buffer.room_on_disk(f"{tmp_path}/file/in/")


def test_a_buffer_that_outgrows_the_memory_is_refused_with_a_size_that_fits(run, tmp_path):
    with pytest.raises(UserError, match=r"^buffer.storage.max_size=10{12}: .* or buffer=memmap") as refused:
        run("algo=dqn", "env=cartpole", f"buffer.storage.max_size={10**12}")
    assert not (tmp_path / "run/config_resolved.yaml").exists()
    there = psutil.virtual_memory().total + psutil.swap_memory().total
    row = replay_buffer.row_bytes(envs.make_env(partial(envs.gymnasium_env, "CartPole-v1"), ()))
    (size,) = re.findall(r"Use buffer.storage.max_size=(\d+)", str(refused.value))
    assert there / 4 < int(size) * row < there
