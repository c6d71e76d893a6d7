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
    with pytest.raises(UserError, match=r"video=true needs PyAV.*: pip install -e '\.\[video\]'"):
        headless.prepare()


def test_it_asks_mujoco_without_pytorch_and_tells_a_choice_it_refuses(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "paper")  # MuJoCo looks at it once in a process
    code = "import sys; from hydrl.run import headless; print('torch' in sys.modules); headless.prepare('k')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n"
    assert "UserError: MUJOCO_GL=paper: MuJoCo cannot load it: invalid value" in done.stderr


@pytest.mark.parametrize(("egl", "told"), [(False, "apt install libegl1"), (True, "'eglQueryString'")])
def test_a_missing_libegl_is_named(egl, told, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(headless, "has_egl", lambda: egl)
    assert told in headless.explain(AttributeError("'NoneType' object has no attribute 'eglQueryString'"))
