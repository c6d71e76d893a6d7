"""Environments: one maker per choice, one stack of transforms, seeded before anything looks at them."""

from collections.abc import Callable, Sequence
from functools import partial
from traceback import walk_tb
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from torch.nn import UninitializedBuffer
from torchrl.data import Bounded, Categorical, OneHot
from torchrl.envs import (
    Compose,
    EnvBase,
    GymWrapper,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)

from hydrl.errors import UserError

MakeEnv = Callable[..., EnvBase]
MakeTransform = Callable[[], Transform]


def gymnasium_env(id: str, num_envs: int = 1, device: str = "cpu", **kwargs: Any) -> EnvBase:
    """A Gymnasium task: one environment, or ``num_envs`` of them stepped together in this process.

    TorchRL pays its cost per step of the whole vector, so ten environments cost little more than one.
    ``GymEnv(id, num_envs=k)`` is not used: it resets inside ``step`` and returns all-zero observations
    at episode ends.

    Args:
        id: a registered Gymnasium id, such as ``CartPole-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; the simulator itself runs on the CPU.
        **kwargs: passed on to ``gymnasium.make``.

    Raises:
        UserError: for an id Gymnasium does not know, a missing package or a keyword the task refuses.
        Exception: whatever the task's own code raises, as it raised it.
    """
    try:
        if num_envs == 1:
            return GymWrapper(as_vector(gymnasium.make(id, **kwargs)), device=device)
        vector = gymnasium.make_vec(
            id,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            wrappers=[as_vector],
            **kwargs,
        )
        return GymWrapper(vector, device=device)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        if is_of_the_task(error):
            raise
        reason = " ".join(str(error).split())
        raise UserError(f"env.id={id} could not be made: {reason}") from error


def is_of_the_task(error: Exception) -> bool:
    """Whether a task's own code failed, which its traceback tells best."""
    if isinstance(error, gymnasium.error.Error | ModuleNotFoundError):
        return False
    *_, (innermost, _) = walk_tb((error.__cause__ or error).__traceback__)
    package = innermost.f_globals["__name__"].partition(".")[0]
    return package not in ("gymnasium", "hydrl", "importlib", "torchrl")


def as_vector(env: gymnasium.Env) -> gymnasium.Env:
    """One vector of numbers where a task observes a choice, a tuple or a dictionary; a choice is one-hot."""
    if isinstance(env.observation_space, gymnasium.spaces.Box):
        return env
    return DtypeObservation(FlattenObservation(env), np.float32)


def make_base_env(make: MakeEnv, num_envs: int, device: str, render: bool = False) -> EnvBase:
    """``num_envs`` environments without transforms; any TorchRL environment class will do as ``make``."""
    maker = getattr(make, "func", make)
    if maker is gymnasium_env:
        make = partial(make, render_mode="rgb_array") if render else make
        return make(num_envs=num_envs, device=device)
    if isinstance(maker, type) and not issubclass(maker, EnvBase):
        raise UserError(f"env._target_ names {maker.__name__}, which is no class of TorchRL environments")
    return make(device=device) if num_envs == 1 else SerialEnv(num_envs, partial(make, device=device))


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normaliser: dict[str, Any] | None = None,
    seed: int | None = None,
    render: bool = False,
) -> TransformedEnv:
    """An environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order, except that ``RewardSum`` always stands first, and is added
            where none is named, because returns are reported raw.
        num_envs: environments stepped together.
        device: where the tensors live.
        normaliser: state of an already initialised stack (see :func:`normaliser_state`); observation
            normalisers then use these statistics instead of collecting their own.
        seed: seeds the environment here, before anything can reset it.
        render: a Gymnasium task is made so that ``render()`` gives its picture.
    """
    stack = sorted(
        (transform() for transform in transforms), key=lambda each: not isinstance(each, RewardSum)
    )
    if not (stack and isinstance(stack[0], RewardSum)):
        stack.insert(0, RewardSum())
    env = TransformedEnv(make_base_env(make, num_envs, device, render), Compose(*stack))
    if normaliser is not None:
        load_normaliser(env, normaliser)
    if seed is not None:
        env.set_seed(seed)
    return env


def initialise_normalisers(env: TransformedEnv, frames: int, known: dict[str, Any] | None = None) -> None:
    """Takes every ``ObservationNorm``'s mean and deviation from at least ``frames`` random frames.

    One environment does it as the TorchRL tutorial does. Several are not left to ``init_stats``, which stops
    them all when the first episode ends: whatever comes late in an episode would look several times too wide.

    Args:
        env: seeded.
        frames: at least so many.
        known: an earlier :func:`normaliser_state`, whose statistics are used instead.

    Raises:
        UserError: for an ``ObservationNorm`` over several entries, which need statistics of their own.
    """
    for position, transform in enumerate(normalisers(env)):
        if isinstance(transform, ObservationNorm) and known is not None:
            fill(transform, known[str(position)])
        elif isinstance(transform, ObservationNorm) and not transform.initialized:
            if len(transform.in_keys) > 1:
                raise UserError(f"in_keys={transform.in_keys}: give each entry an ObservationNorm of its own")
            given = list(transform.parent.observation_spec.keys(True, True))
            if transform.in_keys[0] not in given:
                raise UserError(
                    f"in_keys={transform.in_keys}: what ObservationNorm reads there is one of {given}"
                )
            if env.batch_dims:
                standardise(transform, env.numel(), frames)
            else:
                transform.init_stats(num_iter=frames, reduce_dim=0, cat_dim=0)


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


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``continuous`` or the name of a spec no algorithm here can act in; resets nothing."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normaliser without statistics yet hides the specs above it
        spec = env.base_env.action_spec_unbatched
    if type(spec) in (OneHot, Categorical):  # their subclasses are several choices at once
        return "discrete"
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return "continuous"
    return type(spec).__name__
