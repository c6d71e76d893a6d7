"""Comparison of the environment a dataset was recorded in with the run's."""

from collections.abc import Mapping
from typing import Any

from torchrl.data import ReplayBuffer

from hydrl.config.tree import find, paths, show
from hydrl.errors import printable
from hydrl.library_setup import warn_once
from hydrl.run.checkpoint.resume import DATA

IGNORED_KEYS = ("_target_", "info_keys")  # compared by the task's name; changes no row


def warn_of_other_env(data: ReplayBuffer | None, settings: Mapping[str, Any]) -> None:
    """Warns if the dataset was recorded in the same environment with other wrappers or arguments."""
    recorded, now = getattr(data, "recorded_env", None), settings["env"]
    if getattr(data, "read_from", None) is None:  # no run's own steps: played by `record`
        recorded, now = without_training_wrappers(recorded), without_training_wrappers(now)
    if isinstance(recorded, Mapping) and (differences := compare_envs(recorded, now)):
        text = printable("; ".join(differences))
        warn_once(
            f"{DATA}={find(settings, DATA)} was recorded in the same environment under other settings: "
            f"{text}; its observations, actions and rewards are taken as they are"
        )


def compare_envs(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between two environments' settings, in words."""
    both = (env.get("wrappers") for env in (then, now))
    before, after = (dict(value) if isinstance(value, Mapping) else {} for value in both)
    same = [*before.values()] == [*after.values()]  # whatever they are called
    left = (*IGNORED_KEYS, "wrappers") if same else IGNORED_KEYS
    differences = []
    for key in dict.fromkeys([*paths(then), *paths(now)]):
        old, new = find(then, key), find(now, key)
        nested = all(value is None or isinstance(value, Mapping) for value in (old, new))  # its keys follow
        if key.partition(".")[0] not in left and not nested and old != new:
            differences.append(f"env.{key}={show(old)} (this run: {show(new)})")
    if not same and not differences:
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
