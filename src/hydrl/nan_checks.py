"""Checks for NaN and infinity in collected data, before anything learns from it."""

from collections.abc import Sequence

from tensordict import NestedKey, TensorDictBase

from hydrl.errors import DivergedError


def check_finite(data: TensorDictBase, keys: Sequence[NestedKey], *, frames: int = 0, of: str = "") -> None:
    """Raises at the first NaN or infinity.

    Args:
        data: ``[time]`` or ``[envs, time]``.
        keys: the entries to check, if they exist.
        frames: collected before.
        of: whose environments, if not the run's own.

    Raises:
        DivergedError: naming entry, environment and frame.
    """
    for key in keys:
        value = data.get(key, None)
        if value is None or value.isfinite().all():
            continue
        spoilt = (~value.isfinite()).reshape(*data.shape, -1).any(-1)
        steps = spoilt.reshape(-1, data.shape[-1]).t()  # [time, envs]
        step, env = steps.nonzero()[0].tolist()
        name = key if isinstance(key, str) else key[-1]
        raise DivergedError(
            f"{name} of environment {env}{of} is NaN or infinite", frames + step * steps.shape[1]
        )
