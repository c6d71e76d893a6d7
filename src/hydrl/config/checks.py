"""What a configuration must satisfy before anything is built: ranges, what fits what, what is installed.

The cheapest checks come first; PyTorch is imported by the last.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import Field, PositiveInt

from hydrl.config import CONFIGS
from hydrl.config.mistakes import choices, find
from hydrl.config.signatures import Part, Values, check_signatures, hold, targets
from hydrl.errors import UserError

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

# Ranges of what TorchRL and PyTorch would accept in silence, or refuse late, by the part they belong to.
RANGES: dict[str, dict[str, Any]] = {
    "optim": {"lr": Positive, "eps": Positive, "weight_decay": NotNegative},
    "schedule": {"eta_min": NotNegative, "power": Positive},
    "loss.value_estimator": {"gamma": Fraction, "lmbda": Fraction},
    "loss.module": {
        "clip_epsilon": Annotated[float, Field(gt=0, lt=1)],
        "entropy_coeff": NotNegative,
        "critic_coeff": NotNegative,
        "dtarg": Positive,
        "beta": NotNegative,
        "loss_critic_type": Literal["l1", "l2", "smooth_l1"],
        "loss_function": Literal["l1", "l2", "smooth_l1"],
    },
    "exploration": {
        "eps_init": Fraction,
        "eps_end": Fraction,
        "sigma_init": NotNegative,
        "sigma_end": NotNegative,
        "annealing_num_steps": PositiveInt,
    },
    "target": {"tau": Fraction, "value_network_update_interval": PositiveInt},
    "actor": {"num_cells": list[PositiveInt], "scale": Literal["per_state", "independent"]},
    "critic": {"num_cells": list[PositiveInt]},
    "collector": {
        "frames_per_batch": PositiveInt,
        "num_envs": PositiveInt,
        "num_workers": PositiveInt,
        "worker_timeout": Positive,
        "init_random_frames": Count,
    },
    "buffer.storage": {"max_size": PositiveInt},
    "minibatches": {
        "epochs": PositiveInt,
        "size": PositiveInt,
        "updates": PositiveInt,
        "warmup_frames": Count,
    },
    "logger": {"mode": Literal["auto", "online", "offline"], "init_timeout": Positive},
}
NEEDED = {"frames_per_batch", "num_envs"}  # of every collector

# What must not be more than what, and what would do: {0} stands for the first value, {1} for the second.
LIMITS = (
    ("total_frames", "anneal_frames", "use anneal_frames={0} or more"),
    (
        "exploration.eps_end",
        "exploration.eps_init",
        "epsilon only falls, use exploration.eps_end={1} or less",
    ),
    ("minibatches.size", "collector.frames_per_batch", "use {1} or fewer"),
    ("minibatches.size", "buffer.storage.max_size", "use {1} or fewer"),
    ("minibatches.warmup_frames", "buffer.storage.max_size", "use {1} or fewer, or keep more"),
    ("collector.frames_per_batch", "buffer.storage.max_size", "use buffer.storage.max_size={0} or more"),
)

# Actors that act in one kind of action space only.
ACTS_IN = {
    "hydrl.parts.actors.tanh_normal": "continuous",
    "hydrl.parts.actors.categorical": "discrete",
    "hydrl.parts.actors.q_value": "discrete",
    "hydrl.parts.actors.dueling": "discrete",
}

# Losses that torch.compile cannot build, and why.
NOT_COMPILED = {"torchrl.objectives.KLPENPPOLoss": "it changes its own beta as it runs"}

# What needs a package hydrl does not install by itself; the extra and the choice have the package's name.
EXTRAS = {"hydrl.run.loggers.tensorboard": "tensorboard"}


def check(values: Values) -> None:
    """Everything below, cheapest first.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for path, kinds in RANGES.items():
        if isinstance(find(values, path), Mapping):
            hold(path, kinds, values, NEEDED & kinds.keys(), open_ended=True)
    folder = Path(values["run_dir"])
    started = (folder / "summary.json").exists() or any(folder.glob("checkpoints/checkpoint-*"))
    if values["resume"] is None and started:  # a run never writes over another
        raise UserError(
            f"hydra.run.dir={folder} holds a run already; go on with it by resume={folder}, or choose another"
        )
    check_parts(values)
    check_sizes(values)
    check_signatures(values)


def check_parts(values: Values) -> None:
    """The parts are installed, can be compiled, and are ones the algorithm can learn with."""
    for path, node in targets(values):
        package = EXTRAS.get(node["_target_"])
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"{path}={package} needs the package {package}, which is not installed; "
                f"pip install -e '.[{package}]', or choose another {path}"
            )
    for group, fitting in values["fits"].items():
        names, able = names_of(group, values[group]), [each or "null" for each in fitting]
        if names and not set(names) & set(able):  # parts of one's own are taken at their word
            raise UserError(f"{group}={names[0]} does not fit algo={values['algo']}; {use(group, able)}")
    target = values["loss"]["module"]["_target_"]
    if values["compile"] and target in NOT_COMPILED:
        raise UserError(
            f"compile=true does not work with {target}: {NOT_COMPILED[target]}; use compile=false"
        )


def use(group: str, able: list[str]) -> str:
    """The choices that would do, for the end of a sentence."""
    return "use " + " or ".join(f"{group}={each}" for each in able)


def acts_in(kind: str, named: Iterable[str]) -> bool:
    """Whether an actor built from ``named`` can act in this kind of action space."""
    return all(ACTS_IN.get(each, kind) == kind for each in named)


def names_of(group: str, node: Part | None) -> list[str]:
    """The choices of a group that are built from what ``node`` is built from, likest first.

    Empty for a part of one's own.
    """
    if node is None:
        return ["null"]

    def likeness(name: str) -> int:
        file = OmegaConf.to_container(OmegaConf.load(CONFIGS / group / f"{name}.yaml"))
        return sum(find(file, key) == value for key, value in node.items())

    wanted = {each["_target_"] for _, each in targets(node)}
    names = [name for name in choices(CONFIGS / group) if named_targets(group, name) == wanted]
    return sorted(names, key=likeness, reverse=True)


def named_targets(group: str, name: str) -> set[str]:
    """The ``_target_`` names in a file of ``configs/``, or in those of its group that it builds on."""
    text = (CONFIGS / group / f"{name}.yaml").read_text()
    found = set(re.findall(r"^\s*_target_: (\S+)", text, re.MULTILINE))
    bases = re.findall(r"^  - (\w+)$", text.partition("_self_")[0], re.MULTILINE)
    return found or {each for base in bases for each in named_targets(group, base)}


def check_sizes(values: Values) -> None:
    """Numbers that must fit each other."""
    for small, large, advice in LIMITS:
        least, most = find(values, small), find(values, large)
        fresh = (
            large != "collector.frames_per_batch" or "epochs" in values["minibatches"]
        )  # else from all kept
        if fresh and None not in (least, most) and least > most:
            raise UserError(f"{small}={least} is more than {large}={most}; {advice.format(least, most)}")
    collector, module = values["collector"], values["loss"]["module"]
    frames, envs, workers = (
        collector["frames_per_batch"],
        collector["num_envs"],
        collector.get("num_workers", 1),
    )
    if over := frames % (envs * workers):
        of_workers = f" in each of collector.num_workers={workers}" if workers > 1 else ""
        better = " or ".join(str(each) for each in (frames - over, frames - over + envs * workers) if each)
        raise UserError(
            f"collector.frames_per_batch={frames} is not divisible by collector.num_envs={envs}{of_workers}; "
            f"use collector.frames_per_batch={better}"
        )
    if "num_workers" in collector and any(
        "VecNorm" in each["_target_"] for each in values["transforms"].values()
    ):
        raise UserError(
            "transforms=running_norm keeps its statistics in the workers; "
            "use collector=single or transforms=normalized"
        )
    if module.get("double_dqn") and not module.get("delay_value", True):
        raise UserError(
            "loss.module.double_dqn=true needs a target network; use loss.module.delay_value=true"
        )
