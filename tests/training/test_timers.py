import time

import pytest
import torch

from hydrl.training import timers
from hydrl.training.timers import Clock, timeit


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(timers, "_process_began", [90.0])
    return now


def test_the_first_run_began_with_the_process_and_a_later_member_of_a_sweep_with_itself(now):
    assert Clock().elapsed == 10
    now[0] = 150.0
    assert Clock().elapsed == 0


def test_the_clock_of_a_resumed_run_goes_on(now):
    first = Clock()
    first.start_loop()
    with timeit("time/collect"):
        now[0] += 6
    now[0] += 2
    state = first.state_dict()
    assert state == {"elapsed": 18, "in_loop": 8, "activities": {"time/collect": 6}}

    now[0] = 1_000.0
    resumed = Clock()
    resumed.start_loop()
    resumed.load_state_dict(state)
    with timeit("time/collect"), timeit("time/evaluate"):
        now[0] += 2
    assert (resumed.elapsed, resumed.in_loop) == (20, 10)
    assert resumed.metrics(frames=50) == {
        "time/collect": 0.8,
        "time/evaluate": 0.2,
        "time/elapsed": 20,
        "time/frames_per_second": 5,
    }
    summary = resumed.summary(frames=50)
    assert (summary["wall_seconds"], summary["start_seconds"], summary["learning_seconds"]) == (20, 10, 8)
    assert summary["overhead_share"] == 1 - 8 / 20


def test_a_wall_clock_that_is_set_back_changes_no_duration(now, monkeypatch):
    before = timers.process_age()
    wall = iter([1_000_000.0, -1_000_000.0] * 4)
    monkeypatch.setattr(time, "time", lambda: next(wall))
    assert 0 < before <= timers.process_age() < before + 100_000  # however long the tests take
    run = Clock()
    with timeit("time/collect"):
        now[0] += 6
    assert run.activities == {"time/collect": 6}


def test_compiling_is_counted():
    before = Clock()
    assert "time/compile" not in before.activities
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))
    assert before.activities["time/compile"] > 0
    assert "time/compile" not in Clock().activities  # of the next member of a sweep
