"""What an environment gives must be numbers: one that is none is found before anything learns from it."""

from collections.abc import Iterator, Sequence

from tensordict import NestedKey, TensorDictBase
from torchrl.collectors import Collector

from hydrl.errors import DivergedError


def check_finite(
    data: TensorDictBase, keys: Sequence[NestedKey], *, of: str = "", time: bool = False, frames: int = 0
) -> None:
    """Looks for the first NaN or infinity.

    Args:
        data: ``[]`` or ``[envs]``, with time as one dimension more at the end.
        keys: the entries to look at, where they are there.
        of: whose environments, where they are not those of the run itself.
        time: whether there is a dimension of time.
        frames: collected before.

    Raises:
        DivergedError: naming entry, environment and frame.
    """
    for key in keys:
        value = data.get(key, None)
        if value is None or value.isfinite().all():
            continue
        spoilt = (~value.isfinite()).reshape(*data.shape, -1).any(-1)
        by_step = spoilt.reshape(-1, data.shape[-1] if time else 1).t()  # [time, envs]
        step, env = by_step.nonzero()[0].tolist()
        name = key if isinstance(key, str) else key[-1]
        at = frames + (step + 1) * by_step.shape[1] if time else frames
        raise DivergedError(f"{name} of environment {env}{of} is NaN or infinite", at)


class FiniteCollector(Collector):
    """TorchRL's collector, whose observations (what the policy reads of them) and rewards are numbers."""

    of = ""

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches.

        Raises:
            DivergedError: in place of one with a NaN or an infinity, or for what comes next.
        """
        batches = super().iterator()
        read = list(self.policy.in_keys)
        keys: list[NestedKey] = [*(("next", key) for key in read), ("next", "reward"), *read]
        while True:
            before = self._frames
            try:
                batch = next(batches)
            except Exception:  # as of a distribution over what is no number
                check_finite(self._carrier, read, of=self.of, frames=before)
                raise
            check_finite(batch, keys, of=self.of, time=True, frames=before)
            check_finite(self._carrier, read, of=self.of, frames=self._frames)
            yield batch
