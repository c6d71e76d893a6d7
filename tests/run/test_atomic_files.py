import errno

import pytest

from hydrl.errors import RunError, SaveError
from hydrl.run.atomic_files import atomically


def write(path, error=None):
    with atomically(path) as partial:
        partial.write_text("new")
        if error:
            raise error


def test_the_file_appears_at_the_end_and_nothing_stays_beside_it(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with atomically(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
        assert partial.parent == tmp_path  # renaming works within a file system only
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write(path, KeyboardInterrupt())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_a_folder_that_is_gone_its_name_is_told(tmp_path):
    path = tmp_path / "gone" / "too" / "scores.json"
    with pytest.raises(RunError) as caught:
        write(path, None)
    assert str(caught.value) == f"{path} cannot be written: {tmp_path / 'gone'} is gone, deleted or moved"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reason", ["No space left on device", "Is a directory"])
def test_what_cannot_be_written_is_told_in_a_line(tmp_path, reason):
    path = tmp_path / "scores.json"
    if reason.startswith("Is"):
        path.mkdir()
    with pytest.raises(SaveError) as caught:
        write(path, OSError(errno.ENOSPC, reason) if reason.startswith("No space") else None)
    earlier = "; what was saved before is whole" if path.exists() else ""
    assert str(caught.value) == f"{path} cannot be written: {reason}{earlier}"
    assert [each for each in tmp_path.iterdir() if each != path] == []


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at inline_container.cc:671] . unexpected pos 9664 vs 9616",
        "basic_ios::clear: iostream error",
        "PytorchStreamWriter failed writing file data/3: file write failed",
    ],
)
def test_a_write_of_pytorch_s_that_does_not_say_why_it_failed_is_told_too(tmp_path, text):
    with pytest.raises(SaveError, match="PyTorch could not write it, as on a full disk"):
        write(tmp_path / "scores.json", RuntimeError(text))
    with pytest.raises(RuntimeError, match=r"^a defect$"):
        write(tmp_path / "scores.json", RuntimeError("a defect"))
    assert list(tmp_path.iterdir()) == []
