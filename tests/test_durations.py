import durations
import pytest
from conftest import ROOT

TWO = """
import pytest

def test_fast():
    assert sum(range(1_000)) == 499_500

@pytest.mark.slow
def test_slow():
    assert sum(range(1_000)) == 499_500
"""


def test_a_fast_test_that_takes_too_long_fails_and_a_slow_one_does_not(pytester, monkeypatch):
    import conftest

    pytester.makepyfile(test_two=TWO)
    plugin = type("Guard", (), {name: staticmethod(getattr(conftest, name)) for name in HOOKS})
    for limit, errors in ((20, 0), (-1, 1)):
        monkeypatch.setattr(durations, "SECONDS", limit)
        done = pytester.inline_run(plugins=[plugin()])
        reports = [each for each in done.getreports("pytest_runtest_logreport") if each.failed]
        assert [(each.nodeid, each.when) for each in reports] == errors * [
            ("test_two.py::test_fast", "teardown")
        ]
        assert done.ret == errors


HOOKS = ["pytest_runtest_setup", "pytest_runtest_makereport"]


def test_one_that_is_listed_may_take_as_long_as_is_said_there(monkeypatch):
    monkeypatch.setitem(durations.LONGER, "tests/test_a.py::test_b", (40, "a reason"))
    assert durations.too_long("tests/test_a.py::test_b[0]", 39.9) is None
    assert durations.too_long("tests/test_a.py::test_c", 19.9) is None
    said = "test_b[0] took 41 s of processor time and may take 40: shorten it, mark it slow, or say in"
    assert said in durations.too_long("tests/test_a.py::test_b[0]", 41)


@pytest.mark.parametrize("test", durations.LONGER)
def test_a_test_that_is_listed_is_there(test):
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
