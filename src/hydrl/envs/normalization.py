"""The statistics of normalised observations: taken, handed from one environment to another, kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import UninitializedBuffer
from torchrl.envs import (
    ObservationNorm,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)

from hydrl.envs.transforms import FixedNorm, RunningNorm
from hydrl.errors import UserError
from hydrl.specs import require_vectors


def init_normalizers(env: TransformedEnv, frames: int | None, known: dict[str, Any] | None = None) -> None:
    """Takes every ``ObservationNorm``'s mean and deviation from at least ``frames`` random frames.

    One environment does it as the TorchRL tutorial does. Several are not left to ``init_stats``, which stops
    them all when the first episode ends: whatever comes late in an episode would look several times too wide.

    Args:
        env: seeded.
        frames: at least so many; needed where there is one.
        known: an earlier :func:`normalizer_state`, whose statistics are used instead.

    Raises:
        UserError: for an ``ObservationNorm`` over several entries, which need statistics of their own, or
            without frames.
    """
    for position, transform in enumerate(normalizers(env)):
        if not isinstance(transform, ObservationNorm):
            require_vectors(transform.parent.observation_spec, transform.in_keys, "a normaliser")
        elif known is not None:
            with explain_mismatch():
                set_statistics(transform, known[str(position)])
        elif not transform.initialized:
            if len(transform.in_keys) > 1:
                raise UserError(f"in_keys={transform.in_keys}: give each entry an ObservationNorm of its own")
            if frames is None:
                raise UserError("init_stats_frames=null: ObservationNorm takes statistics; use 1_000")
            require_vectors(transform.parent.observation_spec, transform.in_keys, "a normaliser")
            if env.batch_dims:
                fit_to_random_frames(transform, env.numel(), frames)
            else:
                transform.init_stats(num_iter=frames, reduce_dim=0, cat_dim=0)
                if isinstance(transform, FixedNorm):
                    unscale_constants(transform)


def fit_to_random_frames(transform: ObservationNorm, num_envs: int, frames: int) -> None:
    """Fits ``transform`` to ``frames`` random frames of the environment below it, episode after episode.

    A component that never moved is centred and not scaled.
    """
    rollout = transform.parent.rollout(-(-frames // num_envs), break_when_any_done=False)
    fit_normalizer(transform, rollout[transform.in_keys[0]].flatten(0, rollout.ndim - 1))


def fit_normalizer(transform: ObservationNorm, observation: torch.Tensor) -> None:
    """Takes mean and deviation from observations ``[frames, size]``; see :func:`fit_to_random_frames`."""
    mean, deviation = observation.mean(0), observation.std(0)
    scale = deviation.where(varies(mean, deviation, transform.eps), 1.0)
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        mean, scale = -mean / scale, 1 / scale
    set_statistics(transform, {"loc": mean, "scale": scale})


def unscale_constants(transform: ObservationNorm) -> None:
    """Unscales what never moved: TorchRL divides it by its least deviation, and it would move by millions."""
    loc, scale = transform.loc, transform.scale
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        loc, scale = -loc / scale, 1 / scale
    constant = ~varies(loc, scale, transform.eps)
    scale.copy_(scale.where(~constant, 1.0))
    if not transform.standard_normal:
        transform.loc.copy_(transform.loc.where(~constant, -loc))
        transform.scale.copy_(transform.scale.where(~constant, 1.0))


def varies(mean: torch.Tensor, deviation: torch.Tensor, eps: float) -> torch.Tensor:
    """Whether a component moved by more than rounding its mean would have it seem to."""
    return deviation > 1.001 * eps * mean.abs().clamp_min(1.0)


def set_statistics(transform: ObservationNorm, statistics: dict[str, torch.Tensor]) -> None:
    """Writes ``loc`` and ``scale`` into a transform, giving them their shapes if they have none yet."""
    for name, value in statistics.items():
        buffer = getattr(transform, name)
        if isinstance(buffer, UninitializedBuffer):
            buffer.materialize(value.shape, dtype=value.dtype)
        buffer.copy_(value)


def normalizers(env: TransformedEnv) -> list[ObservationNorm | VecNorm | VecNormV2]:
    """The transforms that hold statistics, in order."""
    return [
        transform
        for transform in env.transform
        if isinstance(transform, ObservationNorm | VecNorm | VecNormV2)
    ]


def normalizer_state(env: TransformedEnv) -> dict[str, Any]:
    """The statistics of all normalisers, copied, keyed ``"0"``, ``"1"``, ... in order: tensors only."""
    state: dict[str, Any] = {}
    for position, transform in enumerate(normalizers(env)):
        if isinstance(transform, ObservationNorm):
            statistics = {"loc": transform.loc, "scale": transform.scale}
        else:
            statistics = transform.get_extra_state()
        state[str(position)] = {key: torch.as_tensor(value).clone() for key, value in statistics.items()}
    return state


def load_normalizer(env: TransformedEnv, state: dict[str, Any], *, running: bool = False) -> None:
    """Puts the statistics of :func:`normalizer_state` into ``env`` and freezes running normalisers.

    Args:
        env: with as many normalisers.
        state: of each, in order.
        running: lets running ones run on, as many observations as if they began anew.

    Raises:
        UserError: for statistics of other normalisers, or that are none.
    """
    with explain_mismatch():
        for transform, statistics in zip(normalizers(env), state.values(), strict=True):
            if isinstance(transform, ObservationNorm):
                set_statistics(transform, statistics)
            else:
                transform.set_extra_state(statistics)
                if not running:
                    transform.freeze()
                elif isinstance(transform, RunningNorm):
                    transform.earlier = transform.num_observations


@contextmanager
def explain_mismatch() -> Iterator[None]:
    """Statistics of another run, or that somebody else made, put back in the block.

    Raises:
        UserError: where they do not fit.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"a checkpoint's statistics do not fit the normalisers: {reason}") from error
