import random
from functools import partial
from pathlib import Path
from typing import ClassVar

import av
import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import DoubleToFloat, ObservationNorm, StepCounter
from toys import Toy

from hydrl import actors, envs
from hydrl.errors import UserError
from hydrl.evaluation import Evaluator
from hydrl.headless import has_egl
from hydrl.video import film

needs_egl = pytest.mark.skipif(not has_egl(), reason="MuJoCo renders through libEGL, which is not here")
CHEETAH = pytest.param("HalfCheetah-v5", actors.tanh_normal, marks=needs_egl)


@pytest.fixture(autouse=True)
def _headless(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")


class Striped(gymnasium.Env):
    """Runs for ever; its pictures have odd sides and get brighter, and the third may fail."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 12.5}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None, fails=False, value=1):
        self.render_mode, self.fails, self.value, self.steps = render_mode, fails, value, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self):
        if self.fails and self.steps == 3:
            raise RuntimeError("the lamp\nbroke")
        return np.full((33, 51, 3), 20 * self.steps, np.uint8) * self.value


class Blind(Striped):
    metadata: ClassVar = {"render_modes": []}

    def __init__(self):
        super().__init__()


gymnasium.register("Striped-v0", Striped, disable_env_checker=True)
gymnasium.register("Blind-v0", Blind, disable_env_checker=True)


def played(id: str, build=actors.tanh_normal, **kwargs):
    """A maker, an actor and a normaliser of one Gymnasium task."""
    torch.manual_seed(0)
    norm = partial(ObservationNorm, in_keys=["observation"])
    make_env = partial(
        envs.make_env, partial(envs.gymnasium_env, id, **kwargs), (DoubleToFloat, norm, StepCounter)
    )
    env = make_env(seed=0)
    envs.initialise_normalisers(env, 50)
    actor = build(env, num_cells=[64, 64], activation="Tanh", in_keys=["observation"])
    return make_env, actor, envs.normaliser_state(env)


def still(env: str | partial, **kwargs):
    """The same for an actor that stands still, without normaliser."""
    actor = TensorDictModule(lambda x: torch.zeros(*x.shape[:-1], 1), ["observation"], ["action"])
    make = partial(envs.gymnasium_env, env, **kwargs) if isinstance(env, str) else env
    return partial(envs.make_env, make, ()), actor, {}


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("episodes", [1, 7])
@pytest.mark.parametrize(("id", "build"), [CHEETAH, ("CartPole-v1", actors.categorical)])
def test_it_is_the_evaluation_s_first_episode_to_the_last_bit(id, build, episodes, tmp_path):
    make_env, actor, normaliser = played(id, build)
    evaluate = Evaluator(make_env, actor, seed=3, max_steps=40)
    evaluation = evaluate(normaliser, episodes=episodes, frames=100, stream=2)
    path, seed = tmp_path / "film.mp4", evaluate.episode_seed(frames=100, stream=2)
    made = film(make_env, actor, normaliser, path, seed=seed, max_steps=40, episodes=episodes)
    assert made.episode_return == evaluation.returns[0].item()
    assert made.length == evaluation.lengths[0].item()
    assert len(frames(path)) == made.length + 1


@pytest.mark.parametrize(
    ("id", "build", "size", "fps"),
    [
        pytest.param(*CHEETAH.values, (480, 480), 20, marks=needs_egl),
        ("CartPole-v1", actors.categorical, (600, 400), 50),
    ],
)
def test_browsers_play_it_and_something_moves(id, build, size, fps, tmp_path):
    path = tmp_path / "film.mp4"
    made = film(*played(id, build), path, seed=0, max_steps=30)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height) == size
        assert stream.average_rate == fps
        assert container.duration / av.time_base == pytest.approx((made.length + 1) / fps, abs=0.001)
    written = path.read_bytes()
    assert written.index(b"moov") < written.index(b"mdat")  # the index comes before the pictures
    first, *_, last = frames(path)
    assert first.std() > 10  # no blank picture
    assert (np.abs(first.astype(int) - last.astype(int)) > 50).sum() > 100  # pixels where something was or is


def test_odd_sides_are_made_even_and_it_ends_at_max_steps(tmp_path):
    path = tmp_path / "film.mp4"
    made = film(*still("Striped-v0"), path, seed=0, max_steps=5)
    assert (made.length, made.episode_return) == (5, 5.0)
    shown = frames(path)
    assert [frame.shape for frame in shown] == [(34, 52, 3)] * 6
    assert [frame.mean() for frame in shown] == pytest.approx([0, 20, 40, 60, 80, 100], abs=3)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 12.5


def test_every_random_generator_is_left_as_it_was(tmp_path):
    parts = still("Striped-v0")
    before = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    film(*parts, tmp_path / "film.mp4", seed=0, max_steps=2)
    after = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    assert after[0] == before[0]
    assert all(np.array_equal(now, then) for now, then in zip(after[1], before[1], strict=True))
    assert torch.equal(after[2], before[2])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (still(Toy), "Toy cannot be filmed: 'Toy' object has no attribute 'render'"),
        (still("Blind-v0"), "video=true: env.id=Blind-v0 could not be made: .*render_mode"),
        (still("Striped-v0", value=0.5), "Striped-v0 cannot be filmed: its render.. gives no RGB frames"),
    ],
)
def test_what_gives_no_frames_is_told_and_leaves_no_file(parts, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        film(*parts, tmp_path / "film.mp4", seed=0, max_steps=5)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_film_cut_short_leaves_the_old_one(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_text("old")
    with pytest.raises(UserError, match="Striped-v0 cannot be filmed: the lamp broke"):
        film(*still("Striped-v0", fails=True), path, seed=0, max_steps=5)
    assert [each.name for each in tmp_path.iterdir()] == ["film.mp4"]
    assert path.read_text() == "old"


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    with pytest.raises(UserError, match=r"film\.mp4 cannot be written: No such file"):
        film(*still("Striped-v0"), tmp_path / "gone" / "film.mp4", seed=0, max_steps=5)
