import os
import subprocess
import sys

import pytest

from hydrl.errors import UserError
from hydrl.run import headless

NAMES = ("MUJOCO_GL", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT")


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("egl", "chosen"), [(True, "egl"), (False, None)])
def test_mujoco_renders_through_egl_where_there_is_one(egl, chosen, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(headless, "has_egl", lambda: egl)
    headless.prepare()
    assert os.environ.get("MUJOCO_GL") == chosen
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    headless.prepare()
    assert (os.environ["MUJOCO_GL"], os.environ["SDL_VIDEODRIVER"]) == ("osmesa", "x11")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(headless, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"PyAV, which is not installed: pip install -e '\.\[video\]'"):
        headless.prepare()


def test_a_choice_mujoco_refuses_is_told(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "paper")
    code = "from hydrl import headless; headless.prepare()"  # MuJoCo looks at it once in a process
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: MUJOCO_GL=paper: MuJoCo cannot load it: invalid value" in done.stderr


def test_a_missing_libegl_is_named(monkeypatch):
    error = AttributeError("'NoneType' object has no attribute 'eglQueryString'")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(headless, "has_egl", lambda: False)
    assert "apt install libegl1" in headless.explain(error)
    monkeypatch.setattr(headless, "has_egl", lambda: True)
    assert headless.explain(error) == str(error)
