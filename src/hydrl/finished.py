"""A finished run, rebuilt from its folder: the policy with the normaliser it was trained with."""

import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torchrl.envs
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from hydrl import envs
from hydrl.checkpoint import load_policy
from hydrl.config import CONFIGS, Settings, explain, targets
from hydrl.errors import UserError
from hydrl.evaluation import Evaluation, Evaluator


@dataclass
class FinishedRun:
    """What :func:`open_run` rebuilds.

    Attributes:
        settings: the run's own.
        frames: how long the loaded policy had been trained.
        evaluator: plays the policy.
        normaliser: the statistics it was trained with.
    """

    settings: Settings
    frames: int
    evaluator: Evaluator
    normaliser: dict[str, Any]

    def evaluate(self, episodes: int, stream: int) -> Evaluation:
        """Deterministic whole episodes; each ``stream`` has episodes of its own."""
        return self.evaluator(self.normaliser, episodes=episodes, frames=self.frames, stream=stream)


def read_settings(run: Path, *, trust: bool) -> Settings:
    """The run's resolved configuration.

    Args:
        run: a run folder.
        trust: allows ``_target_`` names that are neither in hydrl's own configs nor transforms of TorchRL,
            such as your own environment's; a folder from somebody else could name anything there.

    Raises:
        UserError: if the folder is not a run's or names an unknown target.
    """
    path = run / "config_resolved.yaml"
    try:
        values = typing.cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path)))
        settings = Settings.model_validate_json(json.dumps(values))
    except (OSError, OmegaConfBaseException, YAMLError, TypeError) as error:
        raise UserError(
            f"run={run}: config_resolved.yaml cannot be read: {str(error).splitlines()[0]}"
        ) from None
    except ValidationError as error:
        raise UserError(f"run={run}: config_resolved.yaml does not fit: {explain(error, values)}") from None
    named = {node["_target_"] for _, node in targets(values)} - set(own_targets())
    foreign = {name for name in named if not is_transform(name)}
    if foreign and not trust:
        raise UserError(
            f"run={run}: its configuration names {', '.join(sorted(foreign))}, which is not one of hydrl's "
            "parts; add trust=true if you trust that code"
        )
    return settings


def own_targets() -> Iterator[str]:
    """Every ``_target_`` in ``configs/``."""
    for file in CONFIGS.rglob("*.yaml"):
        for _, node in targets(OmegaConf.to_container(OmegaConf.load(file))):
            yield node["_target_"]


def is_transform(name: str) -> bool:
    """Whether ``torchrl.envs`` itself exports ``name`` as a transform; imports nothing."""
    package, _, attribute = name.rpartition(".")
    found = getattr(torchrl.envs, attribute, None) if package == "torchrl.envs" else None
    return isinstance(found, type) and issubclass(found, torchrl.envs.Transform)


def open_run(run: Path, *, checkpoint: str, device: str, trust: bool) -> FinishedRun:
    """Rebuilds the policy of ``run`` from ``checkpoints/CHECKPOINT.pt``.

    Raises:
        UserError: if the folder, the checkpoint or the environment cannot be had.
    """
    settings = read_settings(run, trust=trust)
    state = load_policy(run / "checkpoints" / f"{checkpoint}.pt", device)
    make_env = partial(envs.make_env, settings.build("env"), settings.transform_builders, device=device)
    env = make_env(normaliser=state["normaliser"], seed=settings.seed)
    actor = settings.build("actor")(env)
    actor.load_state_dict(state["actor"])
    env.close()
    evaluator = Evaluator(make_env, actor, seed=settings.seed, max_steps=settings.eval.max_steps)
    return FinishedRun(settings, state["frames"], evaluator, state["normaliser"])
