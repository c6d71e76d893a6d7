"""Under which wrappers and keywords of the environment data was recorded, beside those of its reader."""

from collections.abc import Mapping
from typing import Any

from torchrl.data import ReplayBuffer

from hydrl.config.tree import find, paths, show
from hydrl.errors import printable
from hydrl.library_setup import warn_once
from hydrl.run.checkpoint.resume import DATA

REPORTED = ("_target_", "info_keys")  # what the task's name says, and what changes no row


def warn_of_other_env(data: ReplayBuffer | None, settings: Mapping[str, Any]) -> None:
    """Says where data was recorded in the same environment under other wrappers or keywords; once."""
    recorded, now = getattr(data, "recorded_env", None), settings["env"]
    if getattr(data, "read_from", None) is None:  # no run's own steps: played by `record`
        recorded, now = as_played(recorded), as_played(now)
    if isinstance(recorded, Mapping) and (differences := compare_envs(recorded, now)):
        told = printable("; ".join(differences))
        warn_once(
            f"{DATA}={find(settings, DATA)} was recorded in the same environment under other settings: "
            f"{told}; its observations, actions and rewards are taken as they are"
        )


def compare_envs(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, each as the data was recorded and as the run has it."""
    both = (each.get("wrappers") for each in (then, now))
    before, after = (dict(each) if isinstance(each, Mapping) else {} for each in both)
    same = [*before.values()] == [*after.values()]  # whatever they are called
    left = (*REPORTED, "wrappers") if same else REPORTED
    found = []
    for key in dict.fromkeys([*paths(then), *paths(now)]):
        old, new = find(then, key), find(now, key)
        nested = all(each is None or isinstance(each, Mapping) for each in (old, new))  # its keys follow
        if key.partition(".")[0] not in left and not nested and old != new:
            found.append(f"env.{key}={show(old)} (this run: {show(new)})")
    if not same and not found:
        found = [f"env.wrappers in the order {', '.join(before)} (this run: {', '.join(after)})"]
    return found


def as_played(env: Any) -> Any:
    """The settings of an environment as ``record`` plays it, without what is for training alone."""
    if not isinstance(env, Mapping) or not isinstance(env.get("wrappers"), Mapping):
        return env
    wrappers = {
        name: each
        for name, each in env["wrappers"].items()
        if not (isinstance(each, Mapping) and each.get("training_only"))
    }
    return {**env, "wrappers": wrappers}
