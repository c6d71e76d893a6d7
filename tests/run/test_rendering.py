import os
import subprocess
import sys

import pytest

from hydrl.errors import UserError
from hydrl.run import rendering

NAMES = ("MUJOCO_GL", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT")


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("egl", "chosen"), [(True, "egl"), (False, None)])
def test_mujoco_renders_through_egl_where_there_is_one(egl, chosen, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(rendering, "find_library", lambda name: "libEGL.so.1" if egl else None)
    rendering.prepare()
    assert os.environ.get("MUJOCO_GL") == chosen
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    rendering.prepare()
    assert (os.environ["MUJOCO_GL"], os.environ["SDL_VIDEODRIVER"]) == ("osmesa", "x11")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"video=true: PyAV is not .*\. Run pip install 'hydrl\[video\]'"):
        rendering.prepare()


@pytest.mark.slow
def test_a_missing_libegl_is_named(tmp_path):
    code = """
import os
from hydrl.run import headless
headless.find_library = lambda name: None
headless.prepare()
from functools import partial
from hydrl.envs import gymnasium_env, make_env
from hydrl.run.video import render_rgb
env = make_env(partial(gymnasium_env, "Hopper-v5"), (), render="rgb_array")
env.reset()
render_rgb(env)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: video=true: Hopper-v5 cannot be rendered: " in done.stderr
    assert "on Debian and Ubuntu: apt install libegl1" in done.stderr.splitlines()[-1]
