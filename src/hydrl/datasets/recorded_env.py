"""Comparison of the environment a dataset was recorded in with the run's."""

from collections.abc import Mapping
from typing import Any

from torchrl.data import ReplayBuffer

from hydrl.config.tree import find, paths, show
from hydrl.errors import printable, warn_once
from hydrl.run.checkpoint.resume import DATA

IGNORED_KEYS = ("_target_", "info_keys")  # compared by the environment's name; changes no row


def warn_of_other_env(data: ReplayBuffer | None, settings: Mapping[str, Any]) -> None:
    """Warns if the dataset was recorded in the same environment with other wrappers or arguments."""
    recorded, now = getattr(data, "recorded_env", None), settings["env"]
    if getattr(data, "read_from", None) is None:  # no run's own steps: played by `record`
        recorded, now = without_training_wrappers(recorded), without_training_wrappers(now)
    if isinstance(recorded, Mapping) and (differences := compare_envs(recorded, now)):
        warn_once(
            f"{DATA}={find(settings, DATA)}: recorded with other settings of the environment: "
            f"{printable('; '.join(differences))}. Its rows are used unchanged."
        )


def compare_envs(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between the settings of the dataset's and the run's environment, in words."""
    settings = (env.get("wrappers") for env in (recorded, now))
    before, after = (dict(wrappers) if isinstance(wrappers, Mapping) else {} for wrappers in settings)
    same_wrappers = [*before.values()] == [*after.values()]  # whatever their keys
    ignored = (*IGNORED_KEYS, "wrappers") if same_wrappers else IGNORED_KEYS
    differences = []
    for key in dict.fromkeys([*paths(recorded), *paths(now)]):
        values = find(recorded, key), find(now, key)
        is_nested = all(value is None or isinstance(value, Mapping) for value in values)  # its keys follow
        if key.partition(".")[0] not in ignored and not is_nested and values[0] != values[1]:
            differences.append(f"env.{key}={show(values[0])} (this run: {show(values[1])})")
    if not same_wrappers and not differences:
        differences = [f"env.wrappers in the order {', '.join(before)} (this run: {', '.join(after)})"]
    return differences


def without_training_wrappers(env: Any) -> Any:
    """An environment's settings as ``record`` uses them, without wrappers that are for training only."""
    if not isinstance(env, Mapping) or not isinstance(env.get("wrappers"), Mapping):
        return env
    wrappers = {
        name: wrapper
        for name, wrapper in env["wrappers"].items()
        if not (isinstance(wrapper, Mapping) and wrapper.get("training_only"))
    }
    return {**env, "wrappers": wrappers}
