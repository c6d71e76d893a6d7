"""Videos of the deterministic policy: mp4 files of single episodes, and a window to watch them in."""

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, MaxAndSkipObservation, RepeatAction
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import metric_names
from hydrl.envs import load_normalizer
from hydrl.errors import UserError
from hydrl.library_setup import seed_generators
from hydrl.run.atomic_files import atomically
from hydrl.training.evaluator import PolicyEvaluator, SeedStream, episode_seed, preserve_rng
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock

Say = Callable[[str], object]
Show = Callable[[str, Path], object]

SMOOTH = 30  # video frames a second of simulated time; Hopper has 125, and rendering one takes up to 80 ms
# Wrappers that repeat an action, and their attribute with the number of repeats.
ACTION_REPEATS = {
    AtariPreprocessing: "frame_skip",
    MaxAndSkipObservation: "_skip",
    RepeatAction: "num_repeats",
}


@torch.no_grad()
def record_episode(
    evaluator: PolicyEvaluator,
    path: Path,
    frames: int,
    seed_stream: int,
    check_stop: Callable[[], None] = lambda: None,
    dream_path: Path | None = None,
) -> tuple[float, int, bool]:
    """Records the first episode of an evaluation as an mp4 file, and what a world model dreams of it.

    Played alone it may end differently, because MuJoCo's contacts magnify how a network rounds. Above 30
    frames a second only every second step is rendered, or every third and so on, at the environment's speed.

    Args:
        evaluator: has the environment and the actor.
        path: of the file.
        frames: how long the policy was trained.
        seed_stream: which episodes, see :class:`hydrl.training.evaluator.SeedStream`.
        check_stop: called before each video frame; if it raises there is no file.
        dream_path: of the dream's file; ``None``, or an actor without a world model: none.

    Returns:
        The episode's return before reward transforms, its steps, and whether ``eval.max_steps`` cut it.

    Raises:
        UserError: if the environment cannot be rendered.
        RunError: if the file cannot be written.
    """
    with preserve_rng(), closing(evaluator.make_env(render="rgb_array")) as env:
        seed = episode_seed(evaluator.seed, frames, seed_stream)
        start, first = start_episode(env, evaluator, seed), render_rgb(env)
        speed = Fraction(steps_per_second(env.base_env)).limit_denominator(1_000)
        every, steps = math.ceil(speed / SMOOTH), itertools.count(1)
        with (
            h264_writer(path, speed / every, *first.shape[:2]) as write,
            set_exploration_type(ExplorationType.DETERMINISTIC),
        ):

            def draw(env: EnvBase, _: object) -> None:
                if next(steps) % every == 0:
                    check_stop()
                    write(render_rgb(env))

            write(first)
            episode = env.rollout(
                evaluator.step_limit(env), evaluator.actor, draw, auto_reset=False, tensordict=start
            )
            write(render_rgb(env))  # of the end, where TorchRL calls nothing
    write_dream(evaluator.actor, episode, dream_path, check_stop)
    return episode_result(episode)


def start_episode(env: TransformedEnv, evaluator: PolicyEvaluator, seed: int) -> TensorDictBase:
    """Resets a seeded environment that has the run's normalizer."""
    load_normalizer(env, evaluator.normaliser())
    env.set_seed(seed)
    seed_generators(seed)
    return env.reset()


def write_dream(
    actor: Any, episode: TensorDictBase, path: Path | None, check_stop: Callable[[], None]
) -> None:
    """Writes an mp4 file of what a world model dreams beside what happened; none without path or model."""
    if path is None or not hasattr(actor, "dream"):
        return
    from hydrl.run.dream import FRAMES_PER_SECOND, draw_dream  # matplotlib

    first, *frames = draw_dream(actor, episode)
    with h264_writer(path, Fraction(FRAMES_PER_SECOND), *first.shape[:2]) as write:
        for frame in (first, *frames):
            check_stop()
            write(frame)


def steps_per_second(base: EnvBase) -> float:
    """The agent's steps in a second of simulated time.

    Gymnasium, PettingZoo and VMAS say how many steps the environment takes; an action may be repeated.
    """
    metadata, world = getattr(base, "metadata", None) or {}, getattr(base, "world", None)
    rate = metadata.get("render_fps") or 1 / getattr(world, "dt", 1 / SMOOTH)
    wrapper = getattr(base, "_env", None)
    while isinstance(wrapper, gymnasium.Wrapper):
        rate /= getattr(wrapper, ACTION_REPEATS.get(type(wrapper), ""), 1)
        wrapper = wrapper.env
    return rate


def episode_result(episode: TensorDictBase) -> tuple[float, int, bool]:
    """An episode's return, its steps and whether it was still running after the last of them."""
    steps = episode["next"].reshape(-1)  # with several agents it has a dimension of one environment
    return steps["episode_reward"][-1].item(), len(steps), not steps["done"][-1].item()


@torch.no_grad()
def watch(
    evaluator: PolicyEvaluator, frames: int, episodes: int, seed_stream: int
) -> Iterator[tuple[float, int, bool]]:
    """Plays an evaluation's episodes in a window, at the environment's speed.

    Yields:
        What :func:`record_episode` returns, as each episode ends.

    Raises:
        UserError: if the environment opens no window.
        KeyboardInterrupt: if the window is closed.
    """
    with closing(evaluator.make_env(render="human")) as env:
        load_normalizer(env, evaluator.normaliser())
        metadata = getattr(env.base_env, "metadata", None) or {}
        if "human" not in metadata.get("render_modes", ()):
            raise no_window(env, "it has no render mode human")
        for episode_number in range(episodes):
            seed = episode_seed(evaluator.seed, frames, seed_stream) + episode_number
            try:
                env.set_seed(seed)
            except Exception as error:  # whatever a simulator's graphics raise
                raise no_window(env, " ".join(str(error).split())) from error
            seed_generators(seed)
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                episode = env.rollout(evaluator.step_limit(env), evaluator.actor, raise_if_closed)
            yield episode_result(episode)


def no_window(env: EnvBase, reason: str) -> UserError:
    """The error for an environment that cannot be watched."""
    return UserError(f"render=human: {env_name(env)} opens no window: {reason}. Try video=true.")


def raise_if_closed(*_: object) -> None:
    """Ends as Ctrl-C does once the user has closed pygame's window."""
    pygame = sys.modules.get("pygame")
    if pygame and pygame.display.get_init() and pygame.event.peek(pygame.QUIT):
        raise KeyboardInterrupt


class EpisodeVideo:
    """Videos of a run: every so many frames as ``videos/FRAMES.mp4``, and at its end ``videos/final.mp4``.

    World models have videos of their dreams beside them, in ``dreams``.

    A video that fails is reported and costs the run nothing; one that a signal cuts short is not made again.

    Args:
        evaluator: has the environment and the actor.
        run_dir: the run folder.
        progress: the run's counters.
        clock: the run's.
        every: frames between videos; ``None`` makes none.

    Raises:
        UserError: if the environment cannot be rendered; one frame is rendered at once to see.
    """

    def __init__(
        self, evaluator: PolicyEvaluator, run_dir: Path, progress: Progress, clock: Clock, every: int | None
    ) -> None:
        self.evaluator, self.progress, self.clock, self.every = evaluator, progress, clock, every
        self.folder, self.dream_folder = run_dir / "videos", run_dir / "dreams"
        if every is not None:
            with preserve_rng(), closing(evaluator.make_env(render="rgb_array")) as env:
                env.base_env.reset()
                render_rgb(env)

    def maybe_record(self, check_stop: Callable[[], None], say: Say, show: Show) -> None:
        """Records the present policy if a video is due.

        Args:
            check_stop: as of :func:`record_episode`.
            say: prints a line.
            show: sends a video to the loggers, under a key.
        """
        if self.every is not None and self.progress.due(self.every):
            path = self.folder / f"{self.progress.frames:012}.mp4"
            self.record(path, metric_names.VIDEO, SeedStream.TRAINING, check_stop, say, show)

    def record_final_policy(self, check_stop: Callable[[], None], say: Say, show: Show) -> None:
        """Records the final policy, where the run makes videos; arguments as of :meth:`maybe_record`.

        Videos of later policies, which a solved run dropped, are removed.
        """
        if self.every is not None:
            for video in (*self.folder.glob("*.mp4"), *self.dream_folder.glob("*.mp4")):
                if video.stem.isdecimal() and int(video.stem) > self.progress.frames:
                    video.unlink()
            path = self.folder / "final.mp4"
            self.record(path, metric_names.FINAL_VIDEO, SeedStream.FINAL, check_stop, say, show)

    def record(
        self, path: Path, key: str, seed_stream: int, check_stop: Callable[[], None], say: Say, show: Show
    ) -> None:
        """Records a video and shows it under ``key``."""
        frames = self.progress.frames
        with self.clock.timeit(metric_names.RECORDING):
            try:
                dream_path = self.dream_folder / path.name
                _, steps, is_cut = record_episode(
                    self.evaluator, path, frames, seed_stream, check_stop, dream_path
                )
                if is_cut:
                    say(f"{path.name} is cut short: the episode still ran after {steps:,} steps")
                show(key, path)
            except Exception as error:  # of graphics, encoder, disk or loggers
                say(f"no video at {frames:,} frames: {error}")


def render_rgb(env: EnvBase) -> np.ndarray:
    """Renders an environment: ``[height, width, 3]`` of ``uint8``, height and width even as H.264 needs.

    Raises:
        UserError: if it cannot be rendered.
    """
    base = env.base_env
    try:
        with warnings.catch_warnings(action="ignore"):  # GLFW's, repeated by the error
            by_mode = "mode" in signature(base.render).parameters  # VMAS takes it at each frame
            frame = np.asarray(base.render(mode="rgb_array") if by_mode else base.render())
        if frame.dtype != np.uint8 or frame.shape[2:] != (3,):
            raise TypeError("its render() returns no RGB frames")
    except Exception as error:  # whatever a simulator's graphics raise
        reason = " ".join(str(error).split())
        if "OpenGL" in reason:  # without a display
            reason += " (MuJoCo draws through libEGL; on Debian and Ubuntu: apt install libegl1)"
        raise UserError(f"video=true: {env_name(env)} cannot be rendered: {reason}. Leave it out.") from error
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


def env_name(env: EnvBase) -> str:
    """The id of a Gymnasium environment, or the class name of another."""
    base = env.base_env
    return getattr(getattr(base, "spec", None), "id", getattr(base, "label", type(base).__name__))


@contextmanager
def h264_writer(path: Path, fps: Fraction, height: int, width: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Opens an mp4 file and yields the function that writes one frame; browsers play it while it loads.

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
