"""TorchRL's collector, by which a NaN is found before anything learns from it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensordict import NestedKey, TensorDictBase, unravel_key
from torchrl.collectors import Collector

from hydrl.nan_checks import check_finite
from hydrl.specs import opponent_pool


class FiniteCollector(Collector):
    """TorchRL's collector, whose observations (what the policy reads of them) and rewards are numbers."""

    _carrier: TensorDictBase
    of = ""
    restarts: str | None = None
    steps = True

    def publish(self) -> None:
        """The policy that acts is the one that learns, unless it is on another device; opponents meet it."""
        self.update_policy_weights_()
        if (others := opponent_pool(self.env)) is not None:
            others.maybe_add(self.policy, self._frames, self.env)

    def state(self, *, running: bool) -> dict[str, Any]:
        """Counters, transforms and, with ``running``, what one step hands to the next."""
        carrier = self._carrier.clone().to_dict() if running else None
        others = opponent_pool(self.env)
        known = {} if others is None else {"opponents": others.state_dict()}
        kept = {"frames": self._frames, "iter": self._iter, "own": self.state_dict(), "carrier": carrier}
        return kept | known

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`."""
        self.load_state_dict(state["own"])
        self._frames, self._iter = state["frames"], state["iter"]
        if (others := opponent_pool(self.env)) is not None:
            others.load_state_dict(state["opponents"], self.policy, self.env)
        if state["carrier"] is None:  # episodes start anew
            self._make_carrier()
        else:
            # What several agents share an entry for has a batch size of its own, which a dictionary has not.
            self._carrier = self._carrier.empty(recurse=True).update(state["carrier"])

    def __iter__(self) -> Iterator[TensorDictBase]:
        """TorchRL's, but that one whose environment fails still has it, for a checkpoint looks into it."""
        return self.iterator()

    def iterator(self) -> Iterator[TensorDictBase]:
        """TorchRL's batches.

        Raises:
            DivergedError: in place of one with a NaN or an infinity, or for what comes next.
        """
        batches = super().iterator()
        read = list(self.policy.in_keys)
        keys: list[NestedKey] = [
            *(unravel_key(("next", key)) for key in (*read, *self.env.reward_keys)),
            *read,
        ]
        while True:
            before = self._frames
            try:
                batch = next(batches)
            except Exception:  # as of a distribution over what is no number
                self.check_start(read)
                raise
            check_finite(batch, keys, frames=before, of=self.of)
            self.check_start(read)
            yield batch

    def check_start(self, read: Sequence[NestedKey]) -> None:
        """Looks at what the policy acts on next."""
        check_finite(self._carrier.unsqueeze(-1), read, frames=self._frames, of=self.of)
