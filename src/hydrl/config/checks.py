"""What a configuration must satisfy before anything is built: ranges, what fits what, what is installed.

The cheapest checks come first; PyTorch is imported by the last.
"""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import Field, PositiveInt

from hydrl.config import CONFIGS
from hydrl.config.mistakes import choices, find
from hydrl.config.signatures import Part, Values, check_signatures, check_type, targets
from hydrl.errors import UserError

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

# Ranges of what TorchRL and PyTorch would accept in silence, or refuse late.
RANGES: dict[str, Any] = {
    "optim.lr": Positive,
    "optim.eps": Positive,
    "optim.weight_decay": NotNegative,
    "schedule.eta_min": NotNegative,
    "schedule.power": Positive,
    "loss.value_estimator.gamma": Fraction,
    "loss.value_estimator.lmbda": Fraction,
    "loss.module.clip_epsilon": Annotated[float, Field(gt=0, lt=1)],
    "loss.module.entropy_coeff": NotNegative,
    "loss.module.critic_coeff": NotNegative,
    "loss.module.dtarg": Positive,
    "loss.module.beta": NotNegative,
    "loss.module.loss_critic_type": Literal["l1", "l2", "smooth_l1"],
    "loss.module.loss_function": Literal["l1", "l2", "smooth_l1"],
    "loss.module.functional": bool,
    "loss.module.log_explained_variance": bool,
    "exploration.eps_init": Fraction,
    "exploration.eps_end": Fraction,
    "exploration.sigma_init": NotNegative,
    "exploration.sigma_end": NotNegative,
    "exploration.annealing_num_steps": PositiveInt,
    "target.tau": Fraction,
    "target.value_network_update_interval": PositiveInt,
    "actor.num_cells": list[PositiveInt],
    "actor.scale": Literal["per_state", "independent"],
    "critic.num_cells": list[PositiveInt],
    "collector.frames_per_batch": PositiveInt,
    "collector.num_envs": PositiveInt,
    "collector.num_workers": PositiveInt,
    "collector.worker_timeout": Positive,
    "collector.init_random_frames": Count,
    "buffer.storage.max_size": PositiveInt,
    "minibatches.epochs": PositiveInt,
    "minibatches.size": PositiveInt,
    "minibatches.updates": PositiveInt,
    "minibatches.warmup_frames": Count,
    "logger.mode": Literal["auto", "online", "offline"],
    "logger.init_timeout": Positive,
}

# Actors that act in one kind of action space only.
ACTS_IN = {
    "hydrl.parts.actors.tanh_normal": "continuous",
    "hydrl.parts.actors.categorical": "discrete",
    "hydrl.parts.actors.q_value": "discrete",
    "hydrl.parts.actors.dueling": "discrete",
}

# Losses that torch.compile cannot build, and why.
NOT_COMPILED = {"torchrl.objectives.KLPENPPOLoss": "it changes its own beta as it runs"}

# Choices that need a package hydrl does not install by itself; the extra has the package's name.
EXTRAS = {"logger=tensorboard": "tensorboard"}


def check(values: Values) -> None:
    """Everything below, cheapest first.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for path, kind in RANGES.items():
        parent, _, key = path.rpartition(".")
        if isinstance(node := find(values, parent), Mapping) and key in node:
            check_type(path, kind, node[key])
    if values["resume"] is None:
        check_folder(Path(values["run_dir"]))
    check_extras(values)
    check_fits(values)
    check_compile(values)
    check_sizes(values)
    check_signatures(values)


def names_of(group: str, node: Part | None) -> list[str]:
    """The choices of a group that are built from what ``node`` is built from, likest first.

    Empty for a part of one's own.
    """
    if node is None:
        return ["null"]
    wanted = {each["_target_"] for _, each in targets(node)}
    names = [name for name in choices(CONFIGS / group) if named_targets(group, name) == wanted]
    if len(names) > 1:
        files = {name: dict(OmegaConf.load(CONFIGS / group / f"{name}.yaml")) for name in names}
        names.sort(key=lambda name: -sum(files[name].get(key) == value for key, value in node.items()))
    return names


def named_targets(group: str, name: str) -> set[str]:
    """The ``_target_`` names in a file of ``configs/``."""
    text = (CONFIGS / group / f"{name}.yaml").read_text()
    found = set(re.findall(r"^\s*_target_: (\S+)", text, re.MULTILINE))
    return found or {each for base in bases(text) for each in named_targets(group, base)}


def bases(text: str) -> list[str]:
    """The choices of its own group that a file builds on."""
    return re.findall(r"^  - (\w+)$", text.partition("_self_")[0], re.MULTILINE)


def check_folder(folder: Path) -> None:
    """A run never writes over another."""
    if (folder / "summary.json").exists() or any(folder.glob("checkpoints/checkpoint-*")):
        raise UserError(
            f"hydra.run.dir={folder} holds a run already; go on with it by resume={folder}, or choose another"
        )


def check_extras(values: Values) -> None:
    """Optional packages are there before anything waits for them."""
    for choice, package in EXTRAS.items():
        group, _, name = choice.partition("=")
        if name in names_of(group, values[group]) and importlib.util.find_spec(package) is None:
            raise UserError(
                f"{choice} needs the package {package}, which is not installed; "
                f"pip install -e '.[{package}]', or choose another {group}"
            )


def check_fits(values: Values) -> None:
    """The parts are ones the algorithm can learn with; parts of one's own are taken at their word."""
    for group, fitting in values["fits"].items():
        names, able = names_of(group, values[group]), [each or "null" for each in fitting]
        if names and not set(names) & set(able):
            use = " or ".join(f"{group}={each}" for each in able)
            raise UserError(f"{group}={names[0]} does not fit algo={values['algo']}; use {use}")


def check_compile(values: Values) -> None:
    """What is to be compiled can be."""
    target = values["loss"]["module"]["_target_"]
    if values["compile"] and target in NOT_COMPILED:
        raise UserError(
            f"compile=true does not work with {target}: {NOT_COMPILED[target]}; use compile=false"
        )


def check_sizes(values: Values) -> None:
    """Counts that must fit each other."""
    if values["anneal_frames"] < values["total_frames"]:
        raise UserError(
            f"anneal_frames={values['anneal_frames']} is less than total_frames={values['total_frames']}; "
            f"use anneal_frames={values['total_frames']} or more"
        )
    check_collector(values)
    check_buffer(values)
    start, end = (find(values, f"exploration.{each}") for each in ("eps_init", "eps_end"))
    if start is not None and end is not None and end > start:
        raise UserError(
            f"exploration.eps_end={end} is above exploration.eps_init={start}; epsilon can only fall, "
            f"use exploration.eps_end={start} or less"
        )
    module = values["loss"]["module"]
    if module.get("double_dqn") and not module.get("delay_value", True):
        raise UserError(
            "loss.module.double_dqn=true needs a target network; use loss.module.delay_value=true"
        )


def check_collector(values: Values) -> None:
    """A batch is shared out evenly, and no worker keeps a normaliser of its own."""
    collector = values["collector"]
    for key in ("frames_per_batch", "num_envs"):
        if key not in collector:
            raise UserError(f"collector.{key} is missing; give one, as +collector.{key}=VALUE")
    frames, envs = collector["frames_per_batch"], collector["num_envs"]
    workers = collector.get("num_workers", 1)
    if over := frames % (envs * workers):
        of_workers = f" in each of collector.num_workers={workers}" if workers > 1 else ""
        better = " or ".join(str(each) for each in (frames - over, frames - over + envs * workers) if each)
        raise UserError(
            f"collector.frames_per_batch={frames} is not divisible by collector.num_envs={envs}{of_workers}; "
            f"use collector.frames_per_batch={better}"
        )
    running = [node for node in values["transforms"].values() if "VecNorm" in node["_target_"]]
    if "num_workers" in collector and running:
        raise UserError(
            "transforms=running_norm keeps its statistics in the workers; "
            "use collector=single or transforms=normalized"
        )


def check_buffer(values: Values) -> None:
    """The buffer holds what is stored in it and drawn from it."""
    frames, minibatches = values["collector"]["frames_per_batch"], values["minibatches"]
    capacity = find(values, "buffer.storage.max_size") or frames
    fresh = "epochs" in minibatches  # else they are drawn from all that is kept
    limit, name = (frames, "collector.frames_per_batch") if fresh else (capacity, "buffer.storage.max_size")
    if (size := minibatches.get("size", 1)) > limit:
        raise UserError(f"minibatches.size={size} is more than {name}={limit}; use {limit} or fewer")
    if fresh and capacity < frames:
        raise UserError(
            f"buffer.storage.max_size={capacity} cannot hold collector.frames_per_batch={frames}; "
            f"use buffer.storage.max_size={frames}"
        )
    if (warmup := minibatches.get("warmup_frames", 0)) > capacity:
        raise UserError(
            f"minibatches.warmup_frames={warmup} is more than the buffer ever holds; "
            f"use {capacity} or fewer, or a larger buffer.storage.max_size"
        )
