import pytest

from tests import slow

THREE = """
import pytest

@pytest.mark.parametrize("what", ["a b", "b"])
def test_passes(what):
    assert what

def test_fails():
    assert 0

def test_is_skipped():
    pytest.skip()
"""


def test_what_passed_is_written_down_and_not_run_again(pytester):
    record, file = pytester.path / "record", pytester.makepyfile(test_three=THREE)
    for _ in range(2):  # the second adds to it
        pytester.inline_run(file, plugins=[slow.Passed(record)])
    passed, failed = (
        ["test_three.py::test_passes[a b]", "test_three.py::test_passes[b]"],
        "test_three.py::test_fails",
    )
    assert record.read_text().splitlines() == 2 * passed
    parts = {"test_three": [*passed, failed], "test_other": passed}
    assert slow.left(parts, set(passed), cores=2) == {"test_three": ([failed], 1 / 4)}


def test_how_long_it_takes_is_said_for_the_cores_there_are(monkeypatch):
    monkeypatch.setattr(slow, "SECONDS", {"long": 300, "short": 60})
    parts = {"long": ["one"], "short": ["one", "two", "three", "four"]}
    for cores, minutes in ((1, {"short": 4, "long": 5}), (2, {"short": 2, "long": 5})):
        found = slow.left(parts, set(), cores)
        assert list(found) == ["short", "long"]
        assert {part: each for part, (_, each) in found.items()} == minutes


@pytest.mark.parametrize("part", slow.SECONDS)
def test_a_part_whose_seconds_are_said_is_there(part):
    assert (slow.ROOT / "tests" / f"{part}.py").is_file()
