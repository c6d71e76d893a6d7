"""What environments, networks and collectors know of each other: specs, and what a policy must be told."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from torchrl.envs import CatFrames, EnvBase, GymWrapper, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule

from hydrl.errors import UserError

# What an actor's memory reads beside observations; primers write zeros where episodes begin.
HIDDEN = (*LSTMModule.DEFAULT_IN_KEYS, *GRUModule.DEFAULT_IN_KEYS)
INFO = "episode_info"  # entry below which numbers of Gymnasium's `info` stand, as the episode so far has them
LAG = ("collector", "policy_lag")  # entry that says of each frame how many newer policies there were by then
MASK = "action_mask"  # entry that says of each action whether it is allowed, beside the action


def action_spec(env: EnvBase) -> TensorSpec:
    """What one environment takes: ``[agents, ...]`` of several, a ``Composite`` of several groups of them."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normaliser without statistics yet hides the specs above it
        spec = env.base_env.action_spec_unbatched
    keys = spec.keys(True, True) if isinstance(spec, Composite) else []
    return spec[next(iter(keys))] if len(keys) == 1 else spec


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``multi-discrete``, ``continuous``, the same for several agents, or what nothing learns.

    It resets nothing.
    """
    spec, agents = action_spec(env), isinstance(env.base_env.action_keys[0], tuple)
    if options(spec) and len(spec.shape) == 1 + agents:
        kind = "multi-discrete"
    elif isinstance(spec, MultiOneHot) or (type(spec) is OneHot and len(spec.shape) > 1 + agents):
        kind = "one-hot multi-discrete"
    elif type(spec) in (OneHot, Categorical):  # their subclasses are several choices at once
        kind = "discrete"
    elif isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        kind = "continuous" if has_room(spec.space.low, spec.space.high) else "not finitely bounded"
    else:
        kind = type(spec).__name__
    return f"multi-agent {kind}" if agents else kind


def options(spec: TensorSpec) -> list[int]:
    """How many options each of several choices has, integers ``[..., choices]``; none for other actions."""
    choices = spec.shape[-1] if len(spec.shape) else 0
    if isinstance(spec, MultiCategorical):
        first, *others = spec.nvec.reshape(-1, choices).tolist()
        return first if all(each == first for each in others) else []
    several = isinstance(spec, Binary) or (type(spec) is Categorical and choices > 1)
    return [spec.space.n] * choices if several else []


def beside(key: NestedKey, name: str) -> NestedKey:
    """The entry ``name`` that stands where ``key`` does, of the same agents."""
    return (*key[:-1], name) if isinstance(key, tuple) else name


def within(spec: TensorSpec, key: NestedKey) -> TensorSpec:
    """A spec as libraries read the size of one agent's entry off it: in a group, ``[agents]``.

    One of a single agent stays as it is.
    """
    if not isinstance(key, tuple):
        return spec
    *groups, name = key
    made = Composite({name: spec}, shape=spec.shape[:1])
    for group in reversed(groups):
        made = Composite({group: made})
    return made


def mask_key(env: EnvBase) -> NestedKey | None:
    """The entry that says which actions are allowed, ``[..., actions]``; ``None`` where there is none.

    Of several choices it has all options of each in a row. It resets nothing.
    """
    base = env.base_env if isinstance(env, TransformedEnv) else env
    action = base.action_keys[0]
    agents = isinstance(action, tuple)
    mask = (*action[:-1], MASK) if agents else MASK
    if mask not in base.observation_spec.keys(True, True):
        return None
    spec = action_spec(base)
    if options(spec) and len(spec.shape) == 1 + agents:
        return mask if isinstance(spec, MultiCategorical) and not agents else None
    return mask if type(spec) in (OneHot, Categorical) else None


def random_action(env: EnvBase, now: TensorDictBase) -> TensorDictBase:
    """``env.rand_action(now)``, of the actions that ``now`` says are allowed, also without a transform."""
    if (mask := mask_key(env)) is None:
        return env.rand_action(now)
    spec = env.full_action_spec.clone()
    spec[env.action_key].update_mask(now[mask])
    return now.update(spec.rand())


def exploring(make: Callable[..., Any], env: EnvBase, actor: TensorDictModuleBase) -> Any:
    """What explores in an environment, by a builder of it; where actions may be forbidden, among the others.

    Raises:
        UserError: for an actor, or what explores, that takes no heed of what is forbidden.
    """
    spec, mask = action_spec(env), mask_key(env)
    if "action_key" in signature(make).parameters and isinstance(env.action_key, tuple):
        make, spec = partial(make, action_key=env.action_key), within(spec, env.action_key)
    if mask is None:
        return make(spec)
    instead = "env.action_mask=false, of a task of Gymnasium's, lets them be tried"
    if mask not in actor.in_keys:
        read = ", ".join(map(str, actor.in_keys))
        raise UserError(f"actor reads {read}, and not {mask}, which says what is forbidden; {instead}")
    if "action_mask_key" in signature(make).parameters:
        return make(spec, action_mask_key=mask)
    if (made := make(spec)) is not None:
        name = type(made).__name__
        raise UserError(
            f"exploration: {name} takes no action_mask_key, and would choose forbidden actions; {instead}"
        )
    return None


def has_room(low: Any, high: Any) -> bool:
    """Whether every action has finite bounds, one above the other."""
    span = torch.as_tensor(high).float() - torch.as_tensor(low).float()
    return bool((span.isfinite() & (span > 0)).all())


def seen(env: EnvBase) -> list[NestedKey]:
    """The observation entries that networks read where nobody names them: all that a Gymnasium task shows.

    Of others it is ``observation``, or ``pixels`` where there is none.
    """
    base = env.base_env if isinstance(env, TransformedEnv) else env
    unread = (INFO, mask_key(base))
    own = [key for key in base.observation_spec.keys(True, True) if key not in unread and key[0] != INFO]
    if not vars(base).get("shows_all", isinstance(base, GymWrapper)):
        return ["pixels"] if "pixels" in own and "observation" not in own else ["observation"]
    given = env.observation_spec.keys(True, True)
    if "observation" in given and "observation" not in own:  # what transforms made of them
        return ["observation"]
    return [key for key in own if key in given]


def vectors(env: EnvBase) -> list[NestedKey]:
    """Those of :func:`seen` that are vectors of floats."""
    spec = env.observation_spec
    return [key for key in seen(env) if key not in spec.keys(True, True) or is_vector(spec, key)]


def is_vector(spec: Composite, key: NestedKey) -> bool:
    """Whether an observation entry is a vector of floats."""
    return spec[key].dtype.is_floating_point and len(spec[key].shape) == spec.ndim + 1


def is_picture(spec: Composite, key: NestedKey) -> bool:
    """Whether it is one picture, ``[C, H, W]``."""
    return len(spec[key].shape) == spec.ndim + 3


def require_entries(spec: Composite, in_keys: Sequence[NestedKey]) -> None:
    """Refuses entries that are not there, or are neither floats nor pictures.

    Raises:
        UserError: naming those there are.
    """
    given = spec.keys(True, True)
    for key in in_keys:
        if key not in given:
            raise UserError(f"in_keys={in_keys}: the environment gives {', '.join(map(str, given))}")
        kind, shape = spec[key].dtype, list(spec[key].shape)
        if is_picture(spec, key):
            continue
        if not kind.is_floating_point or len(shape) <= spec.ndim:
            raise UserError(
                f"in_keys={in_keys}: {key} is {kind} of shape {shape}, and vectors of floats are read; make "
                "it one with the transform DTypeCastTransform, OneHotTransform or UnsqueezeTransform"
            )


def require_vectors(spec: Composite, in_keys: Sequence[NestedKey], reader: str) -> None:
    """Refuses what :func:`require_entries` does, and pictures.

    Raises:
        UserError: naming the ``reader``, which has no use for them.
    """
    require_entries(spec, in_keys)
    for key in in_keys:
        if is_picture(spec, key):
            size = " x ".join(map(str, spec[key].shape[spec.ndim :]))
            raise UserError(f"in_keys={in_keys}: {key} is a picture of {size}, and {reader} reads vectors")


def size_of(spec: Composite, in_keys: Sequence[NestedKey], reader: str = "what has no encoder") -> int:
    """How many numbers the observation entries have together.

    Raises:
        UserError: if the environment does not give them, or gives pictures.
    """
    require_vectors(spec, in_keys, reader)
    return sum(spec[key].shape[-1] for key in in_keys)


def restarts_with_episodes(policy: TensorDictModuleBase) -> bool:
    """Whether it must be told where episodes begin, as a memory and Ornstein-Uhlenbeck noise must.

    TorchRL then adds what it needs to an environment: ``InitTracker``, and primers of hidden states.
    """
    return "is_init" in policy.in_keys or any(hasattr(each, "is_init_key") for each in policy.modules())


def pictures(env: TransformedEnv) -> tuple[list[NestedKey], int]:
    """The observation entries that are pictures of bytes, ``[k * C, H, W]``, and how many frames each is of.

    One where nothing says that they are stacked, or not all are of as many.
    """
    spec = env.observation_spec
    keys = [key for key in spec.keys(True, True) if spec[key].dtype == torch.uint8 and is_picture(spec, key)]
    found = [each.N for each in env.transform if isinstance(each, CatFrames) and each.dim == -3]
    if isinstance(env.base_env, GymWrapper):
        task = env.base_env._env
        task = getattr(task, "envs", [task])[0]
        found += [task.get_wrapper_attr("stack_size")] if task.has_wrapper_attr("stack_size") else []
    whole = [each for each in found if all(spec[key].shape[-3] % each == 0 for key in keys)]
    return keys, whole[0] if whole else 1
