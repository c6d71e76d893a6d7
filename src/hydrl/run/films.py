"""Films: one episode of the deterministic policy in an environment of its own, as an mp4 browsers play."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl import timeit
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.config.settings import Settings
from hydrl.errors import UserError
from hydrl.loop.evaluation import Episodes, Evaluator, untouched_randomness
from hydrl.loop.progress import crossed
from hydrl.parts.environments import load_normaliser
from hydrl.run.files import atomically
from hydrl.run.headless import explain
from hydrl.run.record import Record

SMOOTH = 30  # pictures a second of the task's own time; Hopper says 125, and one costs up to 80 ms to draw


@dataclass(frozen=True)
class Film:
    """What :func:`film` made.

    Attributes:
        path: the mp4; it shows the start, every so many steps, and the end.
        episode_return: of the filmed episode, undiscounted, before any reward transform.
        length: of the filmed episode, steps.
    """

    path: Path
    episode_return: float
    length: int


@torch.no_grad()
def film(
    evaluator: Evaluator,
    path: Path,
    frames: int,
    episodes: int,
    drawn: int = Episodes.TRAINING,
    pause: Callable[[], None] = lambda: None,
) -> Film:
    """Films the first episode of the evaluation that ``evaluator`` plays for the same arguments.

    On the CPU a Gymnasium task's filmed return equals that evaluation's first to the last bit. A task that
    says its frames follow at more than 30 a second is drawn every second step, or third and so on, at its own
    speed. Call :func:`hydrl.run.headless.prepare` before MuJoCo is imported. Global random number
    generators are left alone.

    Args:
        evaluator: of the policy; its ``make_env(render=True)`` builds an environment that gives frames.
        path: where the mp4 goes; written beside and renamed.
        frames: how long the policy had been trained.
        episodes: how many the evaluation plays together.
        drawn: the evaluation's.
        pause: called at each step; the film is given up where it raises.

    Raises:
        UserError: if the environment gives no frames or the file cannot be written.
    """
    with (
        untouched_randomness(),
        set_exploration_type(ExplorationType.DETERMINISTIC),
        contextlib.closing(stage(evaluator.make_env)) as env,
    ):
        load_normaliser(env, evaluator.normaliser())
        env.set_seed(evaluator.episode_seed(frames, drawn))
        now, length, ended = env.reset(), 0, False
        metadata = getattr(env.base_env, "metadata", None) or {}
        speed = Fraction(metadata.get("render_fps") or SMOOTH).limit_denominator(1_000)
        every = math.ceil(speed / SMOOTH)
        first = picture(env)
        with encoder(path, speed / every, *first.shape[:2]) as write:
            write(first)
            while not ended:
                pause()
                now = env.step(act(evaluator.actor, now, episodes))
                after, length = now["next"], length + 1
                ended = after["done"].item() or length == evaluator.max_steps
                if ended or length % every == 0:
                    write(picture(env))
                now = env.step_mdp(now)
        return Film(path, after["episode_reward"].item(), length)


class Camera:
    """Films a run's evaluations into ``videos/`` of its folder, where ``eval.video`` asks for it.

    The first evaluation in each interval of ``eval.video_every_frames`` is filmed, counted from 0, so that
    the run's first one always is; an interval without an evaluation has no film. The closing one is filmed
    as ``final.mp4``. A film that fails is said and costs the run nothing.

    Args:
        evaluator: the run's.
        settings: the run's.

    Raises:
        UserError: where the environment gives no frames; one is drawn at once to see.
    """

    def __init__(self, evaluator: Evaluator, settings: Settings) -> None:
        self.evaluator, self.eval = evaluator, settings.eval
        self.folder = Path(settings.run_dir) / "videos"
        self.filmed_at = -1  # never
        if self.eval.video:
            try:
                with untouched_randomness(), contextlib.closing(stage(evaluator.make_env)) as filmed:
                    filmed.base_env.reset()
                    picture(filmed)
            except UserError as error:
                raise UserError(f"eval.video=true: {error}; use eval.video=false") from error

    def film(self, record: Record, pause: Callable[[], None], closing: bool = False) -> None:
        """Films the evaluation of this moment if its interval has no film yet, or the closing one.

        Args:
            record: the run's, which shows the film.
            pause: called at each step; where it raises, the film is given up and the next one is made.
            closing: whether it is the closing evaluation.
        """
        frames, evaluated = record.progress.frames, record.progress.evaluation_now
        due = evaluated and crossed(self.eval.video_every_frames, self.filmed_at, frames)
        if not (self.eval.video and (closing or due)):
            return
        path, key = self.folder / f"{frames:012}.mp4", "eval/video"
        episodes, drawn = self.eval.episodes, Episodes.TRAINING
        if closing:
            path, key = self.folder / "final.mp4", "eval/final_video"
            episodes, drawn = self.eval.final_episodes, Episodes.CLOSING
        with timeit("time/video"):
            try:
                self.folder.mkdir(exist_ok=True)
                film(self.evaluator, path, frames, episodes, drawn, pause)
                record.show(frames, key, path)
            except Exception as error:  # of graphics, encoder, disk or logger
                record.say(f"no film at {frames:,} frames: {explain(error)}")
        if not closing:
            self.filmed_at = frames

    def state_dict(self) -> dict[str, int]:
        """When it filmed at last, so that a resumed run films when the unbroken one would."""
        return {"filmed_at": self.filmed_at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on from :meth:`state_dict`."""
        self.filmed_at = state["filmed_at"]


def stage(make_env: Callable[..., TransformedEnv]) -> TransformedEnv:
    """An environment that gives frames.

    Raises:
        UserError: if it cannot be made so.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Gymnasium's, said again by the error
            return make_env(render=True)
    except UserError as error:
        raise UserError(f"nothing to film: {error}") from error


def act(actor: TensorDictModuleBase, now: TensorDictBase, episodes: int) -> TensorDictBase:
    """The policy's step in one environment, rounded as among ``episodes`` of them.

    A matrix product rounds differently for another number of rows, and MuJoCo's contacts magnify that.
    """
    return actor(now) if episodes == 1 else actor(now.expand(episodes).clone())[0]


def picture(env: TransformedEnv) -> np.ndarray:
    """The environment as it is now, ``[height, width, 3]`` of 8 bits, its sides even as H.264 wants them.

    Raises:
        UserError: if it cannot be rendered.
    """
    task = getattr(getattr(env.base_env, "spec", None), "id", type(env.base_env).__name__)
    try:
        with warnings.catch_warnings(action="ignore"):  # GLFW's, said again by the error
            frame = np.asarray(env.base_env.render())
    except Exception as error:  # whatever a simulator's graphics raise
        raise UserError(f"{task} cannot be filmed: {explain(error)}") from error
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UserError(f"{task} cannot be filmed: its render() gives no RGB frames")
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


@contextlib.contextmanager
def encoder(path: Path, fps: Fraction, height: int, width: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Writes the pictures given to the function it yields as H.264 that starts playing while it loads.

    Raises:
        UserError: where the file cannot be written.
    """
    import av

    with (
        atomically(path) as partial,
        av.open(str(partial.absolute()), "w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"

        def write(frame: np.ndarray) -> None:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))

        yield write
        container.mux(stream.encode())
