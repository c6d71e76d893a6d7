"""Hydra plugins: launchers and sweeper. Hydra imports the package ``hydra_plugins`` at each start."""

import importlib.util
import itertools
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hydrl.config import tuned
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


class MemberSweeper(Sweeper):
    """Sweeper over all combinations of typed values, each with the tuned preset of its algorithm and task.

    Args:
        max_batch_size: members that are launched together; ``None``: all.
        params: overrides that every sweep has, by key.
    """

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        self.max_batch_size, self.params = max_batch_size, params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Makes the launcher."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Sweeps over the typed overrides; checks every member before it makes a folder and one starts.

        Raises:
            UserError: for a wrong member, and a wrong ``max_batch_size``.
        """
        from hydrl.experiments.member_checks import check_members

        loader, folder = self.hydra_context.config_loader, Path(self.config.hydra.sweep.dir)
        words = [f"{key}={value}" for key, value in self.params.items()]
        words += current_command().typed(arguments)
        members = combinations(OverridesParser.create(config_loader=loader).parse_overrides(words))
        size = len(members) if self.max_batch_size is None else self.max_batch_size
        if size < 1:
            raise UserError(f"hydra.sweeper.max_batch_size={size}: should be 1 or more.")
        with_presets = self.with_tuned(members)
        check_members(loader.load_sweep_config(self.config, member) for member in with_presets)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        # Processes find their presets themselves.
        launched = members if isinstance(self.launcher, ProcessLauncher) else with_presets
        results = []
        for first in range(0, len(members), size):
            results.append(self.launcher.launch(launched[first : first + size], initial_job_idx=first))
            for member in results[-1]:
                member.return_value  # noqa: B018  # raises the error of a job that failed
        return results

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


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each member: all combinations of the values of each key.

    Raises:
        UserError: for a range of continuous values.
    """
    words: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            words[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            words[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UserError(f"{override.input_line}: is a range. Write the values, as {key}=VALUE,VALUE.")
    return [list(member) for member in itertools.product(*words.values())]


node = {"_target_": f"{__name__}.MemberSweeper", "max_batch_size": None, "params": None}
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
