import errno

import pytest

from hydrl.errors import RunError
from hydrl.run.files import atomically


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


@pytest.mark.parametrize("reason", ["No space left on device", "Is a directory", "No such file or directory"])
def test_what_cannot_be_written_is_told_in_a_line(tmp_path, reason):
    path = tmp_path / ("gone/scores.json" if reason.startswith("No such") else "scores.json")
    if reason.startswith("Is"):
        path.mkdir()
    with pytest.raises(RunError) as caught:
        write(path, OSError(errno.ENOSPC, reason) if reason.startswith("No space") else None)
    assert str(caught.value) == f"{path} cannot be written: {reason}"
    assert [each for each in tmp_path.iterdir() if each != path] == []
