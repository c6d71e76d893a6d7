"""The running episodes of a run: in its checkpoints where their state can be kept, else started anew."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import TransformedEnv

from hydrl.errors import RunError, UserError
from hydrl.experience.collectors import Collector
from hydrl.experience.pipelined import CollectorServer, PipelinedCollector
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

    def wait(self, seconds: float = math.inf) -> bool:
        """Whether nothing is being collected; in this process nothing is, between two batches."""
        return True

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


class RemoteEpisodes:
    """:class:`RunningEpisodes` of the background process of a pipelined collector.

    Args:
        collector: whose process has the environments.

    Attributes:
        rehearsed: see :attr:`RunningEpisodes.rehearsed`.
    """

    def __init__(self, collector: PipelinedCollector) -> None:
        self.collector = collector
        self.rehearsed: torch.Tensor | None = None
        self.is_rehearsed = False

    def wait(self, seconds: float = math.inf) -> bool:
        """Waits up to ``seconds`` for the batch that is being collected; returns whether there is none left.

        Raises:
            UserError, RunError: if the process failed, died or hangs.
        """
        return self.collector.wait(seconds)

    def capture(self) -> tuple[dict[str, Any], str | None]:
        """The batch in flight, the state of the process after it, and why episodes start anew if they do."""
        if self.has_failed():  # in a batch that a finished run does not need
            return self.collector.state(running=False), "the batch after it could not be collected"
        process, reason = self.collector.call(capture_in_process)
        try:
            return self.collector.state(running=True) | {"process": process}, reason
        except TypeError as error:
            state = self.collector.state(running=False)
            return state, f"the next batch has an entry that cannot be saved, {error}"

    def has_failed(self) -> bool:
        """Whether the process failed, once its batch is there."""
        with suppress(UserError, RunError):
            self.collector.wait()
        return self.collector.has_failed

    def rehearse(self) -> str | None:
        """See :meth:`RunningEpisodes.rehearse`."""
        if self.is_rehearsed or self.has_failed():
            return None
        self.is_rehearsed = True
        reason, self.rehearsed = self.collector.call(rehearse_in_process)
        return reason

    def restore(self, state: Mapping[str, Any], rehearsed: Any) -> str | None:
        """See :meth:`RunningEpisodes.restore`."""
        self.collector.load_state(state)
        self.rehearsed = rehearsed
        if "process" not in state:
            return None
        reason, self.rehearsed = self.collector.call(restore_in_process, state["process"], rehearsed)
        return reason


def episodes_of(server: CollectorServer) -> RunningEpisodes:
    """The running episodes of a collecting process, which calls this."""
    if "episodes" not in server.extras:
        server.extras["episodes"] = RunningEpisodes(server.env, server.collector, server.make_env)
    return server.extras["episodes"]


def capture_in_process(server: CollectorServer) -> tuple[dict[str, Any], str | None]:
    """:meth:`RunningEpisodes.capture` with the random generators of the process."""
    state, reason = episodes_of(server).capture()
    return state | {"rng": GlobalRNGState().state_dict()}, reason


def rehearse_in_process(server: CollectorServer) -> tuple[str | None, Any]:
    """:meth:`RunningEpisodes.rehearse`, and what it came to."""
    episodes = episodes_of(server)
    return episodes.rehearse(), episodes.rehearsed


def restore_in_process(
    server: CollectorServer, state: Mapping[str, Any], rehearsed: Any
) -> tuple[str | None, Any]:
    """:meth:`RunningEpisodes.restore` with the random generators, and what the rehearsal came to."""
    episodes = episodes_of(server)
    server.env.rollout(1)  # transforms have buffers in their shapes only after a step
    reason = episodes.restore(state, rehearsed)
    GlobalRNGState().load_state_dict(state["rng"])
    return reason, episodes.rehearsed


def running_episodes(
    env: TransformedEnv, collector: Collector, make_env: Callable[[], TransformedEnv]
) -> RunningEpisodes | RemoteEpisodes:
    """The running episodes of a collector, wherever its environments are."""
    if isinstance(collector, PipelinedCollector):
        return RemoteEpisodes(collector)
    return RunningEpisodes(env, collector, make_env)
