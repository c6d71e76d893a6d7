"""Films of the deterministic policy, an episode in an environment of its own as browsers play it."""

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from inspect import signature
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, MaxAndSkipObservation, RepeatAction
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.config.settings import Settings
from hydrl.envs import load_normalizer
from hydrl.errors import UserError
from hydrl.library_setup import seed_generators
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.run_logger import Record
from hydrl.training.evaluator import PolicyEvaluator, SeedStream, episode_seed, preserve_rng
from hydrl.training.timers import timeit

SMOOTH = 30  # pictures a second of the task's own time; Hopper says 125, and one costs up to 80 ms to draw
# Wrappers that take several steps of a task in one, and what of them says how many.
HOLDING = {AtariPreprocessing: "frame_skip", MaxAndSkipObservation: "_skip", RepeatAction: "num_repeats"}


@torch.no_grad()
def film(
    evaluator: PolicyEvaluator, path: Path, frames: int, drawn: int, pause: Callable[[], None] = lambda: None
) -> tuple[float, int, bool]:
    """Films one episode, which begins as the first of ``evaluator(frames, ..., drawn)``.

    Played alone it may end otherwise, for MuJoCo's contacts magnify how a network rounds. A task of more than
    30 frames a second is drawn every second step, or third and so on, at its own speed. Global random number
    generators are left alone. ``pause`` is called before each picture; where it raises there is no film.

    Returns:
        The episode's return, undiscounted and before any reward transform, its steps, and whether it was
        still running when ``eval.max_steps`` ended the film.

    Raises:
        UserError: if the environment gives no frames.
        RunError: if the file cannot be written.
    """
    with preserve_rng(), closing(evaluator.make_env(render="rgb_array")) as env:
        load_normalizer(env, evaluator.normaliser())
        seed = episode_seed(evaluator.seed, frames, drawn)
        env.set_seed(seed)
        seed_generators(seed)
        start, first = env.reset(), picture(env)
        speed = Fraction(pictures_a_second(env.base_env)).limit_denominator(1_000)
        every, steps = math.ceil(speed / SMOOTH), itertools.count(1)
        with (
            encoder(path, speed / every, *first.shape[:2]) as write,
            set_exploration_type(ExplorationType.DETERMINISTIC),
        ):

            def draw(env: EnvBase, _: object) -> None:
                if next(steps) % every == 0:
                    pause()
                    write(picture(env))

            write(first)
            played = env.rollout(
                evaluator.step_limit(env), evaluator.actor, draw, auto_reset=False, tensordict=start
            )
            write(picture(env))  # of the end, where TorchRL calls nothing
    return told(played)


def pictures_a_second(base: EnvBase) -> float:
    """How many steps an agent makes in a second of the task's own time.

    Gymnasium and PettingZoo or VMAS say how many the task takes, some of them in one step of the agent.
    """
    metadata, world = getattr(base, "metadata", None) or {}, getattr(base, "world", None)
    taken = metadata.get("render_fps") or 1 / getattr(world, "dt", 1 / SMOOTH)
    wrapper = getattr(base, "_env", None)
    while isinstance(wrapper, gymnasium.Wrapper):
        taken /= getattr(wrapper, HOLDING.get(type(wrapper), ""), 1)
        wrapper = wrapper.env
    return taken


def told(played: TensorDictBase) -> tuple[float, int, bool]:
    """The return of one episode, its steps and whether it was still running after the last of them."""
    steps = played["next"].reshape(-1)  # of several agents there is one environment in a row
    return steps["episode_reward"][-1].item(), len(steps), not steps["done"][-1].item()


@torch.no_grad()
def watch(
    evaluator: PolicyEvaluator, frames: int, episodes: int, drawn: int
) -> Iterator[tuple[float, int, bool]]:
    """Plays the episodes of ``evaluator(frames, episodes, drawn)`` in a window, one after the other.

    The task draws itself, at its own speed.

    Yields:
        As each ends what :func:`film` returns.

    Raises:
        UserError: if the task opens no window.
        KeyboardInterrupt: if that is closed.
    """
    with closing(evaluator.make_env(render="human")) as env:
        load_normalizer(env, evaluator.normaliser())
        metadata = getattr(env.base_env, "metadata", None) or {}
        if "human" not in metadata.get("render_modes", ()):
            raise no_window(env, "it has no render mode human")
        for place in range(episodes):
            seed = episode_seed(evaluator.seed, frames, drawn) + place
            try:
                env.set_seed(seed)
            except Exception as error:  # whatever a simulator's graphics raise
                raise no_window(env, " ".join(str(error).split())) from error
            seed_generators(seed)
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                played = env.rollout(evaluator.step_limit(env), evaluator.actor, leave_if_closed)
            yield told(played)


def no_window(env: EnvBase, reason: str) -> UserError:
    """What is said of a task that cannot be watched."""
    return UserError(f"render=human: {task_of(env)} opens no window: {reason}; video=true may film it")


def leave_if_closed(*_: object) -> None:
    """Ends as Ctrl-C does once the window that pygame drew in has been asked to close."""
    pygame = sys.modules.get("pygame")
    if pygame and pygame.display.get_init() and pygame.event.peek(pygame.QUIT):
        raise KeyboardInterrupt


class Camera:
    """Films a run into ``videos/`` of its folder, where ``eval.video`` asks for it.

    Every ``eval.video_every_frames`` as ``FRAMES.mp4``, and at its end as ``final.mp4``. A film that fails is
    said and costs the run nothing; one that a signal cuts short is not made again.

    Raises:
        UserError: where the environment gives no frames; one is drawn at once to see.
    """

    def __init__(self, evaluator: PolicyEvaluator, settings: Settings) -> None:
        self.evaluator, self.eval = evaluator, settings.eval
        self.folder = Path(settings.run_dir) / "videos"
        if self.eval.video:
            with preserve_rng(), closing(evaluator.make_env(render="rgb_array")) as env:
                env.base_env.reset()
                picture(env)

    def film(self, record: Record, pause: Callable[[], None], final: bool = False) -> None:
        """Films the policy as it is now, if that is due or the run is at its end."""
        frames = record.progress.frames
        if not self.eval.video or not (final or record.progress.due(self.eval.video_every_frames)):
            return
        path, key, drawn = self.folder / f"{frames:012}.mp4", "eval/video", SeedStream.TRAINING
        if final:
            path, key, drawn = self.folder / "final.mp4", "eval/final_video", SeedStream.CLOSING
        with timeit("time/video"):
            try:
                _, steps, cut = film(self.evaluator, path, frames, drawn, pause)
                if cut:
                    record.say(f"{path.name} is cut short: the episode still ran after {steps:,} steps")
                record.show(key, path)
            except Exception as error:  # of graphics, encoder, disk or loggers
                record.say(f"no film at {frames:,} frames: {error}")


def picture(env: EnvBase) -> np.ndarray:
    """The environment as it is now, ``[height, width, 3]`` of 8 bits, its sides even as H.264 wants them.

    Raises:
        UserError: if it cannot be rendered.
    """
    base = env.base_env
    try:
        with warnings.catch_warnings(action="ignore"):  # GLFW's, said again by the error
            by_mode = "mode" in signature(base.render).parameters  # VMAS asks at each picture
            frame = np.asarray(base.render(mode="rgb_array") if by_mode else base.render())
        if frame.dtype != np.uint8 or frame.shape[2:] != (3,):
            raise TypeError("its render() gives no RGB frames")
    except Exception as error:  # whatever a simulator's graphics raise
        reason = " ".join(str(error).split())
        if "OpenGL" in reason:  # without a display
            reason += " (MuJoCo draws through libEGL; on Debian and Ubuntu: apt install libegl1)"
        raise UserError(f"{task_of(env)} cannot be filmed: {reason}; leave video=true out") from error
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


def task_of(env: EnvBase) -> str:
    """The id of a Gymnasium task, or the name of another's class."""
    base = env.base_env
    return getattr(getattr(base, "spec", None), "id", getattr(base, "label", type(base).__name__))


@contextmanager
def encoder(path: Path, fps: Fraction, height: int, width: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Writes the pictures given to the function it yields as H.264 that starts playing while it loads.

    Raises:
        RunError: where the file cannot be written.
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
