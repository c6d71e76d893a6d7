"""Environments: one maker per choice, one stack of transforms, seeded before anything looks at them."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from traceback import walk_tb
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformAction, TransformObservation
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.nn import UninitializedBuffer
from torchrl.data import Bounded, Categorical, Composite, OneHot, TensorSpec
from torchrl.envs import (
    Compose,
    EnvBase,
    GymWrapper,
    ObservationNorm,
    RandomTruncationTransform,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
    UnaryTransform,
    VecNorm,
    VecNormV2,
)
from torchrl.modules.utils import get_env_transforms_from_module

from hydrl.errors import UserError

MakeEnv = Callable[..., EnvBase]
MakeTransform = Callable[[], Transform | None]
LARGE = 3 * 32 * 32  # numbers in a picture, from which on plain layers learn little of it


def gymnasium_env(
    id: str, num_envs: int = 1, device: str = "cpu", observe: list[int] | None = None, **kwargs: Any
) -> EnvBase:
    """A Gymnasium task: one environment, or ``num_envs`` of them stepped together in this process.

    TorchRL pays its cost per step of the whole vector, so ten environments cost little more than one.
    ``GymEnv(id, num_envs=k)`` is not used: it resets inside ``step`` and returns all-zero observations
    at episode ends.

    Args:
        id: a registered Gymnasium id, such as ``CartPole-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; the simulator itself runs on the CPU.
        observe: the places of the numbers that are seen, others being hidden; ``None`` shows all.
        **kwargs: passed on to ``gymnasium.make``.

    Raises:
        UserError: for an id Gymnasium does not know, a missing package, a keyword the task refuses or spaces
            that nothing here learns in.
        Exception: whatever the task's own code raises, as it raised it.
    """
    try:
        if num_envs == 1:
            return GymWrapper(adapted(gymnasium.make(id, **kwargs), observe), device=device)
        vector = gymnasium.make_vec(
            id,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            wrappers=[lambda env: adapted(env, observe)],
            **kwargs,
        )
        return GymVector(vector, device=device)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        if is_of_the_task(error):
            raise
        reason = " ".join(str(error).split())
        if id.startswith("ALE/"):  # which importing the package registers
            reason = f"Atari is a package of its own; pip install ale-py, and write env.id=ale_py:{id}"
        elif isinstance(error, gymnasium.error.NameNotFound):
            module, _, name = id.rpartition(":")
            reason += (
                f' {module} does not register it, as gymnasium.register("{name}", CLASS) would'
                if module
                else f" One of your own is env.id=MODULE:{id}, whose module registers it"
            )
        elif "gymnasium[box2d]" in reason:
            reason = "it needs Box2D; pip install 'hydrl[box2d]'"
        raise UserError(f"env.id={id} could not be made: {reason}") from error


class GymVector(GymWrapper):
    """Tasks stepped together, of one observation vector and one reward each, as :func:`adapted` makes them.

    It gives TorchRL's numbers. The two methods of TorchRL's own class look anew at each step for the kind of
    every space; with these acting takes 7 % (ten double pendulums) to 14 % (16 CartPoles) less time.
    """

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.read_action(tensordict.get(self.action_key))
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self.told(observation, terminated, truncated, reward=torch.as_tensor(reward).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None and (chosen := tensordict.get("_reset", None)) is not None:
            kwargs["options"] = {"reset_mask": chosen.view(self.batch_size).numpy(force=True)}
        observation, _ = self._env.reset(**kwargs)
        return self.told(observation, *np.zeros((2, *self.batch_size), dtype=bool))

    def told(
        self, observation: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, **more: torch.Tensor
    ) -> TensorDictBase:
        """What Gymnasium says, ``[num_envs, ...]``, as TorchRL has it: a number is ``[num_envs, 1]``."""
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        entries = {name: torch.as_tensor(each) for name, each in ends.items()} | more
        entries = {name: each.unsqueeze(-1) for name, each in entries.items()}
        entries["observation"] = torch.as_tensor(observation)
        return TensorDict(entries, self.batch_size, device=self.device)


def is_of_the_task(error: Exception) -> bool:
    """Whether a task's own code failed, which its traceback tells best."""
    if isinstance(error, gymnasium.error.Error | ModuleNotFoundError):
        return False
    *_, (innermost, _) = walk_tb((error.__cause__ or error).__traceback__)
    package = innermost.f_globals["__name__"].partition(".")[0]
    return package not in ("gymnasium", "hydrl", "importlib", "torchrl")


def adapted(env: gymnasium.Env, observe: list[int] | None = None) -> gymnasium.Env:
    """The task as TorchRL and the networks take it.

    It observes one vector of numbers, be they a choice (one-hot), a picture, a tuple or a dictionary; choices
    are counted from 0, other actions are one vector, and a reward is one number.

    Raises:
        TypeError: for actions that are neither a choice nor numbers within finite bounds, and for a task of
            Gymnasium's API before 0.26.
    """
    try:
        signature(env.unwrapped.reset).bind(seed=0, options={})
    except TypeError:
        raise TypeError(
            "its reset does not take seed and options and give an observation and a dictionary, as Gymnasium "
            "asks since 0.26; gymnasium.utils.env_checker.check_env(ENV) checks all of it"
        ) from None
    actions, seen = env.action_space, env.observation_space
    if isinstance(actions, Discrete) and actions.n > 1:
        if actions.start:
            env = TransformAction(env, lambda action: action + actions.start, Discrete(actions.n))
    elif isinstance(actions, Box) and actions.dtype.kind == "f" and has_room(actions.low, actions.high):
        if len(actions.shape) != 1:
            flat = Box(actions.low.ravel(), actions.high.ravel(), dtype=actions.dtype.type)
            env = TransformAction(env, lambda action: action.reshape(actions.shape), flat)
    else:
        raise TypeError(
            f"its actions are {actions}; what learns here takes a Discrete choice of two or more or a Box of "
            "floats with finite bounds, low below high"
        )
    if seen.dtype == np.uint8 and seen.shape and len(seen.shape) == 3 and np.prod(seen.shape) > LARGE:
        warnings.warn(
            f"the task shows pictures of {' x '.join(map(str, seen.shape))}, read as one vector of "
            f"{np.prod(seen.shape):,} numbers from 0 to 255; the networks that come along have no "
            "convolutions, one of your own may (docs/own_parts.md)",
            stacklevel=1,  # once, wherever it is made from
        )
    if not (isinstance(seen, Box) and len(seen.shape) == 1 and seen.dtype in (np.float32, np.float64)):
        env = DtypeObservation(FlattenObservation(env), np.float32)
    if observe:
        whole = env.observation_space
        if not set(observe) <= set(range(whole.shape[0])):
            raise TypeError(f"it has no places observe={observe}, but 0 to {whole.shape[0] - 1}")
        shown = Box(whole.low[observe], whole.high[observe], dtype=whole.dtype.type)
        env = TransformObservation(env, lambda observation: observation[observe], shown)
    return OneReward(env)


def has_room(low: Any, high: Any) -> bool:
    """Whether every action has finite bounds, one above the other."""
    span = torch.as_tensor(high).float() - torch.as_tensor(low).float()
    return bool((span.isfinite() & (span > 0)).all())


class OneReward(gymnasium.RewardWrapper):
    """Takes a reward out of an array of one."""

    def reward(self, reward: Any) -> float:
        """The number.

        Raises:
            UserError: for several, as of a task with several aims, or none.
        """
        try:
            return float(np.asarray(reward).item())
        except (TypeError, ValueError):
            id = self.unwrapped.spec.id
            raise UserError(f"env.id={id} gave the reward {reward}; it must be one number") from None


class SteadySerialEnv(SerialEnv):
    """Leaves PyTorch its number of threads: closing, TorchRL's takes more, and these round sums differently.

    One that nobody closed closes when it is collected, and that may be in the middle of a later run.
    """

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes every environment."""
        threads = torch.get_num_threads()
        super().close(raise_if_closed=raise_if_closed)
        torch.set_num_threads(threads)


def make_base_env(make: MakeEnv, num_envs: int, device: str, render: bool = False) -> EnvBase:
    """``num_envs`` environments without transforms; any TorchRL environment class will do as ``make``.

    One whose constructor takes ``num_envs``, as VMAS' does, steps them all itself.
    """
    maker: Any = getattr(make, "func", make)
    if maker is gymnasium_env and render:
        make = partial(make, render_mode="rgb_array")
    is_class = isinstance(maker, type)
    constructor = maker.__init__ if is_class else maker  # TorchRL's metaclass hides a class's own signature
    if "num_envs" in signature(constructor).parameters:
        return make(num_envs=num_envs, device=device)
    return make(device=device) if num_envs == 1 else SteadySerialEnv(num_envs, partial(make, device=device))


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normaliser: dict[str, Any] | None = None,
    seed: int | None = None,
    render: bool = False,
    policy: TensorDictModuleBase | None = None,
) -> TransformedEnv:
    """An environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order, except that ``RewardSum`` always stands first, and is added
            where none is named, because returns are reported raw; what builds ``None`` is left out. The
            return of several agents, which all else reads as ``episode_reward``, is the mean of theirs.
        num_envs: environments stepped together.
        device: where the tensors live.
        normaliser: state of an already initialised stack (see :func:`normaliser_state`); observation
            normalisers then use these statistics instead of collecting their own.
        seed: seeds the environment here, before anything can reset it.
        render: a Gymnasium task is made so that ``render()`` gives its picture.
        policy: what plays whole episodes in it, to evaluate; a memory finds its hidden states and the starts
            of episodes there.
    """
    left_out = type(None) if policy is None else (type(None), RandomTruncationTransform)
    made = [each for transform in transforms if not isinstance(each := transform(), left_out)]
    stack = sorted(made, key=lambda each: not isinstance(each, RewardSum))
    if not (stack and isinstance(stack[0], RewardSum)):
        stack.insert(0, RewardSum())
    base = make_base_env(make, num_envs, device, render)
    if isinstance(key := base.reward_keys[0], tuple):
        return_key = (*key[:-1], f"episode_{key[-1]}")
        stack.insert(1, UnaryTransform([return_key], ["episode_reward"], fn=mean_over_agents))
    if policy is not None and restarts_with_episodes(policy):
        stack.append(get_env_transforms_from_module(policy))
    env = TransformedEnv(base, Compose(*stack))
    if normaliser is not None:
        load_normaliser(env, normaliser)
    if seed is not None:
        env.set_seed(seed)
    return env


def mean_over_agents(values: torch.Tensor) -> torch.Tensor:
    """``[..., agents, 1]`` to ``[..., 1]``."""
    return values.mean(-2)


def restarts_with_episodes(policy: TensorDictModuleBase) -> bool:
    """Whether it must be told where episodes begin, as a memory and Ornstein-Uhlenbeck noise must.

    TorchRL then adds what it needs to an environment: ``InitTracker``, and primers of hidden states.
    """
    return "is_init" in policy.in_keys or any(hasattr(each, "is_init_key") for each in policy.modules())


def initialise_normalisers(
    env: TransformedEnv, frames: int | None, known: dict[str, Any] | None = None
) -> None:
    """Takes every ``ObservationNorm``'s mean and deviation from at least ``frames`` random frames.

    One environment does it as the TorchRL tutorial does. Several are not left to ``init_stats``, which stops
    them all when the first episode ends: whatever comes late in an episode would look several times too wide.

    Args:
        env: seeded.
        frames: at least so many; needed where there is one.
        known: an earlier :func:`normaliser_state`, whose statistics are used instead.

    Raises:
        UserError: for an ``ObservationNorm`` over several entries, which need statistics of their own, or
            without frames.
    """
    for position, transform in enumerate(normalisers(env)):
        if not isinstance(transform, ObservationNorm):
            require_entries(transform.parent.observation_spec, transform.in_keys)
        elif known is not None:
            fill(transform, known[str(position)])
        elif not transform.initialized:
            if len(transform.in_keys) > 1:
                raise UserError(f"in_keys={transform.in_keys}: give each entry an ObservationNorm of its own")
            if frames is None:
                raise UserError("init_stats_frames=null: ObservationNorm takes statistics; use 1_000")
            require_entries(transform.parent.observation_spec, transform.in_keys)
            if env.batch_dims:
                standardise(transform, env.numel(), frames)
            else:
                transform.init_stats(num_iter=frames, reduce_dim=0, cat_dim=0)


def require_entries(spec: Composite, in_keys: Sequence[NestedKey]) -> None:
    """Refuses entries that are not there, or that normalisers and networks cannot read.

    Raises:
        UserError: naming those there are.
    """
    given = spec.keys(True, True)
    for key in in_keys:
        if key not in given:
            raise UserError(f"in_keys={in_keys}: the environment gives {', '.join(map(str, given))}")
        kind, shape = spec[key].dtype, list(spec[key].shape)
        if not kind.is_floating_point or len(shape) <= spec.ndim:
            raise UserError(
                f"in_keys={in_keys}: {key} is {kind} of shape {shape}, and vectors of floats are read; make "
                "it one with the transform DTypeCastTransform, OneHotTransform or UnsqueezeTransform"
            )


def standardise(transform: ObservationNorm, num_envs: int, frames: int) -> None:
    """Fits ``transform`` to ``frames`` random frames of the environment below it, episode after episode.

    A component that never moved is centred and not scaled.
    """
    rollout = transform.parent.rollout(-(-frames // num_envs), break_when_any_done=False)
    observation = rollout[transform.in_keys[0]].flatten(0, rollout.ndim - 1)
    mean, deviation = observation.mean(0), observation.std(0)
    scale = torch.where(deviation > transform.eps, deviation, 1.0)
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        mean, scale = -mean / scale, 1 / scale
    fill(transform, {"loc": mean, "scale": scale})


def fill(transform: ObservationNorm, statistics: dict[str, torch.Tensor]) -> None:
    """Writes ``loc`` and ``scale`` into a transform, giving them their shapes if they have none yet."""
    for name, value in statistics.items():
        buffer = getattr(transform, name)
        if isinstance(buffer, UninitializedBuffer):
            buffer.materialize(value.shape, dtype=value.dtype)
        buffer.copy_(value)


def normalisers(env: TransformedEnv) -> list[ObservationNorm | VecNorm | VecNormV2]:
    """The transforms that hold statistics, in order."""
    return [each for each in env.transform if isinstance(each, ObservationNorm | VecNorm | VecNormV2)]


def normaliser_state(env: TransformedEnv) -> dict[str, Any]:
    """The statistics of all normalisers, copied, keyed ``"0"``, ``"1"``, ... in order: tensors only."""
    state: dict[str, Any] = {}
    for position, transform in enumerate(normalisers(env)):
        if isinstance(transform, ObservationNorm):
            statistics = {"loc": transform.loc, "scale": transform.scale}
        else:
            statistics = transform.get_extra_state()
        state[str(position)] = {key: torch.as_tensor(value).clone() for key, value in statistics.items()}
    return state


def load_normaliser(env: TransformedEnv, state: dict[str, Any]) -> None:
    """Puts the statistics of :func:`normaliser_state` into ``env`` and freezes running normalisers."""
    for transform, statistics in zip(normalisers(env), state.values(), strict=True):
        if isinstance(transform, ObservationNorm):
            fill(transform, statistics)
        else:
            transform.set_extra_state(statistics)
            transform.freeze()


def action_spec(env: EnvBase) -> TensorSpec:
    """What one environment takes: ``[agents, ...]`` of several, a ``Composite`` of several groups of them."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normaliser without statistics yet hides the specs above it
        spec = env.base_env.action_spec_unbatched
    keys = spec.keys(True, True) if isinstance(spec, Composite) else []
    return spec[next(iter(keys))] if len(keys) == 1 else spec


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``continuous``, the same for several agents, or what no algorithm here can act in.

    It resets nothing.
    """
    spec = action_spec(env)
    if type(spec) in (OneHot, Categorical):  # their subclasses are several choices at once
        kind = "discrete"
    elif isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        kind = "continuous" if has_room(spec.space.low, spec.space.high) else "not finitely bounded"
    else:
        kind = type(spec).__name__
    return f"multi-agent {kind}" if isinstance(env.base_env.action_keys[0], tuple) else kind
