"""How Hydra makes and launches sweeps; it takes plugins from this package only, imported at each start."""

import importlib.util
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from hydrl.config import tuned
from hydrl.config.overrides import key_of
from hydrl.errors import Interrupted, UserError

OF_THE_SWEEP = r"\W*hydra[./](launcher|mode|run|sweep|sweeper)\b"  # what no member takes


class Processes(Launcher):
    """Runs each member of a sweep as a ``python train.py`` of its own, see :mod:`hydrl.experiments.sweep`.

    Args:
        n_jobs: members at a time.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, config: DictConfig, **_: Any) -> None:
        """Takes what Hydra composed for the whole sweep, and refuses it before Hydra writes a folder.

        Raises:
            UserError: for a value that does not fit.
        """
        self.config = config.hydra
        self.pool()  # which tells what is wrong; one is made anew for each batch of members

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Runs the members; each takes what the sweep was told of Hydra and where configs are.

        Raises:
            SystemExit: with the exit code, if one has not finished.
            Interrupted: once all have saved.
        """
        from hydrl.experiments.sweep import shared, train_all  # here, as a single run has no need of it

        sources = self.config.runtime.config_sources
        words = [f"--config-dir={each.path}" for each in sources if each.provider == "command-line"]
        words += [each for each in self.config.overrides.hydra if not re.match(OF_THE_SWEEP, each)]
        folder = self.config.sweep.dir
        typed = OverridesParser.create().parse_overrides(list(self.config.overrides.task))
        once = {each.get_key_element() for each in typed if not each.is_sweep_override()}
        of_all = [word for word in job_overrides[0] if word.partition("=")[0] in once]
        left_out = shared(Path(folder), of_all)
        try:
            with self.pool() as trainings:
                code = train_all(job_overrides, Path(folder), trainings, words, initial_job_idx, left_out)
        except Interrupted:
            print(f"go on with the same command and hydra.sweep.dir={folder} resume=auto")
            raise
        if code:
            raise SystemExit(code)
        return []

    def pool(self) -> AbstractContextManager[Any]:
        """Where members run side by side.

        Raises:
            UserError: for a number of them that is none.
        """
        from hydrl.experiments.processes import Trainings

        if type(self.n_jobs) is not int or self.n_jobs < 1:
            raise UserError(f"hydra.launcher.n_jobs={self.n_jobs}: give a whole number, 1 or more")
        return nullcontext(Trainings(self.n_jobs))


class OnRay(Processes):
    """The same on the machines of a Ray cluster, see :mod:`hydrl.contrib.ray.launcher`.

    Args:
        **options: of :class:`hydrl.contrib.ray.launcher.LauncherOptions`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def pool(self) -> AbstractContextManager[Any]:
        """Where members run side by side.

        Raises:
            UserError: for a value that does not fit, and without Ray.
        """
        if importlib.util.find_spec("ray") is None:
            raise UserError(
                "hydra/launcher=ray_processes needs a package that is not installed; pip install 'hydrl[ray]'"
            )
        from hydrl.contrib.ray.launcher import connect

        return connect(self.options)


class Members(BasicSweeper):
    """Hydra's own sweeper, for members of which each takes the tuned numbers of its algorithm and task."""

    def sweep(self, arguments: list[str]) -> Any:
        """Sweeps over what was typed."""
        return super().sweep(tuned.typed(arguments))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Composes each member as it will be."""
        super().validate_batch_is_legal(self.named(batch))

    def get_job_batch(self) -> Sequence[Sequence[str]]:
        """The words of each member; a ``python train.py`` finds its tuned numbers itself."""
        batch = super().get_job_batch()
        return batch if isinstance(self.launcher, Processes) else self.named(batch)

    def named(self, batch: Sequence[Sequence[str]]) -> list[list[str]]:
        """The words of each member with what goes without saying, of which no folder is named."""
        loader, hydra = self.hydra_context.config_loader, self.config.hydra
        found = []
        for job in batch:
            more = tuned.unsaid([*hydra.overrides.hydra, *job], loader)
            keys = [*hydra.job.config.override_dirname.exclude_keys, *map(key_of, more)]
            names = f"hydra.job.config.override_dirname.exclude_keys=[{','.join(keys)}]"
            found.append([*job, *more, *[names] * bool(more)])
        return found


node = {"_target_": f"{__name__}.Members", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/sweeper", name="members", node=node)
launchers: dict[str, dict[str, Any]] = {
    "processes": {"_target_": f"{__name__}.Processes", "n_jobs": 1},
    "ray_processes": {
        "_target_": f"{__name__}.OnRay",
        "n_jobs": None,
        "address": None,
        "num_cpus": 1,
        "num_gpus": 0,
    },
}
for name, node in launchers.items():
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node)
