"""What an environment gives must be numbers: one that is none is found before anything learns from it."""

from collections.abc import Sequence

from tensordict import NestedKey, TensorDictBase

from hydrl.errors import DivergedError


def check_finite(data: TensorDictBase, keys: Sequence[NestedKey], *, frames: int = 0, of: str = "") -> None:
    """Looks for the first NaN or infinity.

    Args:
        data: ``[time]`` or ``[envs, time]``.
        keys: the entries to look at, where they are there.
        frames: collected before.
        of: whose environments, where they are not those of the run itself.

    Raises:
        DivergedError: naming entry, environment and the frames before it.
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
