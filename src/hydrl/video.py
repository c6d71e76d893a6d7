"""A film of one episode: the deterministic policy in an environment of its own, as an mp4 browsers play."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.envs import load_normaliser
from hydrl.errors import UserError
from hydrl.evaluation import untouched_randomness
from hydrl.files import whole
from hydrl.headless import explain


@dataclass(frozen=True)
class Film:
    """What :func:`film` made.

    Attributes:
        path: the mp4; it has a frame for the start and one for every step.
        episode_return: of the filmed episode, undiscounted, before any reward transform.
        length: of the filmed episode, steps.
    """

    path: Path
    episode_return: float
    length: int


@torch.no_grad()
def film(
    make_env: Callable[..., TransformedEnv],
    actor: TensorDictModuleBase,
    normaliser: dict[str, Any],
    path: Path,
    *,
    seed: int,
    max_steps: int,
    episodes: int = 1,
) -> Film:
    """Films the first episode of the evaluation that ``seed`` and ``episodes`` belong to.

    On the CPU a Gymnasium task's filmed return equals that evaluation's first to the last bit. Call
    :func:`hydrl.headless.prepare` before MuJoCo is imported. Global random number generators are left alone.

    Args:
        make_env: ``make_env(render=True)`` builds an environment that gives frames.
        actor: the policy without exploration.
        normaliser: statistics to play with, from :func:`hydrl.envs.normaliser_state`.
        path: where the mp4 goes; written beside and renamed.
        seed: the environment's, from :meth:`hydrl.evaluation.Evaluator.episode_seed`.
        max_steps: the film ends there if the episode has not.
        episodes: how many the evaluation plays together.

    Raises:
        UserError: if the environment gives no frames or the file cannot be written.
    """
    with (
        untouched_randomness(),
        set_exploration_type(ExplorationType.DETERMINISTIC),
        closing(stage(make_env)) as env,
    ):
        load_normaliser(env, normaliser)
        env.set_seed(seed)
        now = env.reset()
        first, length = picture(env), 0
        with encoder(path, frames_per_second(env), *first.shape[:2]) as write:
            write(first)
            for _ in range(max_steps):
                now = env.step(act(actor, now, episodes))
                write(picture(env))
                length += 1
                after = now["next"]
                if after["done"].item():
                    break
                now = env.step_mdp(now)
        return Film(path, after["episode_reward"].item(), length)


def stage(make_env: Callable[..., TransformedEnv]) -> TransformedEnv:
    """An environment that gives frames.

    Raises:
        UserError: if it cannot be made so.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Gymnasium's, said again by the error
            return make_env(render=True)
    except UserError as error:
        raise UserError(f"video=true: {error}") from error


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
    task = name(env.base_env)
    try:
        with warnings.catch_warnings(action="ignore"):  # GLFW's, said again by the error
            frame = np.asarray(env.base_env.render())
    except Exception as error:  # whatever a simulator's graphics raise
        raise UserError(f"{task} cannot be filmed: {explain(error)}") from error
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UserError(f"{task} cannot be filmed: its render() gives no RGB frames; use video=false")
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def name(env: EnvBase) -> str:
    """What to call an environment: its Gymnasium id or its class."""
    spec = getattr(env, "spec", None)
    return getattr(spec, "id", type(env).__name__)


def frames_per_second(env: TransformedEnv) -> Fraction:
    """The speed the environment says its frames follow at; 30 where it says nothing."""
    metadata = getattr(env.base_env, "metadata", None) or {}
    return Fraction(metadata.get("render_fps") or 30).limit_denominator(1_000)


@contextmanager
def encoder(path: Path, fps: Fraction, height: int, width: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Writes the pictures given to the function it yields as H.264 that starts playing while it loads.

    Raises:
        UserError: where the file cannot be written.
    """
    import av

    with (
        whole(path) as partial,
        av.open(str(partial.absolute()), "w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"

        def write(frame: np.ndarray) -> None:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))

        yield write
        container.mux(stream.encode())
