"""Brax's robots, stepped together by JAX (Freeman et al. 2021)."""

import warnings
from functools import cache
from typing import Any, Literal

import mujoco
import numpy as np
import torch
from torchrl.data import Bounded
from torchrl.envs import EnvBase

from hydrl.envs.jax_env import FunctionalSimulator, JaxEnv, JaxFamily, Outcome, load_jax
from hydrl.envs.optional import check_id
from hydrl.errors import UserError

# The ids, which Brax lists privately.
IDS = (
    *("ant", "fast", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_pendulum"),
    *("inverted_double_pendulum", "pusher", "reacher", "swimmer", "walker2d"),
)
VIDEO_SIZE = (240, 320)  # height and width, Brax's default


def make(
    id: str,
    num_envs: int = 1,
    device: str = "cpu",
    backend: Literal["generalized", "spring", "positional", "mjx"] | None = None,
    max_episode_steps: int = 1_000,
    **kwargs: Any,
) -> EnvBase:
    """Makes environments of Brax; actions are between -1 and 1, as Brax's own agents have them.

    Args:
        id: as ``ant``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live.
        backend: the physics; ``None``: the environment's default, ``generalized``.
        max_episode_steps: steps after which an episode is truncated, by Brax's ``EpisodeWrapper``.
        **kwargs: passed to the environment.

    Raises:
        UserError: for an unknown id or keyword, a limit below 1, or if Brax is not installed.
    """
    if max_episode_steps < 1:
        raise UserError(f"env.max_episode_steps={max_episode_steps}: should be 1 or more.")
    options = dict(sorted(kwargs.items())) | ({"backend": backend} if backend else {})
    return JaxEnv(load_simulator(id, max_episode_steps, **options), num_envs, device)


make.env_family = JaxFamily()  # type: ignore[attr-defined]


@cache
def load_simulator(id: str, limit: int, **options: Any) -> "BraxSimulator":
    """The simulator of an environment, whose compiled functions a process shares."""
    brax_envs = load_jax("brax.envs", "brax")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Brax System")  # that Brax is little maintained
            env = brax_envs.get_environment(id, **options)
    except KeyError:
        check_id(id, IDS, "environment of Brax")
        raise
    except TypeError as error:
        if "keyword" not in str(error):
            raise
        raise UserError(f"env.id={id}: cannot be created: {error}. Leave the keyword out.") from error
    return BraxSimulator(id, env, limit)


class BraxSimulator(FunctionalSimulator):
    """An environment of Brax under its own time limit.

    Args:
        id: its name.
        env: a ``brax.envs.Env``.
        limit: steps of an episode.
    """

    def __init__(self, id: str, env: Any, limit: int) -> None:
        from brax.envs.wrappers.training import EpisodeWrapper

        self.id, self.max_episode_steps, self.fps = id, limit, 1 / float(env.dt)
        self.env = EpisodeWrapper(env, limit, action_repeat=1)
        self.action_spec = Bounded(-1.0, 1.0, (env.action_size,), dtype=torch.float32)
        self.renderer: mujoco.Renderer | None = None

    def reset(self, key: Any) -> Any:
        """The first state."""
        return self.env.reset(key)

    def step(self, state: Any, action: Any) -> Any:
        """The next state."""
        return self.env.step(state, action)

    def observe(self, state: Any) -> tuple[Any, None]:
        """Brax's observation; it has no action masks."""
        return state.obs, None

    def outcome(self, state: Any) -> Outcome:
        """Brax's reward, and its ``done`` apart from the time limit."""
        truncated = np.array(state.info["truncation"]) > 0
        return Outcome(state.reward, (np.array(state.done) > 0) & ~truncated, truncated)

    def render(self, state: Any) -> np.ndarray:
        """An image by MuJoCo's renderer, as ``brax.io.image`` draws them."""
        model = self.env.sys.mj_model
        self.renderer = self.renderer or mujoco.Renderer(model, *VIDEO_SIZE)
        data, pipeline_state = mujoco.MjData(model), state.pipeline_state
        data.qpos, data.qvel = np.array(pipeline_state.q[0]), np.array(pipeline_state.qd[0])
        mujoco.mj_forward(model, data)
        self.renderer.update_scene(data)
        return self.renderer.render()
