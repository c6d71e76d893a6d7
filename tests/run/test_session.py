import time

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydrl.run import Session
from hydrl.run.session import process_age


@pytest.mark.parametrize(("mode", "shared"), [(RunMode.RUN, False), (RunMode.MULTIRUN, True), (None, False)])
def test_a_job_began_with_its_process_unless_a_sweep_shares_one_process(mode, shared, monkeypatch):
    cfg = None if mode is None else OmegaConf.create({"hydra": {"mode": mode}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    now, age = time.monotonic(), process_age()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert Session.of_job().began == now if shared else Session.of_job().began <= now - age < now


def test_a_wall_clock_that_is_set_back_changes_no_age(monkeypatch):
    before = process_age()
    wall = iter([1_000_000.0, -1_000_000.0] * 4)
    monkeypatch.setattr(time, "time", lambda: next(wall))
    assert 0 < before <= process_age() < before + 100_000  # however long the tests take
