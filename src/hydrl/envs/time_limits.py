"""Time limits of episodes."""

from collections.abc import Iterator

from gymnasium import Env
from torchrl.envs import (
    EnvBase,
    GymWrapper,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

MAX_EPISODE_STEPS = 30_000  # steps of an evaluation's episode, whatever the task's limit
DEFAULT_EPISODE_STEPS = 1_000  # the same where the task has none


def time_limit(env: EnvBase) -> int | None:
    """The time limit in steps of the Gymnasium environment below ``env``, if there is one."""
    below = env.base_env if isinstance(env, TransformedEnv) else env
    if not isinstance(below, GymWrapper):
        return None
    tasks = below._env
    task, name = getattr(tasks, "envs", [tasks])[0], "_max_episode_steps"
    if limit := getattr(task.spec, "max_episode_steps", None):
        return limit
    # Of a wrapper TimeLimit around a task that is not registered.
    return task.get_wrapper_attr(name) if isinstance(task, Env) and task.has_wrapper_attr(name) else None


def episode_limit(env: EnvBase) -> int:
    """The steps after which ``eval.max_steps=auto`` stops an episode: its own limit, if it has one."""
    return min(MAX_EPISODE_STEPS, *limits) if (limits := list(find_limits(env))) else DEFAULT_EPISODE_STEPS


def find_limits(env: EnvBase) -> Iterator[int]:
    """The time limits of an environment after its first reset: those of its transforms and its own."""
    if isinstance(env, TransformedEnv):
        counters = [transform for transform in env.transform.modules() if isinstance(transform, StepCounter)]
        yield from (counter.max_steps for counter in counters if counter.max_steps)
        yield from find_limits(env.base_env)
    elif isinstance(env, SerialEnv):
        yield from find_limits(env._envs[0])
    elif limit := time_limit(env):
        yield limit
