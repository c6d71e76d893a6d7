"""Hydra plugins: launchers and sweeper. Hydra imports the package ``hydra_plugins`` at each start."""

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
from hydrl.config.command_line import remove_empty_folders
from hydrl.config.hydra_errors import HYDRA_ERRORS
from hydrl.config.overrides import current_command, key_of
from hydrl.errors import Interrupted, UserError

SWEEP_KEYS = r"\W*hydra[./](launcher|mode|run|sweep|sweeper)\b"  # overrides that no member takes


class ProcessLauncher(Launcher):
    """Launcher that runs each member of a sweep as its own process, see :mod:`hydrl.experiments.sweep`.

    Args:
        n_jobs: members at a time.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, config: DictConfig, **_: Any) -> None:
        """Checks the sweep's configuration before Hydra writes a folder.

        Raises:
            UserError: for a wrong value.
        """
        self.config = config.hydra
        self.pool()  # raises for wrong values; each batch of members gets a new one

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """Runs the members, each with the sweep's Hydra overrides and config folders.

        Raises:
            SystemExit: with the exit code, if one did not finish.
            Interrupted: once all have saved.
        """
        from hydrl.experiments.sweep import (  # here, as a single run has no need of it
            common_overrides,
            train_all,
        )

        sources = self.config.runtime.config_sources
        words = [f"--config-dir={source.path}" for source in sources if source.provider == "command-line"]
        words += [word for word in self.config.overrides.hydra if not re.match(SWEEP_KEYS, word)]
        folder = self.config.sweep.dir
        typed = OverridesParser.create().parse_overrides(list(self.config.overrides.task))
        once = {override.get_key_element() for override in typed if not override.is_sweep_override()}
        of_all = [word for word in job_overrides[0] if word.partition("=")[0] in once]
        common = common_overrides(Path(folder), of_all)
        try:
            with self.pool() as pool:
                code = train_all(job_overrides, Path(folder), pool, words, initial_job_idx, common)
        except Interrupted:
            print(f"to resume, repeat the command with hydra.sweep.dir={folder} resume=auto")
            raise
        if code:
            raise SystemExit(code)
        return []

    def pool(self) -> AbstractContextManager[Any]:
        """The pool that runs the members.

        Raises:
            UserError: for a wrong ``n_jobs``.
        """
        from hydrl.experiments.processes import ProcessPool

        if type(self.n_jobs) is not int or self.n_jobs < 1:
            raise UserError(f"hydra.launcher.n_jobs={self.n_jobs}: give a whole number, 1 or more")
        return nullcontext(ProcessPool(self.n_jobs))


class RayLauncher(ProcessLauncher):
    """Launcher on the machines of a Ray cluster, see :mod:`hydrl.contrib.ray.launcher`.

    Args:
        **options: of :class:`hydrl.contrib.ray.launcher.LauncherOptions`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def pool(self) -> AbstractContextManager[Any]:
        """The pool that runs the members.

        Raises:
            UserError: for a wrong value, and without Ray.
        """
        if importlib.util.find_spec("ray") is None:
            raise UserError(
                "hydra/launcher=ray_processes needs a package that is not installed; pip install 'hydrl[ray]'"
            )
        from hydrl.contrib.ray.launcher import connect

        return connect(self.options)


class TunedSweeper(BasicSweeper):
    """Hydra's basic sweeper, which gives each member the tuned preset of its algorithm and task.

    Hydra has no public name for its own sweeper: its public ``Sweeper`` is an abstract class.
    """

    def sweep(self, arguments: list[str]) -> Any:
        """Sweeps over the typed overrides; a sweep that is refused leaves no folder."""
        folder = Path(self.config.hydra.sweep.dir)
        is_new = not folder.exists()
        try:
            return super().sweep(current_command().typed(arguments))
        except HYDRA_ERRORS:  # a UserError is a ValueError
            if is_new:
                (folder / "multirun.yaml").unlink(missing_ok=True)
                remove_empty_folders(folder.absolute())
            raise

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Composes and checks all members, each with its preset, before the first batch starts.

        Raises:
            UserError: if one is wrong.
        """
        from hydrl.experiments.member_checks import check_members

        if self.batch_index > 1:
            return
        loader = self.hydra_context.config_loader
        members = [words for words_of_batch in self.overrides for words in words_of_batch]
        check_members(loader.load_sweep_config(self.config, words) for words in self.with_tuned(members))

    def get_job_batch(self) -> Sequence[Sequence[str]]:
        """Overrides of each member; processes find their presets themselves."""
        batch = super().get_job_batch()
        return batch if isinstance(self.launcher, ProcessLauncher) else self.with_tuned(batch)

    def with_tuned(self, batch: Sequence[Sequence[str]]) -> list[list[str]]:
        """Overrides of each member with its preset, which is left out of folder names."""
        loader, hydra = self.hydra_context.config_loader, self.config.hydra
        named = []
        for job in batch:
            more = tuned.implied_words([*hydra.overrides.hydra, *job], loader)
            keys = [*hydra.job.config.override_dirname.exclude_keys, *map(key_of, more)]
            names = f"hydra.job.config.override_dirname.exclude_keys=[{','.join(keys)}]"
            named.append([*job, *more, *[names] * bool(more)])
        return named


node = {"_target_": f"{__name__}.TunedSweeper", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/sweeper", name="members", node=node)
launchers: dict[str, dict[str, Any]] = {
    "processes": {"_target_": f"{__name__}.ProcessLauncher", "n_jobs": 1},
    "ray_processes": {
        "_target_": f"{__name__}.RayLauncher",
        "n_jobs": None,
        "address": None,
        "num_cpus": 1,
        "num_gpus": 0,
    },
}
for name, node in launchers.items():
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node)
