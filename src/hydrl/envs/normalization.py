"""Statistics of observation normalizers: initialised, saved, and loaded into other environments."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import UninitializedBuffer
from torchrl.envs import ObservationNorm, TransformedEnv, VecNorm, VecNormV2

from hydrl.envs.transforms import FixedNorm, RunningNorm
from hydrl.errors import UserError
from hydrl.specs import require_vectors


def init_normalizers(
    env: TransformedEnv, frames: int | None, statistics: dict[str, Any] | None = None
) -> None:
    """Initialises every ``ObservationNorm`` from at least ``frames`` random frames.

    One environment does it as the TorchRL tutorial. Several do not use ``init_stats``, which stops all when
    the first episode ends and underestimates what comes late in episodes.

    Args:
        env: a seeded environment.
        frames: least number of random frames; required for an ``ObservationNorm``.
        statistics: an earlier :func:`normalizer_state` to load instead.

    Raises:
        UserError: for an ``ObservationNorm`` over several entries, or without frames.
    """
    for position, transform in enumerate(normalizers(env)):
        if not isinstance(transform, ObservationNorm):
            require_vectors(transform.parent.observation_spec, transform.in_keys, "a normalizer")
        elif statistics is not None:
            with explain_mismatch():
                set_statistics(transform, statistics[str(position)])
        elif not transform.initialized:
            if len(transform.in_keys) > 1:
                raise UserError(
                    f"in_keys={transform.in_keys}: ObservationNorm takes one entry. Write one for each entry."
                )
            if frames is None:
                raise UserError("init_stats_frames=null: ObservationNorm needs statistics. Write 1_000.")
            require_vectors(transform.parent.observation_spec, transform.in_keys, "a normalizer")
            if env.batch_dims:
                fit_to_random_frames(transform, env.numel(), frames)
            else:
                transform.init_stats(num_iter=frames, reduce_dim=0, cat_dim=0)
                if isinstance(transform, FixedNorm):
                    unscale_constants(transform)


def fit_to_random_frames(transform: ObservationNorm, num_envs: int, frames: int) -> None:
    """Fits ``transform`` to ``frames`` random frames of its environment, over several episodes.

    A constant component is centred and not scaled.
    """
    rollout = transform.parent.rollout(-(-frames // num_envs), break_when_any_done=False)
    fit_normalizer(transform, rollout[transform.in_keys[0]].flatten(0, rollout.ndim - 1))


def fit_normalizer(transform: ObservationNorm, observation: torch.Tensor) -> None:
    """Fits mean and deviation to observations ``[frames, size]``; see :func:`fit_to_random_frames`."""
    mean, deviation = observation.mean(0), observation.std(0)
    scale = deviation.where(varies(mean, deviation, transform.eps), 1.0)
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        mean, scale = -mean / scale, 1 / scale
    set_statistics(transform, {"loc": mean, "scale": scale})


def unscale_constants(transform: ObservationNorm) -> None:
    """Sets the scale of constant components to 1; TorchRL divides them by a tiny deviation."""
    loc, scale = transform.loc, transform.scale
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        loc, scale = -loc / scale, 1 / scale
    is_constant = ~varies(loc, scale, transform.eps)
    scale.copy_(scale.where(~is_constant, 1.0))
    if not transform.standard_normal:
        transform.loc.copy_(transform.loc.where(~is_constant, -loc))
        transform.scale.copy_(transform.scale.where(~is_constant, 1.0))


def varies(mean: torch.Tensor, deviation: torch.Tensor, eps: float) -> torch.Tensor:
    """Whether each component varies by more than the rounding of its mean."""
    return deviation > 1.001 * eps * mean.abs().clamp_min(1.0)


def set_statistics(transform: ObservationNorm, statistics: dict[str, torch.Tensor]) -> None:
    """Writes ``loc`` and ``scale`` into a transform, materialising its buffers if needed."""
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
    """The statistics of all normalizers, copied, keyed ``"0"``, ``"1"``, ... in order: tensors only."""
    state: dict[str, Any] = {}
    for position, transform in enumerate(normalizers(env)):
        if isinstance(transform, ObservationNorm):
            statistics = {"loc": transform.loc, "scale": transform.scale}
        else:
            statistics = transform.get_extra_state()
        state[str(position)] = {key: torch.as_tensor(value).clone() for key, value in statistics.items()}
    return state


def load_normalizer(env: TransformedEnv, state: dict[str, Any], *, running: bool = False) -> None:
    """Loads :func:`normalizer_state` into ``env`` and freezes running normalizers.

    Args:
        env: has as many normalizers.
        state: of each, in order.
        running: lets running normalizers continue, for as many observations as new ones.

    Raises:
        UserError: if the statistics do not fit.
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


def unfreeze_normalizers(env: TransformedEnv) -> None:
    """Lets running normalizers continue from the statistics they have."""
    for transform in normalizers(env):
        if not isinstance(transform, ObservationNorm):
            transform.unfreeze()


@contextmanager
def explain_mismatch() -> Iterator[None]:
    """Context manager that explains errors of loading another run's statistics.

    Raises:
        UserError: if they do not fit.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"a checkpoint's statistics do not fit the normalizers: {reason}") from error
