import sys
import warnings

import pytest
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

from hydrl import library_setup
from hydrl.errors import warn_once


@pytest.mark.parametrize("installed", [True, False])
def test_a_missing_pandas_is_remembered_and_one_that_is_there_is_left_alone(monkeypatch, installed):
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(library_setup, "find_spec", lambda name: object() if installed else None)
    library_setup.remember_missing_packages()
    assert ("pandas" in sys.modules) != installed
    if not installed:
        with pytest.raises(ModuleNotFoundError):
            import pandas  # noqa: F401
    monkeypatch.delitem(sys.modules, "pandas", raising=False)


def test_a_line_is_told_once(capsys):
    for text in ("of one", "of one", "of another"):
        warn_once(text)
    assert capsys.readouterr().err == "warning: of one\nwarning: of another\n"


def test_mujoco_warns_through_python_and_not_of_gymnasium_s_own_file(recwarn):
    library_setup.warn_of_mujoco("settotalmass is deprecated")
    assert not recwarn.list
    with pytest.warns(UserWarning, match="^MuJoCo: nearly singular inertia$"):
        library_setup.warn_of_mujoco("nearly singular inertia")


@pytest.mark.parametrize("quiet", [True, False])
def test_random_frames_that_do_not_divide_into_batches_give_no_warning(quiet):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if quiet:
            library_setup.quieten_libraries()
        collector = Collector(
            GymEnv("CartPole-v1"), None, frames_per_batch=2, total_frames=4, init_random_frames=3
        )
        collector.shutdown()
    assert any("init_random_frames (3)" in str(warning.message) for warning in caught) != quiet
