"""How Hydra launches hydrl's sweeps; it takes plugins from this package only and imports it at each start."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from hydrl.errors import Interrupted, UserError

OF_THE_SWEEP = r"\W*hydra[./](launcher|mode|run|sweep|sweeper)\b"  # what no member takes


class Processes(Launcher):
    """Runs each member of a sweep as a ``python train.py`` of its own, see :mod:`hydrl.study.sweep`.

    Args:
        n_jobs: members at a time.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, config: DictConfig, **_: Any) -> None:
        """Takes what Hydra composed for the whole sweep."""
        self.config = config.hydra

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Runs the members; each takes what the sweep was told of Hydra and where configs are.

        Raises:
            SystemExit: with the exit code, if one has not finished.
            Interrupted: once all have saved.
        """
        from hydrl.study.sweep import train_all  # here, as a single run has no need of it

        if type(self.n_jobs) is not int or self.n_jobs < 1:
            raise UserError(f"hydra.launcher.n_jobs={self.n_jobs}: give a whole number, 1 or more")
        sources = self.config.runtime.config_sources
        words = [f"--config-dir={each.path}" for each in sources if each.provider == "command-line"]
        words += [each for each in self.config.overrides.hydra if not re.match(OF_THE_SWEEP, each)]
        folder = self.config.sweep.dir
        try:
            code = train_all(job_overrides, Path(folder), self.n_jobs, words, initial_job_idx)
        except Interrupted:
            print(f"go on with the same command and hydra.sweep.dir={folder} resume=auto")
            raise
        if code:
            raise SystemExit(code)
        return []


ConfigStore.instance().store(
    group="hydra/launcher", name="processes", node={"_target_": f"{__name__}.Processes", "n_jobs": 1}
)
