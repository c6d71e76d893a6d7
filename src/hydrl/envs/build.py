"""The one builder of environments: a base environment under its transforms, seeded before any reset."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import gymnasium
import mujoco
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import (
    Compose,
    EnvBase,
    RandomTruncationTransform,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs
from torchrl.modules.utils import get_env_transforms_from_module

from hydrl.envs.action_masks import NOT_DISCRETE
from hydrl.envs.checked_env import copy_kwargs, is_env_error
from hydrl.envs.gymnasium import for_evaluation, gymnasium_env
from hydrl.envs.normalization import init_normalizers, load_normalizer, normalizer_state
from hydrl.envs.pettingzoo import pettingzoo_env
from hydrl.envs.transforms import ActionMask, CopyTensors, MeanAgentReturn
from hydrl.errors import RunError, UserError
from hydrl.library_setup import warn_of_mujoco, warn_once
from hydrl.specs import AGENTS, MASK, action_kind, agent_groups, are_alike, mask_keys, needs_episode_starts

MakeEnv = Callable[..., EnvBase]
MakeTransform = Callable[..., Transform | None]


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normaliser: dict[str, Any] | None = None,
    seed: int | None = None,
    render: str | None = None,
    policy: TensorDictModuleBase | None = None,
) -> TransformedEnv:
    """Builds an environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order; ``RewardSum`` always comes first, so that returns are raw, and
            is added if missing. Builders that return ``None`` are left out. With several agents
            ``episode_reward`` is the mean of their returns, and each group's own mean is logged beside it.
        num_envs: environments stepped together.
        device: where the tensors live.
        normaliser: the state of another environment's normalizers (see :func:`normalizer_state`), which are
            then loaded instead of initialised.
        seed: seeds the environment before anything can reset it.
        render: a Gymnasium render mode: ``rgb_array`` returns images, ``human`` opens a window.
        policy: of an evaluation. Adds the transforms it needs, as an RNN's primers, and leaves out whatever
            is for training alone.
    """
    if policy is not None and isinstance(make, partial) and make.func is gymnasium_env:
        make = for_evaluation(make)
    base = make_base_env(make, num_envs, device, render)
    left_out = () if policy is None else RandomTruncationTransform
    built = [
        transform
        for part in transforms
        for transform in build_transforms(base, part)
        if not isinstance(transform, left_out)
    ]
    stack = sorted(built, key=lambda transform: not isinstance(transform, RewardSum))
    if not (stack and isinstance(stack[0], RewardSum)):
        stack.insert(0, RewardSum())
    stack[1:1] = mask_transforms(base, make)  # before whatever takes statistics of random frames
    if paid := [key for key in base.reward_keys if isinstance(key, tuple)]:
        stack.insert(1, MeanAgentReturn([(*key[:-1], f"episode_{key[-1]}") for key in paid]))
    if getattr(make, "func", make) is not gymnasium_env:  # whose tasks are handed copies already
        stack.append(CopyTensors())
    if policy is not None and needs_episode_starts(policy):
        stack.append(get_env_transforms_from_module(policy))
    env = TransformedEnv(base, Compose(*stack))
    if normaliser is not None:
        load_normalizer(env, normaliser)
    if seed is not None:
        env.set_seed(seed)
    return env


def prepare_env(
    env: TransformedEnv,
    check: Callable[..., object],
    seed: int,
    statistics: dict[str, Any] | int | None,
    target: str,
) -> Callable[[], dict[str, Any]]:
    """Checks and seeds a training environment, and gives its normalizers their statistics.

    Args:
        env: as it is built.
        check: called with its action kind, its groups of agents, and whether they are ``alike``; raises if
            the run cannot train in it.
        seed: of the environment.
        statistics: of a checkpoint, or the number of random frames they are taken from.
        target: as of :func:`explain_spec_errors`.

    Returns:
        What gives the statistics of its normalizers, see :func:`normalizer_state`.

    Raises:
        UserError: if the environment does not keep to its specs.
    """
    check(action_kind(env), [*agent_groups(env)], alike=are_alike(env))
    env.set_seed(seed)
    frames, known = (None, statistics) if isinstance(statistics, dict) else (statistics, None)
    with explain_spec_errors(target):
        init_normalizers(env, frames, known)
        check_env_specs(env)
    return partial(normalizer_state, env)


@contextmanager
def explain_spec_errors(target: str) -> Iterator[None]:
    """Explains errors in the block that come from an environment violating its own specs.

    Args:
        target: the dotted name of its maker. Errors of hydrl's own makers and of the environment's own code
            keep their traceback.

    Raises:
        UserError: in place of an error of TorchRL's, as for a game in which players take turns.
    """
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        if target.startswith("hydrl.") or is_env_error(error):
            raise
        reason = " ".join(str(error).split())
        raise UserError(
            f"env._target_={target}: it does not keep to its specs under TorchRL's transforms: {reason}; "
            "torchrl.envs.utils.check_env_specs(ENV) checks an environment, and env=self_play has games in "
            "which players take turns"
        ) from error


def mask_transforms(base: EnvBase, make: MakeEnv) -> list[Transform]:
    """Transforms that keep random actions valid, if the environment gives action masks."""
    maker: Any = getattr(make, "func", make)
    id = getattr(make, "keywords", {}).get("id")
    named = f"env.id={id}" if id else getattr(type(base), "label", maker.__name__)
    if heeded := mask_keys(base):
        return [ActionMask(action, mask, named) for action, mask in heeded.items()]
    if any(MASK in (key, key[-1]) for key in base.observation_spec.keys(True, True)):
        warn_once(f"{named} says by {MASK} which actions are forbidden, and they are tried: {NOT_DISCRETE}")
    return []


def build_transforms(base: EnvBase, transform: MakeTransform) -> list[Transform]:
    """Builds a transform, if any, as a list; builders with a parameter ``env`` get the base environment."""
    built = transform(env=base) if "env" in signature(transform).parameters else transform()
    if built is None:
        return []
    return [*built.transforms] if type(built) is Compose else [built]


def make_base_env(make: MakeEnv, num_envs: int, device: str, render: str | None = None) -> EnvBase:
    """Builds ``num_envs`` environments without transforms; ``make`` may be any TorchRL environment class.

    One whose constructor takes ``num_envs``, as VMAS, steps them all itself.
    """
    mujoco.set_mju_user_warning(warn_of_mujoco)  # else it writes MUJOCO_LOG.TXT into the working folder
    maker: Any = getattr(make, "func", make)
    if maker in (gymnasium_env, pettingzoo_env) and render:
        make = partial(make, render_mode=render)
    is_class = isinstance(maker, type)
    constructor = maker.__init__ if is_class else maker  # TorchRL's metaclass hides a class's own signature
    if "num_envs" in signature(constructor).parameters:
        env = build_env(make, num_envs=num_envs, device=device)
        agents = [*getattr(env, "group_map", {}).values()]
        if len(agents) == 1 and AGENTS not in env.group_map:  # as VMAS' football has agent_blue_0 alone
            env.close()
            env = build_env(make, num_envs=num_envs, device=device, group_map={AGENTS: agents[0]})
        return env
    one = partial(build_env, make, device=device)
    return one() if num_envs == 1 else SteadySerialEnv(num_envs, one)


def build_env(make: MakeEnv, **kwargs: Any) -> EnvBase:
    """Builds one base environment from a copy of its keywords, which it may change.

    Raises:
        UserError: for a ``gymnasium.Env``, or keywords that VMAS ignores.
    """
    if isinstance(make, partial):
        make = partial(make.func, *make.args, **copy_kwargs(make.keywords))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Scenario kwargs")
        try:
            env = make(**kwargs)
        except UserWarning as error:
            passed = str(error).removeprefix("Scenario kwargs: ").partition(". This")[0]
            raise UserError(f"env.scenario_kwargs: {passed}; VMAS' source has their names") from None
    if isinstance(env, gymnasium.Env):
        raise UserError(
            f"env makes {type(env).__name__}, a task of Gymnasium's; register it and write env=gym "
            "env.id=MODULE:NAME, or hand its class over to hydrl.train as env=CLASS"
        )
    return env


class SteadySerialEnv(SerialEnv):
    """``SerialEnv`` that leaves PyTorch's number of threads alone when it closes.

    TorchRL's raises it, and more threads round sums differently. An environment nobody closed is closed by
    the garbage collector, maybe in the middle of a later run.
    """

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes every environment."""
        threads = torch.get_num_threads()
        super().close(raise_if_closed=raise_if_closed)
        torch.set_num_threads(threads)
