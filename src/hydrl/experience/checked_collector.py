"""TorchRL's collector with a check for NaN and infinity in each batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensordict import NestedKey, TensorDictBase, unravel_key
from torchrl.collectors import Collector

from hydrl.nan_checks import check_finite
from hydrl.specs import opponent_pool


class CheckedCollector(Collector):
    """TorchRL's single-process collector that raises on NaN or infinity before the loss sees them.

    It checks rewards and the observations that the policy reads.

    Attributes:
        label: appended to error messages, such as `` of worker 3``.
        episode_restart_reason, steps_env: see :class:`~hydrl.experience.collectors.Collector`.
    """

    _carrier: TensorDictBase
    label = ""
    episode_restart_reason: str | None = None
    steps_env = True

    def publish(self) -> None:
        """Updates the acting policy's weights, if it is on another device, and the opponent pool."""
        self.update_policy_weights_()
        if (pool := opponent_pool(self.env)) is not None:
            pool.maybe_add(self.policy, self._frames, self.env)

    def skip_frames(self, frames: int) -> None:
        """Counts ``frames`` as collected, so that a resumed run takes no random actions for them again."""
        self._frames = frames

    def state(self, *, running: bool) -> dict[str, Any]:
        """Counters, transforms and, with ``running``, the carrier of the running episodes."""
        carrier = self._carrier.clone().to_dict() if running else None
        pool = opponent_pool(self.env)
        pool_state = {} if pool is None else {"opponents": pool.state_dict()}
        state = {"frames": self._frames, "iter": self._iter, "own": self.state_dict(), "carrier": carrier}
        return state | pool_state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`."""
        self.load_state_dict(state["own"])
        self._frames, self._iter = state["frames"], state["iter"]
        if (pool := opponent_pool(self.env)) is not None:
            pool.load_state_dict(state["opponents"], self.policy, self.env)
        if state["carrier"] is None:  # new episodes
            self._make_carrier()
        else:
            # Entries of agent groups have their own batch size, which a dictionary does not store.
            self._carrier = self._carrier.empty(recurse=True).update(state["carrier"])

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches; unlike TorchRL's it does not close a failed environment, which checkpoints read."""
        return self.iterator()

    def iterator(self) -> Iterator[TensorDictBase]:
        """Checked batches.

        Raises:
            DivergedError: for NaN or infinity in a batch or in the observation the policy acts on next.
        """
        batches = super().iterator()
        policy_keys = list(self.policy.in_keys)
        keys: list[NestedKey] = [
            *(unravel_key(("next", key)) for key in (*policy_keys, *self.env.reward_keys)),
            *policy_keys,
        ]
        while True:
            frames = self._frames
            try:
                batch = next(batches)
            except Exception:  # for example from a distribution over NaN
                self.check_start(policy_keys)
                raise
            check_finite(batch, keys, frames=frames, of=self.label)
            self.check_start(policy_keys)
            yield batch

    def check_start(self, policy_keys: Sequence[NestedKey]) -> None:
        """Checks the observations that the policy acts on next."""
        check_finite(self._carrier.unsqueeze(-1), policy_keys, frames=self._frames, of=self.label)
