"""The components of a run, as ``train.py`` builds them before its loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a run's command line is checked before PyTorch is imported
    from collections.abc import Callable, Mapping, Sequence

    from tensordict.nn import TensorDictModuleBase
    from torchrl.data import ReplayBuffer
    from torchrl.envs import TransformedEnv

    from hydrl.run.logging.run_logger import RunInfo
    from hydrl.training import Learner, Metrics, PolicyEvaluator


@dataclass(frozen=True)
class RunComponents:
    """What the training loop works with.

    Attributes:
        info: what the run is, for its logs.
        env: the environment whose transforms are shared with the workers.
        networks: by name, ``actor`` among them.
        exploration: adds noise to the actor's actions; ``None`` without it.
        buffer: the replay buffer; ``None`` for on-policy algorithms.
        learners: in order; the last one is that of the run's own loss.
        schedule: of the learning rate; ``None`` for a constant one.
        metrics: of training.
        make_env: builds another environment with the run's normalizer.
        collect: makes the collector; takes ``stop``.
        evaluate: plays evaluations.
    """

    info: RunInfo
    env: TransformedEnv
    networks: Mapping[str, TensorDictModuleBase]
    exploration: Any
    buffer: ReplayBuffer | None
    learners: Sequence[Learner]
    schedule: Any
    metrics: Metrics
    make_env: Callable[..., TransformedEnv]
    collect: Callable[..., Any]
    evaluate: PolicyEvaluator

    @property
    def with_state(self) -> dict[str, Any]:
        """The components that checkpoints save, by their names there."""
        *extra_learners, own = self.learners
        return {
            **{"actor": self.networks["actor"], **own.components, "exploration": self.exploration},
            **{"schedule": self.schedule, "env": self.env, "buffer": self.buffer},
            **{f"before_{learner.name}": learner for learner in extra_learners},
        }
