"""Environments: one maker per choice, one stack of transforms, seeded before anything looks at them."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch.nn import UninitializedBuffer
from torchrl.data import Bounded, Categorical, OneHot
from torchrl.envs import (
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
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
    """
    try:
        if num_envs == 1:
            return GymEnv(id, device=device, **kwargs)
        vector = gymnasium.make_vec(
            id,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            **kwargs,
        )
        return GymWrapper(vector, device=device)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"env.id={id} could not be made: {reason}") from error


def make_base_env(make: MakeEnv, num_envs: int, device: str) -> EnvBase:
    """``num_envs`` environments without transforms; any TorchRL environment class will do as ``make``."""
    if getattr(make, "func", make) is gymnasium_env:
        return make(num_envs=num_envs, device=device)
    if num_envs == 1:
        return make(device=device)
    return SerialEnv(num_envs, lambda: make(device=device))


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normaliser: dict[str, Any] | None = None,
    seed: int | None = None,
) -> TransformedEnv:
    """An environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order. ``RewardSum`` is put first where none is named, because
            returns are reported raw.
        num_envs: environments stepped together.
        device: where the tensors live.
        normaliser: state of an already initialised stack (see :func:`normaliser_state`); observation
            normalisers then use these statistics instead of collecting their own.
        seed: seeds the environment here, before anything can reset it.
    """
    stack = [transform() for transform in transforms]
    if not any(isinstance(transform, RewardSum) for transform in stack):
        stack.insert(0, RewardSum())
    env = TransformedEnv(make_base_env(make, num_envs, device), Compose(*stack))
    if normaliser is not None:
        load_normaliser(env, normaliser)
    if seed is not None:
        env.set_seed(seed)
    return env


def initialise_normalisers(env: TransformedEnv, frames: int) -> None:
    """Takes every ``ObservationNorm``'s mean and deviation from ``frames`` random frames."""
    for transform in env.transform:
        if isinstance(transform, ObservationNorm) and not transform.initialized:
            reduce_dim = tuple(range(env.batch_dims + 1)) if env.batch_dims else 0
            transform.init_stats(num_iter=frames, reduce_dim=reduce_dim, cat_dim=env.batch_dims)


def normaliser_state(env: TransformedEnv) -> dict[str, Any]:
    """The statistics of all transforms, copied, keyed by position: tensors only."""
    state: dict[str, Any] = {}
    for position, transform in enumerate(env.transform):
        if isinstance(transform, ObservationNorm):
            state[str(position)] = {"loc": transform.loc.clone(), "scale": transform.scale.clone()}
        elif isinstance(transform, VecNormV2):
            extra = transform.get_extra_state()
            state[str(position)] = {key: torch.as_tensor(value).clone() for key, value in extra.items()}
    return state


def load_normaliser(env: TransformedEnv, state: dict[str, Any]) -> None:
    """Puts the statistics of :func:`normaliser_state` into ``env`` and freezes running normalisers."""
    for position, statistics in state.items():
        transform = env.transform[int(position)]
        if isinstance(transform, VecNormV2):
            transform.set_extra_state(statistics)
            transform.freeze()
        else:
            for name, value in statistics.items():
                buffer = getattr(transform, name)
                if isinstance(buffer, UninitializedBuffer):
                    buffer.materialize(value.shape, dtype=value.dtype)
                buffer.copy_(value)


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``continuous`` or the name of a spec no algorithm here can act in; resets nothing."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normaliser without statistics yet hides the specs above it
        spec = env.base_env.action_spec_unbatched
    if isinstance(spec, OneHot | Categorical):
        return "discrete"
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return "continuous"
    return type(spec).__name__
