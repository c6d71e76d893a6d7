"""Time limits of episodes."""

from collections.abc import Iterator

from gymnasium import Env
from torchrl.envs import EnvBase, SerialEnv, StepCounter, TransformedEnv

from hydrl.specs import first_gym_env

MAX_EPISODE_STEPS = 30_000  # of an evaluation, whatever the environment's limit
DEFAULT_EPISODE_STEPS = 1_000  # the same without a time limit


def time_limit(env: EnvBase) -> int | None:
    """The time limit in steps of the Gymnasium or JAX environment below ``env``, if there is one."""
    if (gym_env := first_gym_env(env)) is None:
        base = env.base_env if isinstance(env, TransformedEnv) else env
        return vars(base).get("max_episode_steps")
    if limit := getattr(gym_env.spec, "max_episode_steps", None):
        return limit
    # A wrapper TimeLimit around an unregistered environment.
    name = "_max_episode_steps"
    known = isinstance(gym_env, Env) and gym_env.has_wrapper_attr(name)
    return gym_env.get_wrapper_attr(name) if known else None


def episode_limit(env: EnvBase) -> int:
    """The steps after which ``eval.max_steps=auto`` stops an episode: its time limit, if it has one."""
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
