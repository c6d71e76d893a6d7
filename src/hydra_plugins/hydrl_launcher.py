"""How Hydra launches hydrl's sweeps; it takes plugins from this package only and imports it at each start."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig


class Processes(Launcher):
    """Runs each member of a sweep as a ``python train.py`` of its own, see :func:`hydrl.study.sweep.launch`.

    Args:
        n_jobs: members at a time.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, config: DictConfig, **_: Any) -> None:
        """Takes what Hydra composed for the whole sweep."""
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Runs the members; what they ended with is the exit code of this process."""
        from hydrl.study import sweep  # here, as a single run has no need of it

        sweep.launch(self.config, job_overrides, self.n_jobs, initial_job_idx)
        return []


ConfigStore.instance().store(
    group="hydra/launcher", name="processes", node={"_target_": f"{__name__}.Processes", "n_jobs": 1}
)
