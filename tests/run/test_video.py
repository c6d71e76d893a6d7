import csv
import json
import math
import random
import signal
from ctypes.util import find_library
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import av
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import RepeatAction, TransformReward
from tensordict.nn import TensorDictModule
from torchrl.envs import DoubleToFloat, ObservationNorm, StepCounter

from hydrl import envs
from hydrl.errors import Interrupted, RunError, UserError
from hydrl.networks import actors
from hydrl.networks.rnn import RecurrentLayer
from hydrl.run import process, rendering
from hydrl.run.checkpoint import archive
from hydrl.run.video import record_episode, watch
from hydrl.training import PolicyEvaluator, SeedStream
from tests.conftest import HANGING, saved, start
from tests.fakes.envs import CountingEnv
from tests.run.logging.test_loggers import needs_trackio, trackio_rows
from tests.run.logging.test_wandb import records

needs_egl = pytest.mark.skipif(not find_library("EGL"), reason="MuJoCo needs libEGL")


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


class Quick(Striped):
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 125}


class Window(Striped):
    """Draws itself as it is reset and at each step; ends after four."""

    metadata: ClassVar = {"render_modes": ["human"], "render_fps": 12.5}
    drawn: ClassVar[list[int]] = []

    def reset(self, *, seed=None, options=None):
        given = super().reset(seed=seed)
        self.render()
        return given

    def step(self, action):
        seen, *_ = super().step(action)
        self.render()
        return seen, float(self.np_random.random()), self.steps == 4, False, {}

    def render(self):
        if self.render_mode == "human":
            self.drawn.append(self.steps)
            if self.fails:
                raise RuntimeError("the lamp\nbroke")


class Blind(Striped):
    metadata: ClassVar = {"render_modes": []}

    def __init__(self):
        super().__init__()


gymnasium.register("Striped-v0", Striped, disable_env_checker=True)
gymnasium.register("Quick-v0", Quick, disable_env_checker=True)
gymnasium.register("Window-v0", Window, disable_env_checker=True)
gymnasium.register("Blind-v0", Blind, disable_env_checker=True)


def played(id: str, build=actors.tanh_normal, **kwargs):
    """A maker, an actor and a normaliser of one Gymnasium task."""
    torch.manual_seed(0)
    norm = partial(ObservationNorm, in_keys=["observation"])
    make_env = partial(
        envs.make_env,
        partial(envs.gymnasium_env, id, **kwargs),
        (DoubleToFloat, norm, StepCounter),
    )
    env = make_env(seed=0)
    envs.init_normalizers(env, 50)
    actor = build(env, num_cells=[64, 64], activation="Tanh", in_keys=["observation"])
    return make_env, actor, partial(envs.normalizer_state, env)


def still(env: str | partial, **kwargs):
    """The same for an actor that stands still, without normaliser."""
    actor = TensorDictModule(lambda x: torch.zeros(*x.shape[:-1], 1), ["observation"], ["action"])
    make = partial(envs.gymnasium_env, env, **kwargs) if isinstance(env, str) else env
    return partial(envs.make_env, make, ()), actor, dict


def shoot(parts, path, max_steps):
    """Films what :func:`played` or :func:`still` give."""
    return record_episode(PolicyEvaluator(*parts, seed=0, max_steps=max_steps), path, 0, SeedStream.TRAINING)


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize(
    ("id", "build", "size", "fps"),
    [
        pytest.param("HalfCheetah-v5", actors.tanh_normal, (480, 480), 20, marks=needs_egl),
        ("CartPole-v1", actors.categorical, (600, 400), 25),
        (
            "CartPole-v1",
            partial(actors.categorical, rnn=partial(RecurrentLayer, cell="lstm", hidden_size=8)),
            (600, 400),
            25,
        ),
    ],
)
def test_it_is_an_episode_of_the_policy_and_browsers_play_it(id, build, size, fps, tmp_path):
    evaluate = PolicyEvaluator(*played(id, build), seed=3, max_steps=20)
    evaluation = evaluate(100, 1, SeedStream.LATER)
    path = tmp_path / "film.mp4"
    made = record_episode(evaluate, path, 100, SeedStream.LATER)
    cut = bool(evaluation.cut_episodes)
    assert made == (evaluation.returns[0].item(), evaluation.lengths[0].item(), cut)
    assert cut == (id == "HalfCheetah-v5")
    first, *others, last = frames(path)
    assert len(others) + 2 == 1 + math.ceil(made[1] / (2 if id == "CartPole-v1" else 1))
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height) == size
        assert stream.average_rate == fps
        assert container.duration / av.time_base == pytest.approx((len(others) + 2) / fps, abs=0.001)
    written = path.read_bytes()
    assert written.index(b"moov") < written.index(b"mdat")  # the index comes before the pictures
    assert first.std() > 10  # no blank picture
    assert (np.abs(first.astype(int) - last.astype(int)) > 50).sum() > 100  # pixels where something was or is


def test_odd_sides_are_made_even_and_it_ends_at_max_steps(tmp_path):
    path = tmp_path / "film.mp4"
    made = shoot(still("Striped-v0"), path, max_steps=5)
    assert made == (5.0, 5, True)
    shown = frames(path)
    assert [frame.shape for frame in shown] == [(34, 52, 3)] * 6
    assert [frame.mean() for frame in shown] == pytest.approx([0, 20, 40, 60, 80, 100], abs=3)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 12.5


def test_a_task_of_many_frames_a_second_is_drawn_at_every_so_many_steps_and_at_its_end(tmp_path):
    path = tmp_path / "film.mp4"
    made = shoot(still("Quick-v0"), path, max_steps=12)
    assert made == (12.0, 12, True)
    assert [frame.mean() for frame in frames(path)] == pytest.approx([0, 100, 200, 240], abs=3)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 25  # 125 steps a second, every fifth drawn


def test_steps_that_a_wrapper_holds_an_action_for_take_their_time(tmp_path):
    path = tmp_path / "film.mp4"
    held = {"skip": partial(RepeatAction, num_repeats=2), "plain": partial(TransformReward, func=lambda r: r)}
    made = shoot(still("Quick-v0", wrappers=held), path, max_steps=6)
    assert made == (12.0, 6, True)
    assert [frame.mean() for frame in frames(path)] == pytest.approx([0, 120, 240], abs=3)
    with av.open(str(path)) as container:
        speed = container.streams.video[0].average_rate
    assert speed == Fraction(125, 6)  # of 125 steps a second the agent acts in every other, every third drawn


def test_every_random_generator_is_left_as_it_was(tmp_path):
    parts = still("Striped-v0")
    before = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    shoot(parts, tmp_path / "film.mp4", max_steps=2)
    after = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    assert after[0] == before[0]
    assert all(np.array_equal(now, then) for now, then in zip(after[1], before[1], strict=True))
    assert torch.equal(after[2], before[2])


class Timed(CountingEnv):
    """Is asked for a picture as VMAS is, and has its time in its world."""

    world = SimpleNamespace(dt=0.05)

    def render(self, mode="human"):
        return np.full((8, 8, 3), 200, np.uint8) if mode == "rgb_array" else None


def test_a_task_that_is_asked_for_its_picture_is_filmed_at_its_own_speed(tmp_path):
    shoot(still(Timed), tmp_path / "film.mp4", max_steps=5)
    with av.open(str(tmp_path / "film.mp4")) as film:
        assert film.streams.video[0].average_rate == 20


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            still(CountingEnv),
            "CountingEnv cannot be rendered: 'CountingEnv' object has no attribute 'render'",
        ),
        (still("Blind-v0"), "^env.id=Blind-v0: cannot be created: .*render_mode"),
        (still("Striped-v0", value=0.5), "Striped-v0 cannot be rendered: its render.. returns no RGB frames"),
    ],
)
def test_what_gives_no_frames_is_told_and_leaves_no_file(parts, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        shoot(parts, tmp_path / "film.mp4", max_steps=5)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_film_cut_short_leaves_the_old_one(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_text("old")
    with pytest.raises(UserError, match="Striped-v0 cannot be rendered: the lamp broke"):
        shoot(still("Striped-v0", fails=True), path, max_steps=5)
    assert [each.name for each in tmp_path.iterdir()] == ["film.mp4"]
    assert path.read_text() == "old"


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    with pytest.raises(RunError, match=r"film\.mp4 cannot be written: .*gone is gone"):
        shoot(still("Striped-v0"), tmp_path / "gone" / "too" / "film.mp4", max_steps=5)


# In a window


def watched(parts, episodes=3, max_steps=9):
    return list(watch(PolicyEvaluator(*parts, seed=0, max_steps=max_steps), 0, episodes, SeedStream.LATER))


def test_a_window_shows_the_episodes_that_are_scored_and_the_task_draws_itself(monkeypatch):
    monkeypatch.setattr(Window, "drawn", [])
    parts = still("Window-v0")
    shown = watched(parts)
    scored = PolicyEvaluator(*parts, seed=0, max_steps=9)(0, 3, SeedStream.LATER)
    assert [each[0] for each in shown] == pytest.approx(scored.returns.tolist())
    assert len({each[0] for each in shown}) == 3
    assert [each[1:] for each in shown] == [(4, False)] * 3
    assert [each for each in Window.drawn if each] == [1, 2, 3, 4] * 3
    assert watched(parts, 1, max_steps=2)[0][1:] == (2, True)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            still(CountingEnv),
            "^render=human: CountingEnv opens no window: it has no render mode human. Try video=true",
        ),
        (still("Window-v0", fails=True), "^render=human: Window-v0 opens no window: the lamp broke."),
        (still("Blind-v0"), "^env.id=Blind-v0: cannot be created: .*render_mode"),
    ],
)
def test_what_opens_no_window_is_told_in_a_line(parts, message):
    with pytest.raises(UserError, match=message) as caught:
        watched(parts)
    assert "\n" not in str(caught.value)


def test_a_closed_window_ends_it_as_ctrl_c_does(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame")
    render = CartPoleEnv.render

    def closing(self):
        drawn = render(self)
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        return drawn

    monkeypatch.setattr(CartPoleEnv, "render", closing)
    with pytest.raises(KeyboardInterrupt):
        watched(played("CartPole-v1", actors.categorical))


# Films of a run

SMALL = ["~tuned", "total_frames=384", "collector.frames_per_batch=64", "minibatches.size=32"]
SMALL += ["actor.num_cells=[16,16]", "critic.num_cells=[16,16]", "init_stats_frames=100"]
SMALL += ["eval.every_frames=64", "eval.episodes=3", "eval.final_episodes=2", "eval.max_steps=10"]
SMALL += ["log_every_frames=64", "eval.video_every_frames=150"]
FILMED = ["000000000192.mp4", "000000000320.mp4", "final.mp4"]  # where 150 and 300 frames are passed
STRIPED = ["env=gym", "env.id=Striped-v0", *SMALL, "eval.video=true"]


def films(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("videos/*"))


def logged(folder: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv`` without what depends on the clock."""
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


def parameters(folder: Path) -> torch.Tensor:
    return torch.cat([each.flatten() for each in saved(folder, "actor").values()])


@pytest.mark.parametrize(
    ("words", "every"),
    [
        (["env=pendulum", "transforms=running_norm"], 1),
        pytest.param(["env=hopper"], 5, marks=[needs_egl, pytest.mark.slow]),
    ],
    ids=["pendulum", "hopper"],
)
def test_films_come_at_the_frames_asked_for_and_training_is_left_alone(words, every, run):
    plain = run(*words, *SMALL, folder="plain")
    folder = run(*words, *SMALL, "eval.video=true", folder="filmed")
    assert logged(folder) == logged(plain)
    assert torch.equal(parameters(folder), parameters(plain))
    assert films(plain) == []
    assert films(folder) == FILMED
    assert len(frames(folder / "videos" / "final.mp4")) <= 1 + math.ceil(10 / every)
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 < summary["video_seconds"] < summary["wall_seconds"]
    assert json.loads((plain / "summary.json").read_text())["video_seconds"] == 0


def test_a_run_stopped_while_it_films_goes_on_as_if_it_had_not_been(run, monkeypatch):
    whole = run(*STRIPED, folder="whole")
    draw, drawn = Striped.render, []

    def render(self):
        drawn.append(self.steps)
        if len(drawn) == 1 + 11 + 4:  # to see that it can, the first film, and into the second
            signal.raise_signal(signal.SIGINT)
        return draw(self)

    monkeypatch.setattr(Striped, "render", render)
    monkeypatch.setattr(process, "Stop", partial(process.Stop, grace=HANGING))  # the film is ended
    with pytest.raises(Interrupted) as stopped:
        run(*STRIPED, folder="halves")
    folder = whole.parent / "halves"
    assert (stopped.value.exit_code, stopped.value.in_batch) == (130, False)
    assert films(folder) == FILMED[:1]
    assert archive.frames_of(archive.find(folder, "last")) == 320
    run(*STRIPED, "resume=auto", folder="halves")
    assert films(folder) == [FILMED[0], "final.mp4"]
    assert logged(folder) == logged(whole)
    assert torch.equal(parameters(folder), parameters(whole))


def test_a_film_that_fails_is_said_and_costs_the_run_nothing(run, monkeypatch, capsys):
    draw, drawn = Striped.render, []

    def render(self):
        drawn.append(self.steps)
        if len(drawn) == 4:
            raise RuntimeError("the lamp\nbroke")
        return draw(self)

    monkeypatch.setattr(Striped, "render", render)
    folder = run(*STRIPED)
    assert (
        "no video at 192 frames: video=true: Striped-v0 cannot be rendered: the lamp broke"
        in capsys.readouterr().out
    )
    assert films(folder) == FILMED[1:]
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["env=torchrl_pendulum"],
            "video=true: PendulumEnv cannot be rendered: 'Pend",
        ),
        (["env=gym", "env.id=Blind-v0"], "env.id=Blind-v0: cannot be created: "),
    ],
)
def test_what_cannot_be_filmed_is_refused_before_the_run(words, message, run, tmp_path):
    with pytest.raises(UserError, match=f"^{message}") as caught:
        run(*words, *SMALL, "eval.video=true")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "config_resolved.yaml").exists()


def test_without_the_package_nothing_starts(run, monkeypatch, tmp_path):
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    told = r"^eval\.video=true: PyAV is not installed\. Run pip install 'hydrl\[video\]'\.$"
    with pytest.raises(UserError, match=told):
        run("env=cartpole", "eval.video=true")
    assert not (tmp_path / "run" / "config_resolved.yaml").exists()


def test_w_and_b_shows_the_films_in_the_rows_of_their_frames(run, monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    folder = run("env=cartpole", *SMALL, "eval.video=true", "logger=wandb", "logger.wandb.mode=offline")
    rows = [each.history for each in records(folder) if each.WhichOneof("record_type") == "history"]
    shown = {}
    for row in rows:
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item}
        if path := items.get("eval/video/path"):
            assert items["eval/video/_type"] == "video-file"
            assert "eval/return_mean" in items  # it joins the evaluation's own row
            shown[items["frames"]] = path
        final = items.get("eval/final_video/path")
    assert list(shown) == [192, 320]
    (files,) = folder.glob("wandb/offline-run-*/files")
    for path, name in zip([*shown.values(), final], FILMED, strict=True):
        assert (files / path).read_bytes() == (folder / "videos" / name).read_bytes()


@pytest.mark.slow
@needs_trackio
def test_trackio_holds_the_films_beside_the_rows_of_their_frames(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    folder = tmp_path / "run"
    words = ["env=cartpole", *SMALL, "eval.video=true", "logger=trackio", "device=cpu", "compile=false"]
    with start(*words, f"hydra.run.dir={folder}") as process:
        process.communicate()
    assert process.returncode == 0
    (rows,) = trackio_rows(tmp_path / "trackio").values()
    shows = ("eval/video", "eval/final_video")
    sent = [(frames, row[key]) for frames, row in rows for key in row if key in shows]
    assert [frames for frames, _ in sent] == [192, 320, 384]
    for (_, shown), name in zip(sent, FILMED, strict=True):
        assert shown["_type"] == "trackio.video"
        copy = tmp_path / "trackio/media" / shown["file_path"]
        assert copy.read_bytes() == (folder / "videos" / name).read_bytes()
