"""Gymnasium-Robotics environments: what hydrl mends, what a run logs, and how it resumes."""

import io
import json
import subprocess
import sys
import tempfile
from ctypes.util import find_library
from functools import partial
from importlib.util import find_spec

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from torchrl.envs import StepCounter

import hydrl
from hydrl.envs import gymnasium_env, make_env, robotics
from hydrl.envs.gymnasium import find_success_keys, make_wrapped_env
from hydrl.errors import UserError
from hydrl.run.checkpoint.env_state.capture import capture, restore
from tests.conftest import SMALL, digest, saved, settings, whole_and_resumed

needs_robotics = pytest.mark.skipif(
    not find_spec("gymnasium_robotics"), reason="needs pip install 'hydrl[robotics]'"
)
# One of each kind; the resets of the last three move a target in the model.
KINDS = {"FetchPush-v4": "is_success", "HandReach-v3": "is_success", "FrankaKitchen-v1": None}
KINDS |= {"PointMaze_UMaze-v3": "success", "AdroitHandPen-v1": "success", "AdroitHandRelocate-v1": "success"}


def make(id: str, *words: str, num_envs: int = 1):
    """The environment of ``env=robotics env.id=ID``, with episodes of 20 steps."""
    words = ("algo=sac", "env=robotics", f"env.id={id}", "+env.max_episode_steps=20", *words)
    return make_env(settings(*words).build("env"), [StepCounter], num_envs=num_envs)


@needs_robotics
def test_the_package_alone_still_fails_at_its_joint_types():
    """If this fails, ``use_integer_joint_types`` is no longer needed."""
    bare = "import gymnasium, gymnasium_robotics; gymnasium.make('FetchReach-v4')"
    process = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "assert joint_type in (mujoco.mjtJoint.mjJNT_HINGE" in process.stderr


@needs_robotics
def test_joint_types_are_integers_in_one_module_alone():
    robotics.make("FetchReach-v4")
    from gymnasium_robotics.envs import robot_env
    from gymnasium_robotics.utils import mujoco_utils

    assert vars(mujoco_utils.mujoco.mjtJoint) == {
        "mjJNT_FREE": 0, "mjJNT_BALL": 1, "mjJNT_SLIDE": 2, "mjJNT_HINGE": 3,
    }  # fmt: skip
    assert mujoco_utils.mujoco.mj_forward is robot_env.mujoco.mj_forward
    assert not isinstance(robot_env.mujoco.mjtJoint.mjJNT_HINGE, int)


@needs_robotics
@pytest.mark.parametrize(("id", "success"), KINDS.items())
def test_an_episode_continues_in_another_environment_and_repeats_by_its_seed(id, success):
    def play(env, now, steps=30):
        rows = []
        with torch.no_grad():
            for _ in range(steps):
                step, now = env.step_and_maybe_reset(env.rand_action(now))
                rows.append(step.clone())
        return torch.stack(rows), now

    first, second, third = (make(id, num_envs=2) for _ in range(3))
    for env, seed in ((first, 3), (second, 8), (third, 3)):
        env.set_seed(seed)
    torch.manual_seed(0)
    begun, now = play(first, first.reset())
    torch.manual_seed(0)
    assert torch.equal(play(third, third.reset())[0]["observation"], begun["observation"])
    starts = begun[0].select("observation", "desired_goal", strict=False)
    assert any(not torch.equal(*entry) for entry in starts.values())
    assert begun["next", "truncated"].squeeze(-1).nonzero().tolist() == [[19, 0], [19, 1]]
    assert not begun["next", "terminated"].any()
    logged = begun["next"].get("episode_info", None)
    assert [*(logged.keys() if logged is not None else ())] == ([success] if success else [])

    file = io.BytesIO()
    torch.save(capture(first), file)
    torch.manual_seed(1)
    expected, _ = play(first, now.clone())
    second.reset()
    restore(second, torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    torch.manual_seed(1)
    actual, _ = play(second, now.clone())
    for key in expected.keys(True, True):
        torch.testing.assert_close(actual[key], expected[key], rtol=0, atol=0, equal_nan=True, msg=str(key))


@needs_robotics
def test_a_run_resumes_exactly_and_logs_success(run, batches, capsys, tmp_path):
    words = [*SMALL, "algo=ddpg", "env=fetch_reach", "collector.num_envs=2", "critic.num_cells=[16]"]
    words += ["minibatches.updates=1", "minibatches.warmup_frames=64", "collector.init_random_frames=64"]
    words += [f"eval.video={find_library('EGL') is not None}"]
    whole, halves = whole_and_resumed(run, words, batches, tmp_path)
    assert "everything continues exactly" in " ".join(capsys.readouterr().out.split())
    assert digest(saved(halves, "buffer")) == digest(saved(whole, "buffer"))
    assert 0 <= json.loads((whole / "summary.json").read_text())["eval/is_success"] <= 1
    if find_library("EGL"):
        assert (whole / "videos" / "final.mp4").stat().st_size > 1_000
    observation = {"observation": np.full(10, 0.3), "desired_goal": np.full(3, 0.1)}
    observation["achieved_goal"] = np.zeros(3)
    first, second = (hydrl.load(folder, "last").predict(observation) for folder in (whole, halves))
    assert np.array_equal(first, second)
    assert first.shape == (4,)


@needs_robotics
def test_a_goal_terminates_a_maze_s_rows_one_by_one():
    maze = make_wrapped_env("PointMaze_UMaze-v3", make=partial(robotics.make, continuing_task=False))
    goals = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 0.4]])
    assert maze.compute_terminated(goals, np.zeros((3, 2)), {}).tolist() == [True, False, True]
    continuing = robotics.make("PointMaze_UMaze-v3")
    assert continuing.compute_terminated(goals, np.zeros((3, 2)), {}).tolist() == [False] * 3


@needs_robotics
def test_a_maze_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    robotics.make("AntMaze_UMaze-v5").reset(seed=0)
    assert not [*tmp_path.iterdir()]


@needs_robotics
def test_success_is_known_without_a_probe(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(gymnasium, "make", refuse)
    maker = partial(robotics.make, reward_type="dense")
    keys = {id: find_success_keys(id, make=maker) for id in KINDS}
    assert keys == {id: [success] if success else [] for id, success in KINDS.items()}


@needs_robotics
@pytest.mark.parametrize(
    ("id", "keywords", "message"),
    [
        ("FetchReech-v4", {}, "env.id=FetchReech-v4: no such environment. Write FetchReach-v4 or "),
        ("FetchReach-v1", {}, "env.id=FetchReach-v1: no such environment. Write FetchReach-v4 or "),
        ("Ant-v5", {}, "no such environment. Write FetchReach-v4 or HandReach-v3 or PointMaze_UMaze-v3 or"),
        ("FetchReach-v4", {"fast": 1}, "env.id=FetchReach-v4: cannot be created: it takes no fast. Leave"),
        ("PointMaze_UMaze-v3", {"maze_map": 3}, "cannot be created: object of type 'int' has no len"),
        ("FetchReach-v4", {"reward_type": "spars"}, "env.reward_type=spars: should be sparse or dense."),
    ],
)
def test_a_mistake_is_a_line(id, keywords, message):
    with pytest.raises(UserError) as error:
        gymnasium_env(id, make=partial(robotics.make, **keywords))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@needs_robotics
@pytest.mark.parametrize("id", ["FetchReach-v4", "gymnasium_robotics:FetchReach-v4"])
def test_the_option_is_named_where_gymnasium_is_asked_for_it(monkeypatch, id):
    for registered in [name for name in gymnasium.registry if name.startswith("FetchReach")]:
        monkeypatch.delitem(gymnasium.registry, registered)
    if ":" in id:  # as in a process where the family was not used
        from gymnasium_robotics.utils import mujoco_utils

        monkeypatch.setattr(mujoco_utils, "mujoco", mujoco)
        entry_point = "gymnasium_robotics.envs.fetch.reach:MujocoFetchReachEnv"
        monkeypatch.setitem(gymnasium.registry, "FetchReach-v4", EnvSpec("FetchReach-v4", entry_point))
    with pytest.raises(UserError, match=r"Write env=robotics env\.id=FetchReach-v4\.$"):
        gymnasium_env(id)


def test_a_missing_package_is_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(UserError, match=r"^env=robotics: .*Run pip install 'hydrl\[robotics\]'\.$"):
        robotics.make("FetchReach-v4")


def test_what_the_package_prints_when_imported_stays_off_the_screen(monkeypatch, capsys):
    def require_package(*_):
        print("news", file=sys.stderr)
        raise UserError("imported")

    monkeypatch.setattr(robotics, "require_package", require_package)
    with pytest.raises(UserError, match="imported"):
        robotics.make("FetchReach-v4")
    assert capsys.readouterr().err == ""
