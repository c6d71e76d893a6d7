"""The running episodes of a run: in its checkpoints where their state can be kept, else started anew."""

from collections.abc import Callable, Mapping
from typing import Any

from torchrl.envs import TransformedEnv

from hydrl.experience.collectors import Collector
from hydrl.run.checkpoint.env_state.capture import NotCapturedError, capture
from hydrl.run.checkpoint.env_state.verify import CannotResumeError, Rehearsal


class RunningEpisodes:
    """Captures and restores the episodes that the collector has begun.

    Args:
        env: the training environment of this process.
        collector: steps it, or has its own environments in other processes.
        make_env: makes an environment like ``env``, in which captured states are tried.
    """

    def __init__(
        self, env: TransformedEnv, collector: Collector, make_env: Callable[[], TransformedEnv]
    ) -> None:
        self.env, self.collector = env, collector
        self.rehearsal = Rehearsal(env, make_env)
        self.episode_restart_reason: str | None = None  # why they start anew, once a rehearsal has failed

    def capture(self) -> tuple[dict[str, Any], str | None]:
        """The collector's state with that of its environments, and why episodes start anew if they do."""
        env_state, reason = None, self.episode_restart_reason
        if not self.collector.steps_env:
            reason = self.collector.episode_restart_reason
        elif reason is None:
            try:
                env_state = capture(self.env, self.rehearsal.fresh)
            except NotCapturedError as error:
                reason = f"the state of {error} cannot be saved"
        return self.collector.state(running=env_state is not None) | {"simulator": env_state}, reason

    def rehearse(self) -> str | None:
        """Tries before the first checkpoint whether episodes can be resumed; why not, if they cannot."""
        if not self.collector.steps_env or self.rehearsal.is_tried or self.episode_restart_reason is not None:
            return None
        state = self.collector.state(running=True)
        try:
            self.rehearsal.before_saving(state["carrier"])
            self.collector.load_state(state)
        except NotCapturedError:  # nothing was stepped, and :meth:`capture` says why
            pass
        except CannotResumeError as error:
            self.episode_restart_reason = str(error)
            if self.rehearsal.is_stepped:
                self.collector.load_state(state | {"carrier": None})
        return self.episode_restart_reason

    def restore(self, state: Mapping[str, Any], rehearsed: Any) -> str | None:
        """Resumes the episodes, or says why they start anew; that costs them and never the run.

        Args:
            state: of :meth:`capture`.
            rehearsed: :attr:`rehearsed` of the earlier process.
        """
        self.rehearsal.first = rehearsed
        self.collector.load_state(dict(state))
        if state["simulator"] is None:
            return None
        try:
            self.rehearsal.before_loading(state["simulator"], state["carrier"])
        except CannotResumeError as error:
            self.collector.load_state({**state, "carrier": None})
            return str(error)
        return None

    @property
    def rehearsed(self) -> Any:
        """What the first rehearsal of the run came to, which a later process has to repeat."""
        return self.rehearsal.first
