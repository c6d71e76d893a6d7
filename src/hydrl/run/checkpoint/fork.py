"""A fork: what its changed keys decide is as they say, and all else goes on as it stood."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torchrl.envs import TransformedEnv

from hydrl import specs
from hydrl.config.migrations import new_config
from hydrl.config.settings import Settings
from hydrl.losses.build import make_loss
from hydrl.run.checkpoint.resume import Origin
from hydrl.run.checkpoint.warm_start import by_part


def changed_states(
    origin: Origin,
    settings: Settings,
    env: TransformedEnv,
    learner: Mapping[str, Any],
    states: Mapping[str, Any],
) -> dict[str, Any]:
    """The states that are another in a fork, by the names of their parts.

    A state holds numbers of the configuration too, as a loss its ``clip_epsilon``. Those that come out
    otherwise where the part is built by the old configuration and by the new are taken from the new.

    Args:
        origin: what is gone on from, with the keys that were changed.
        settings: the fork's.
        env: the training environment.
        learner: the parts as they are built, by their names.
        states: those that were saved.
    """
    found = {}
    then = built(Settings.of(new_config(origin.settings), dict(origin.settings)), env)
    if origin.changes("loss"):
        networks = by_part(states["loss"], settings.loss.networks)
        learned = {id(value) for each in networks.values() for value in each.values()}
        kept = {name for name, value in states["loss"].items() if id(value) in learned}
        found["loss"] = decided(then["loss"], learner["loss"], states["loss"], kept)
    if origin.changes("exploration"):
        found["exploration"] = decided(then["exploration"], learner["exploration"], states["exploration"])
    if origin.changes("target"):  # whose counter may have passed the new interval
        found["target"] = learner["target"].state_dict()
    if origin.changes("optim", "schedule", "loss"):
        found["optimizer"] = deepcopy(states["optimizer"])
        now = learner["optimizer"].state_dict()["param_groups"]
        for group, options in zip(found["optimizer"]["param_groups"], now, strict=True):
            group.update({name: each for name, each in options.items() if name != "params"})
    return found


def built(settings: Settings, env: TransformedEnv) -> dict[str, Any]:
    """A run's loss and exploration as they begin."""
    actor, spec, told = settings.build("actor")(env), specs.action_spec(env), settings.loss
    parts = {
        part: actor if part == "actor" else settings.build(part)(env, actor) for part in settings.networks
    }
    loss = make_loss(settings.build("loss"), parts, spec, told.networks, told.keys, told.value_estimator)
    return {"loss": loss, "exploration": settings.build("exploration")(spec)}


def decided(
    then: torch.nn.Module, now: torch.nn.Module, saved: Mapping[str, Any], kept: set[str] | None = None
) -> dict[str, Any]:
    """A saved state with what begins otherwise in two builds of a part as it begins in the second.

    Args:
        then: built as it was.
        now: built as it is.
        saved: what came of the first.
        kept: entries that stay as they are saved, as weights, which begin at random.
    """
    first, second = then.state_dict(), now.state_dict()

    def differs(name: str) -> bool:
        both = name in first and name in second and name not in (kept or ())
        return both and not torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name]))

    return {name: second[name] if differs(name) else value for name, value in saved.items()}
