"""Specs: queries of environments' specs, which networks, losses and collectors share."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
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

NO_ENCODER = "a network without encoder"
# Hidden states that an RNN reads; primers write zeros at the start of episodes.
RNN_STATE_KEYS = (*LSTMModule.DEFAULT_IN_KEYS, *GRUModule.DEFAULT_IN_KEYS)
CONTEXT_KEYS = ("context", "context_steps")  # earlier steps that a decision transformer reads, likewise
PLAN = "plan"  # entry: the plan that a planning policy continues, [horizon, action] in [-1, 1]; likewise
BOOTSTRAP = "bootstrap"  # entry: how often a row is in each ensemble member's data, [members]
INFO = "episode_info"  # parent entry of values of Gymnasium's `info`, for the episode so far
LAG = ("collector", "policy_lag")  # entry: number of newer policies when a frame was trained on
MASK = "action_mask"  # entry: the action mask, a sibling of the action
AGENTS = "agents"  # name of a single group of agents; in configurations, any group
ALIVE = "alive"  # entry of a group: whether each agent still acts, as it may end before its episode
GONE = "gone"  # entry of a group: whether each agent has terminated


def action_spec(env: EnvBase) -> TensorSpec:
    """The action spec of one environment: ``[agents, ...]``, or a ``Composite`` of groups of agents."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normalizer without statistics hides the specs above it
        spec = env.base_env.action_spec_unbatched
    keys = spec.keys(True, True) if isinstance(spec, Composite) else []
    return spec[next(iter(keys))] if len(keys) == 1 else spec


def agent_groups(env: EnvBase) -> dict[str, TensorSpec]:
    """The action specs of groups of agents, ``[agents, ...]``, by name; empty for a single agent."""
    base, spec = env.base_env if isinstance(env, TransformedEnv) else env, action_spec(env)
    keys = [key for key in base.action_keys if isinstance(key, tuple)]
    return {key[0]: spec[key] if isinstance(spec, Composite) else spec for key in keys}


def single_group_spec(env: EnvBase) -> TensorSpec:
    """The action spec of the only group of agents.

    Raises:
        UserError: for several groups.
    """
    if len(groups := agent_groups(env)) > 1:
        raise UserError(
            f"agents are in the groups {' and '.join(groups)}, and this network is for one group. Write "
            "actor=multi_agent."
        )
    return action_spec(env)


def are_alike(env: EnvBase) -> bool:
    """Whether all groups of agents have the same observations and actions."""
    base = env.base_env if isinstance(env, TransformedEnv) else env
    observations = base.observation_spec_unbatched
    entries = [key for key in observations.keys(True, True) if isinstance(key, tuple)]
    kinds = [
        (
            spec[0],
            {
                key[1:]: (observations[key].shape[1:], observations[key].dtype)
                for key in entries
                if key[0] == group
            },
        )
        for group, spec in agent_groups(env).items()
    ]
    return all(kind == kinds[0] for kind in kinds)


def group_key(key: NestedKey, group: str) -> NestedKey:
    """A configured entry of ``agents`` as that of a group."""
    return (group, *key[1:]) if isinstance(key, tuple) and key[0] == AGENTS else key


def group_network(networks: Any, name: str, group: str) -> Any:
    """A group's network in a module of several groups' networks.

    Raises:
        UserError: if it has none.
    """
    for network in networks if isinstance(networks, TensorDictSequential) else ():
        if any(key[0] == group for key in network.out_keys):
            return network
    raise UserError(f"{name}: it has no network for the agents {group}. Write {name}=multi_agent.")


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``multi-discrete``, ``continuous``, the same for several agents, or an unsupported kind.

    It does not reset the environment.
    """
    if of_agents := agent_groups(env):
        return f"multi-agent {' and '.join(sorted({*map(action_kind_of, of_agents.values())}))}"
    return action_kind_of(action_spec(env), agents=0)


def action_kind_of(spec: TensorSpec, agents: int = 1) -> str:
    """The kind of actions of one agent, or of a group's agents, ``[agents, ...]``."""
    if choice_sizes(spec) and len(spec.shape) == 1 + agents:
        kind = "multi-discrete"
    elif isinstance(spec, MultiOneHot) or (type(spec) is OneHot and len(spec.shape) > 1 + agents):
        kind = "one-hot multi-discrete"
    elif type(spec) in (OneHot, Categorical):  # their subclasses are several choices at once
        kind = "discrete"
    elif isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        kind = "continuous" if has_room(spec.space.low, spec.space.high) else "not finitely bounded"
    else:
        kind = type(spec).__name__
    return kind


def choice_sizes(spec: TensorSpec) -> list[int]:
    """The number of options of each choice in multi-discrete actions ``[..., choices]``; empty for others."""
    choices = spec.shape[-1] if len(spec.shape) else 0
    if isinstance(spec, MultiCategorical):
        first, *others = spec.nvec.reshape(-1, choices).tolist()
        return first if all(sizes == first for sizes in others) else []
    several = isinstance(spec, Binary) or (type(spec) is Categorical and choices > 1)
    return [spec.space.n] * choices if several else []


def sibling_key(key: NestedKey, name: str) -> NestedKey:
    """The sibling entry ``name`` of ``key``, of the same agents."""
    return (*key[:-1], name) if isinstance(key, tuple) else name


def nested_spec(spec: TensorSpec, key: NestedKey) -> TensorSpec:
    """A spec from which libraries read the size of one agent's entry: for a group, ``[agents]``.

    For a single agent the spec itself.
    """
    if not isinstance(key, tuple):
        return spec
    *groups, name = key
    nested = Composite({name: spec}, shape=spec.shape[:1])
    for group in reversed(groups):
        nested = Composite({group: nested})
    return nested


def mask_key(env: EnvBase, action: NestedKey | None = None) -> NestedKey | None:
    """The entry of the action mask, ``[..., actions]``; ``None`` without one.

    For multi-discrete actions it concatenates all choices' options. It does not reset the environment.
    ``action`` is the action entry, for several groups of agents.
    """
    base = env.base_env if isinstance(env, TransformedEnv) else env
    action = action or base.action_keys[0]
    agents = isinstance(action, tuple)
    mask = (*action[:-1], MASK) if agents else MASK
    if mask not in base.observation_spec.keys(True, True):
        return None
    spec = base.full_action_spec_unbatched[action]
    if choice_sizes(spec) and len(spec.shape) == 1 + agents:
        return mask if isinstance(spec, MultiCategorical) and not agents else None
    return mask if type(spec) in (OneHot, Categorical) else None


def mask_keys(env: EnvBase) -> dict[NestedKey, NestedKey]:
    """:func:`mask_key` by action entry, for those that have one."""
    masks = {action: mask_key(env, action) for action in env.action_keys}
    return {action: mask for action, mask in masks.items() if mask is not None}


def random_action(env: EnvBase, now: TensorDictBase) -> TensorDictBase:
    """``env.rand_action(now)`` with valid actions, also without an ``ActionMask`` transform."""
    if not (masks := mask_keys(env)):
        return env.rand_action(now)
    spec = env.full_action_spec.clone()
    for action, mask in masks.items():
        spec[action].update_mask(now[mask])
    return now.update(spec.rand())


def make_exploration(make: Callable[..., Any], env: EnvBase, actor: TensorDictModuleBase) -> Any:
    """Builds the exploration of an environment, which respects its action masks.

    Raises:
        UserError: for an actor or exploration that ignores action masks.
    """
    spec, masks = action_spec(env), [*mask_keys(env).values()]
    key, *others = env.action_keys
    if "action_key" in signature(make).parameters and isinstance(key, tuple) and not others:
        make, spec = partial(make, action_key=key), nested_spec(spec, key)
    if not masks:
        return make(spec)
    advice = "For a Gymnasium environment, env.action_mask=false ignores the mask."
    for mask in masks:
        if mask not in actor.in_keys:
            read = ", ".join(map(str, actor.in_keys))
            raise UserError(f"actor: it reads {read}, but not the action mask {mask}. {advice}")
    if "action_mask_key" in signature(make).parameters and len(masks) == 1:
        return make(spec, action_mask_key=masks[0])
    if (exploration := make(spec)) is not None:
        name = type(exploration).__name__
        raise UserError(
            f"exploration: {name} takes no action_mask_key, and would choose invalid actions. {advice}"
        )
    return None


def has_room(low: Any, high: Any) -> bool:
    """Whether all actions have finite bounds, low below high."""
    span = torch.as_tensor(high).float() - torch.as_tensor(low).float()
    return bool((span.isfinite() & (span > 0)).all())


def observation_keys(env: EnvBase) -> list[NestedKey]:
    """The observation entries that networks read by default: all of a Gymnasium environment.

    With other environments it is ``observation``, or ``pixels`` if there is none.
    """
    base = env.base_env if isinstance(env, TransformedEnv) else env
    unread = (INFO, mask_key(base))
    own = [key for key in base.observation_spec.keys(True, True) if key not in unread and key[0] != INFO]
    if not vars(base).get("shows_all", isinstance(base, GymWrapper)):
        return ["pixels"] if "pixels" in own and "observation" not in own else ["observation"]
    entries = env.observation_spec.keys(True, True)
    if "observation" in entries and "observation" not in own:  # made by transforms
        return ["observation"]
    return [key for key in own if key in entries]


def vector_keys(env: EnvBase) -> list[NestedKey]:
    """Those of :func:`observation_keys` that are vectors of floats."""
    spec = env.observation_spec
    return [key for key in observation_keys(env) if key not in spec.keys(True, True) or is_vector(spec, key)]


def is_vector(spec: Composite, key: NestedKey) -> bool:
    """Whether an observation entry is a vector of floats."""
    return spec[key].dtype.is_floating_point and len(spec[key].shape) == spec.ndim + 1


def is_image(spec: Composite, key: NestedKey) -> bool:
    """Whether an observation entry is an image, ``[C, H, W]``."""
    return len(spec[key].shape) == spec.ndim + 3


def require_entries(spec: Composite, in_keys: Sequence[NestedKey]) -> None:
    """Refuses entries that are missing, or neither floats nor images.

    Raises:
        UserError: naming the existing ones.
    """
    entries = spec.keys(True, True)
    for key in in_keys:
        if key not in entries:
            raise UserError(
                f"in_keys={in_keys}: no such entry as {key}. Entries are {', '.join(map(str, entries))}."
            )
        kind, shape = spec[key].dtype, list(spec[key].shape)
        if is_image(spec, key):
            continue
        if not kind.is_floating_point or len(shape) <= spec.ndim:
            raise UserError(
                f"in_keys={in_keys}: {key} is {kind} of shape {shape}, not a vector of floats. Convert it by "
                "the transform DTypeCastTransform, OneHotTransform or UnsqueezeTransform."
            )


def require_vectors(spec: Composite, in_keys: Sequence[NestedKey], reader: str) -> None:
    """Refuses what :func:`require_entries` does, and images.

    Raises:
        UserError: naming the ``reader`` that needs vectors.
    """
    require_entries(spec, in_keys)
    for key in in_keys:
        if is_image(spec, key):
            size = " x ".join(map(str, spec[key].shape[spec.ndim :]))
            advice = " Write encoder=auto, or critic.encoder=own." if reader == NO_ENCODER else ""
            raise UserError(
                f"in_keys={in_keys}: {key} is an image of {size}, and {reader} reads vectors.{advice}"
            )


def total_size(spec: Composite, in_keys: Sequence[NestedKey], reader: str = NO_ENCODER) -> int:
    """The size of vector entries together.

    Raises:
        UserError: if they are missing, or images.
    """
    require_vectors(spec, in_keys, reader)
    return sum(spec[key].shape[-1] for key in in_keys)


def needs_episode_starts(policy: TensorDictModuleBase) -> bool:
    """Whether a policy must know where episodes begin, as an RNN or Ornstein-Uhlenbeck noise.

    TorchRL then adds transforms to an environment: ``InitTracker``, and primers of hidden states.
    """
    return "is_init" in policy.in_keys or any(hasattr(module, "is_init_key") for module in policy.modules())


def first_gym_env(env: EnvBase) -> Any:
    """The first Gymnasium environment below a TorchRL environment; ``None`` if there is none."""
    base = env.base_env if isinstance(env, TransformedEnv) else env
    tasks = base._env if isinstance(base, GymWrapper) else vars(base).get("gym_env")
    return getattr(tasks, "envs", [tasks])[0]


def opponent_pool(env: EnvBase) -> Any:
    """The pool of self-play opponents, see :mod:`hydrl.envs.self_play`; ``None`` without self-play."""
    task = first_gym_env(env)
    known = task is not None and task.has_wrapper_attr("opponents")
    return task.get_wrapper_attr("opponents") if known else None


def stacked_images(env: TransformedEnv) -> tuple[list[NestedKey], int]:
    """The uint8 image entries, ``[k * C, H, W]``, and the number of stacked frames in each.

    1 if unknown, or if entries differ.
    """
    spec = env.observation_spec
    keys = [key for key in spec.keys(True, True) if spec[key].dtype == torch.uint8 and is_image(spec, key)]
    stack_sizes = [
        transform.N for transform in env.transform if isinstance(transform, CatFrames) and transform.dim == -3
    ]
    if (task := first_gym_env(env)) is not None:
        stack_sizes += [task.get_wrapper_attr("stack_size")] if task.has_wrapper_attr("stack_size") else []
    whole = [size for size in stack_sizes if all(spec[key].shape[-3] % size == 0 for key in keys)]
    return keys, whole[0] if whole else 1
