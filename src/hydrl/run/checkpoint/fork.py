"""Forks: changed keys take effect, and everything else continues as it was."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torchrl.envs import TransformedEnv

from hydrl import specs
from hydrl.config.migrations import new_config
from hydrl.config.settings import Settings
from hydrl.losses.build import make_loss
from hydrl.run.checkpoint.resume import ResumePoint
from hydrl.run.checkpoint.warm_start import by_part


def changed_states(
    point: ResumePoint, env: TransformedEnv, parts: Mapping[str, Any], states: Mapping[str, Any]
) -> dict[str, Any]:
    """The states that differ in a fork, by the names of their parts.

    A state also holds numbers of the configuration, as a loss its ``clip_epsilon``. Those that differ between
    builds of the old and of the new configuration are taken from the new.

    Args:
        point: what is forked, with the keys that were changed.
        env: the training environment.
        parts: the parts as they are built now, by name.
        states: those that were saved.
    """
    changed = {}
    before = build_parts(point.settings, env)
    if point.changes("loss"):
        networks = by_part(states["loss"], point.settings["loss"]["networks"])
        learned = {id(value) for entries in networks.values() for value in entries.values()}
        weights = {name for name, value in states["loss"].items() if id(value) in learned}
        changed["loss"] = merge_changes(before["loss"], parts["loss"], states["loss"], weights)
    if point.changes("exploration"):
        changed["exploration"] = merge_changes(
            before["exploration"], parts["exploration"], states["exploration"]
        )
    if point.changes("target"):  # whose counter may have passed the new interval
        changed["target"] = parts["target"].state_dict()
    if point.changes("optim", "schedule", "loss"):
        changed["optimizer"] = deepcopy(states["optimizer"])
        now = parts["optimizer"].state_dict()["param_groups"]
        for group, options in zip(changed["optimizer"]["param_groups"], now, strict=True):
            group.update({name: value for name, value in options.items() if name != "params"})
    return changed


def build_parts(saved: Mapping[str, Any], env: TransformedEnv) -> dict[str, Any]:
    """Builds loss and exploration of saved settings, as they begin."""
    settings = Settings.of(new_config(saved), dict(saved))
    build, loss = settings.build, settings.loss
    actor, action_spec = build("actor")(env), specs.action_spec(env)
    networks = {name: actor if name == "actor" else build(name)(env, actor) for name in settings.networks}
    module = make_loss(build("loss"), networks, action_spec, loss.networks, loss.keys, loss.value_estimator)
    return {"loss": module, "exploration": build("exploration")(action_spec)}


def merge_changes(
    before: torch.nn.Module, now: torch.nn.Module, saved: Mapping[str, Any], weights: set[str] | None = None
) -> dict[str, Any]:
    """A saved state in which entries that differ between two new builds are as in the second.

    Args:
        before: built by the old configuration.
        now: built by the new one.
        saved: the state of the first after training.
        weights: entries that stay as they are saved; they begin at random.
    """
    first, second = before.state_dict(), now.state_dict()

    def differs(name: str) -> bool:
        in_both = name in first and name in second and name not in (weights or ())
        return in_both and not torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name]))

    return {name: second[name] if differs(name) else value for name, value in saved.items()}
