"""Tasks of DeepMind's Control Suite: their steps, their pictures, and how they go on in another process."""

import os
import subprocess
import sys
import types
from ctypes.util import find_library
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import hydrl
from hydrl.envs import dm_control, gymnasium_env, make_env
from hydrl.errors import UserError
from hydrl.run.checkpoint.env_state.capture import capture, restore
from tests.conftest import ROOT, SMALL, whole_and_resumed

SWINGUP = "cartpole-swingup"
KEPT = ["cartpole-swingup", "ball_in_cup-catch", "walker-walk", "reacher-easy"]  # the last moves its target


@pytest.fixture(scope="module")
def installed() -> None:
    try:
        dm_control.load_env(SWINGUP)
    except UserError as error:
        pytest.skip(str(error))


def acted(task, steps: int, seed: int = 0):
    """What random actions lead to, from a seeded start."""
    rng, seen = np.random.default_rng(1), [task.reset(seed=seed)[0]]
    told = []
    for _ in range(steps):
        action = rng.uniform(-1, 1, task.action_space.shape).astype(np.float32)
        observation, *rest, _ = task.step(action)
        seen.append(observation)
        told.append(rest)
    return np.stack(seen), np.array(told, dtype=np.float64)


@pytest.mark.usefixtures("installed")
def test_an_action_is_repeated_and_its_rewards_summed():
    twice, once = dm_control.make(SWINGUP), dm_control.make(SWINGUP, repeat=1)
    assert np.array_equal(twice.reset(seed=3)[0], once.reset(seed=3)[0])
    for value in (0.9, -0.4, 0.1):
        action = np.array([value], np.float32)
        first, second = once.step(action), once.step(action)
        seen, reward, *_ = twice.step(action)
        assert np.array_equal(seen, second[0])
        assert not np.array_equal(seen, first[0])
        assert reward == first[1] + second[1] != 0
    assert twice.metadata["render_fps"] == 50
    assert once.metadata["render_fps"] == 100


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("repeat", "steps"), [(2, 500), (3, 334)])
def test_a_time_limit_truncates_and_never_terminates(repeat, steps):
    task = dm_control.make(SWINGUP, repeat=repeat)
    assert task.spec.max_episode_steps == steps
    _, told = acted(task, steps)
    assert not told[:, 1].any()
    assert np.flatnonzero(told[:, 2]).tolist() == [steps - 1]
    assert task.suite.env._step_count == 1_000


@pytest.mark.usefixtures("installed")
def test_only_a_task_that_says_so_terminates_and_at_once(monkeypatch):
    task = dm_control.make(SWINGUP)
    task.reset(seed=0)
    monkeypatch.setattr(task.suite.env.task, "get_termination", lambda physics: 0.0)
    *_, terminated, truncated, _ = task.step(np.zeros(1, np.float32))
    assert (terminated, truncated, task.suite.env._step_count) == (True, False, 1)


@pytest.mark.usefixtures("installed")
def test_a_state_is_one_vector_in_the_task_s_own_order():
    task = dm_control.make("walker-walk")
    seen, _ = task.reset(seed=0)
    parts = task.suite.env.task.get_observation(task.suite.env.physics)
    assert list(parts) == ["orientations", "height", "velocity"]
    assert np.array_equal(seen[:14], parts["orientations"].astype(np.float32))
    assert seen[14] == np.float32(parts["height"])
    assert (seen.dtype, seen.shape) == (np.float32, task.observation_space.shape) == (np.float32, (24,))


@pytest.mark.usefixtures("installed")
def test_seeds_decide_what_is_drawn():
    def first(seed):
        env = make_env(partial(gymnasium_env, SWINGUP, make=dm_control.make), [], num_envs=2, seed=seed)
        return env.rollout(3)["observation"][:, 0]

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))
    assert not torch.equal(*first(5))


def going_on(id: str, file: Path) -> None:
    """Goes on from the file for 160 steps with a reset of all among them, and adds what came of it."""
    kept = torch.load(file, weights_only=True) if file.exists() else {}
    torch.manual_seed(0)
    seed = 8 if kept else 7  # it stands elsewhere
    env = make_env(partial(gymnasium_env, id, make=dm_control.make), [], num_envs=2, seed=seed)
    seen, now = [], env.reset()
    if not kept:
        for _ in range(37):
            now = env.step_and_maybe_reset(env.rand_action(now))[1]
        kept = {"state": capture(env), "now": now.to_dict()}
    else:
        restore(env, kept["state"])
        now = now.update(kept["now"])
    torch.manual_seed(1)
    for step in range(160):
        after, now = env.step_and_maybe_reset(env.rand_action(now))
        seen.append(after["next"].select("observation", "reward").to_dict())
        now = env.reset() if step == 100 else now
    torch.save(kept | {"seen": [*kept.get("seen", []), seen]}, file)


@pytest.mark.usefixtures("installed")
def test_all_goes_on_in_another_process_as_it_stood(tmp_path):
    for id in KEPT:
        going_on(id, tmp_path / id)
    lines = [
        f"from pathlib import Path; from tests.envs.test_dm_control import KEPT, going_on\n"
        f"for id in KEPT: going_on(id, Path({str(tmp_path)!r}) / id)"
    ]
    paths = [str(ROOT), *sys.path]
    subprocess.run(
        [sys.executable, "-c", *lines],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=ROOT,
        check=True,
    )
    for id in KEPT:
        first, second = torch.load(tmp_path / id, weights_only=True)["seen"]
        assert len(first) == len(second) == 160
        for ours, theirs in zip(first, second, strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in ours), id
        assert not torch.equal(first[0]["observation"], first[150]["observation"])


@pytest.mark.usefixtures("installed")
def test_a_run_goes_on_is_filmed_and_loaded(run, batches, capsys, tmp_path):
    words = [*SMALL, "algo=sac", "env=dm_control", f"env.id={SWINGUP}", "collector.num_envs=2"]
    words += ["minibatches.updates=1", "minibatches.warmup_frames=64", "critic.num_cells=[16]"]
    words += [f"eval.video={find_library('EGL') is not None}"]
    whole, halves = whole_and_resumed(run, words, batches, tmp_path)
    assert "everything continues exactly" in " ".join(capsys.readouterr().out.split())
    if find_library("EGL"):
        assert (whole / "videos" / "final.mp4").stat().st_size > 1_000
    first, second = (hydrl.load(each, "last").predict(np.full(5, 0.3)) for each in (whole, halves))
    assert np.array_equal(first, second)
    assert -1 < first[0] < 1


@pytest.fixture(scope="module")
def drawn(installed):
    try:
        return dm_control.make(SWINGUP, pixels=84)
    except UserError as error:
        pytest.skip(str(error))


def test_pictures_are_read_stacked_and_channels_first(drawn):
    env = make_env(partial(gymnasium_env, SWINGUP, make=dm_control.make, pixels=84), [], num_envs=2, seed=0)
    rows = env.rollout(3)
    assert [*rows["pixels"].shape, rows["pixels"].dtype] == [2, 3, 9, 84, 84, torch.uint8]
    assert torch.equal(rows["pixels"][:, 1, 3:], rows["pixels"][:, 2, :6])
    assert rows.get("observation", None) is None


def test_pictures_stand_in_the_place_of_the_state(drawn):
    seen, _ = acted(drawn, 4)
    assert (seen.shape, seen.dtype) == ((5, 3, 84, 84, 3), np.uint8)
    assert all(np.array_equal(each, seen[0, -1]) for each in seen[0])
    assert np.array_equal(seen[4, 0], seen[3, 1])
    assert not np.array_equal(seen[4, 2], seen[4, 1])
    assert seen[4, 2].std() > 10
    film = drawn.render()
    assert (film.shape, film.dtype) == ((240, 320, 3), np.uint8)


def test_pictures_that_cannot_be_drawn_are_a_line(drawn, monkeypatch):
    with pytest.raises(UserError, match=r"^env\.id=cartpole-swingup .* env\.pixels=1000: .*framebuffer"):
        dm_control.make(SWINGUP, pixels=1_000)
    with pytest.raises(UserError, match=r"^env\.pixels=0: should be 1 or more$"):
        dm_control.make(SWINGUP, pixels=0)
    monkeypatch.setattr(
        dm_control.ControlEnv,
        "draw",
        lambda *_: (_ for _ in ()).throw(RuntimeError("No OpenGL rendering backend is available.")),
    )
    with pytest.raises(UserError, match=r"No OpenGL .*apt install libegl1\)$"):
        dm_control.make(SWINGUP, pixels=84)


def stand_in(monkeypatch, load) -> None:
    """A dm_control with one task, be it installed or not."""
    package, suite = types.ModuleType("dm_control"), types.ModuleType("dm_control.suite")
    package.suite, suite.ALL_TASKS, suite.load = suite, [("ball_in_cup", "catch"), ("walker", "run")], load
    monkeypatch.setitem(sys.modules, "dm_control", package)
    monkeypatch.setitem(sys.modules, "dm_control.suite", suite)
    monkeypatch.setattr(dm_control, "find_spec", lambda name: package)
    monkeypatch.setattr(dm_control, "version", {"dm_control": "1.0.50", "mujoco": "4.0.0"}.get)


def test_what_is_missing_is_a_line(monkeypatch):
    def load(*_, **__):
        raise AttributeError("'mujoco._structs.MjModel' object has no attribute 'flex_vertedge'")

    stand_in(monkeypatch, load)
    with pytest.raises(UserError) as error:
        dm_control.make("ball_in_cup-catch")
    assert str(error.value) == (
        "env.id=ball_in_cup-catch: dm_control 1.0.50 does not work with mujoco 4.0.0 ('mujoco._structs."
        "MjModel' object has no attribute 'flex_vertedge'). Run pip install 'hydrl[dm-control]', which "
        "installs a MuJoCo that it works with."
    )
    with pytest.raises(UserError, match=r"^env\.id=cup-catch: no such task\. Write ball_in_cup-catch\.$"):
        dm_control.make("cup-catch")
    monkeypatch.setattr(dm_control, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"dm_control is not installed\. Run pip install 'hydrl\[dm-"):
        dm_control.make("ball_in_cup-catch")


def test_shadows_can_be_left_out(drawn):
    without, _ = dm_control.make(SWINGUP, pixels=84, shadows=False).reset(seed=0)
    differs = (drawn.reset(seed=0)[0] != without).mean()
    assert 0.05 < differs < 0.5


def test_without_egl_and_a_display_nothing_opens_a_window(monkeypatch):
    monkeypatch.setattr(dm_control.sys, "platform", "linux")
    for before, library, display, after in [
        (None, "libEGL.so.1", None, "egl"),
        (None, None, None, "disabled"),
        (None, None, ":0", None),
        ("osmesa", "libEGL.so.1", None, "osmesa"),
    ]:
        monkeypatch.setattr(dm_control, "find_library", {"EGL": library}.get)
        for name, value in (("MUJOCO_GL", before), ("DISPLAY", display)):
            monkeypatch.setenv(name, value or "")
        dm_control.choose_renderer()
        assert (os.environ["MUJOCO_GL"] or None) == after
