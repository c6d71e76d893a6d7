import time

import pytest
import torch

from hydrl.training.timers import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_clock_of_a_resumed_run_goes_on(now):
    first = Clock(began=90.0)
    first.start_loop()
    with first.timeit("time/collect"):
        now[0] += 6
    now[0] += 2
    state = first.state_dict()
    assert state == {"elapsed": 18, "in_loop": 8, "activities": {"time/collect": 6}}

    now[0] = 1_000.0
    resumed = Clock(began=1_000.0)
    resumed.start_loop()
    resumed.load_state_dict(state)
    with resumed.timeit("time/collect"), resumed.timeit("time/evaluate"):
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
    wall = iter([1_000_000.0, -1_000_000.0] * 4)
    monkeypatch.setattr(time, "time", lambda: next(wall))
    run = Clock(began=90.0)
    with run.timeit("time/collect"):
        now[0] += 6
    assert run.activities == {"time/collect": 6}


def test_compiling_is_counted():
    before = Clock(began=0.0)
    assert "time/compile" not in before.activities
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))
    assert before.activities["time/compile"] > 0
    before.start_loop()
    assert before.summary(frames=0)["learning_seconds"] == 0  # of an update that was interrupted
    assert "time/compile" not in Clock(began=0.0).activities  # of the next member of a sweep
