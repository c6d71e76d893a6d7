"""Configuration: checks what Hydra composed, before anything starts, and turns it into builders.

The only module that sees a ``DictConfig``. Types come from the signatures of what is built, ranges from
the models below, and every message names the key, the value and what would do.
"""

import difflib
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from hydrl.errors import UserError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Builder = Callable[..., Any]
Part = dict[str, Any]
Fraction = Annotated[float, Field(ge=0, le=1)]
Width = Annotated[int, Field(gt=0)]

# Ranges of what TorchRL and PyTorch would accept in silence, or refuse late.
RANGES: dict[str, Any] = {
    "optim.lr": PositiveFloat,
    "optim.eps": PositiveFloat,
    "optim.weight_decay": Annotated[float, Field(ge=0)],
    "schedule.eta_min": Annotated[float, Field(ge=0)],
    "schedule.power": PositiveFloat,
    "loss.value_estimator.gamma": Fraction,
    "loss.value_estimator.lmbda": Fraction,
    "loss.value_estimator.average_gae": bool,
    "loss.module.clip_epsilon": PositiveFloat,
    "loss.module.loss_critic_type": Literal["l1", "l2", "smooth_l1"],
    "loss.module.loss_function": Literal["l1", "l2", "smooth_l1"],
    "loss.module.functional": bool,
    "loss.module.log_explained_variance": bool,
    "exploration.eps_init": Fraction,
    "exploration.eps_end": Fraction,
    "exploration.annealing_num_steps": PositiveInt,
    "target.tau": Fraction,
    "target.value_network_update_interval": PositiveInt,
    "actor.num_cells": list[Width],
    "critic.num_cells": list[Width],
    "collector.frames_per_batch": PositiveInt,
    "collector.num_envs": PositiveInt,
    "collector.num_workers": PositiveInt,
    "collector.init_random_frames": Annotated[int, Field(ge=0)],
    "buffer.storage.max_size": PositiveInt,
    "minibatches.epochs": PositiveInt,
    "minibatches.size": PositiveInt,
    "minibatches.updates": PositiveInt,
    "minibatches.warmup_frames": Annotated[int, Field(ge=0)],
    "minibatches.advantage": Literal["once", "each_epoch"],
    "actor.scale": Literal["per_state", "independent"],
    "logger.mode": Literal["auto", "online", "offline"],
    "logger.init_timeout": PositiveFloat,
}


class Strict(BaseModel):
    """Unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Eval(Strict):
    """When and how long to evaluate; counts are frames, episodes and steps."""

    every_frames: PositiveInt
    episodes: PositiveInt
    final_episodes: PositiveInt
    max_steps: PositiveInt
    solved_at: float | None
    stop_when_solved: bool


class Loss(Strict):
    """A loss module and the keywords of its ``make_value_estimator``."""

    module: Part
    value_estimator: dict[str, Any]


class Settings(Strict):
    """The whole configuration, resolved: numbers as they are, parts as plain dictionaries."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    run_dir: str
    total_frames: PositiveInt
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
    torch_threads: PositiveInt | Literal["auto"]
    init_stats_frames: Annotated[int, Field(gt=1)]
    max_grad_norm: PositiveFloat | None
    log_every_frames: PositiveInt
    checkpoint_every_frames: PositiveInt
    eval: Eval
    algo: str
    action_spaces: list[Literal["continuous", "discrete"]]
    task: str
    env: Part
    transforms: dict[str, Part]
    actor: Part
    critic: Part | None
    exploration: Part | None
    collector: Part
    buffer: Part
    minibatches: Part
    loss: Loss
    target: Part | None
    optim: Part
    schedule: Part | None
    logger: Part | None

    @property
    def frames_per_batch(self) -> int:
        """Frames the collector hands over at once."""
        return self.collector["frames_per_batch"]

    @property
    def batches(self) -> int:
        """Batches in the run; the last is whole, so ``total_frames`` is rounded up."""
        return -(-self.total_frames // self.frames_per_batch)

    def build(self, part: str) -> Builder | None:
        """The builder of a part, its configured arguments filled in; ``None`` for a part set to none."""
        node = self.loss.module if part == "loss" else getattr(self, part)
        return None if node is None else builder(node)

    @property
    def transform_builders(self) -> list[Builder]:
        """The transforms' builders in the order they apply."""
        return [builder(node) for node in self.transforms.values()]


def builder(node: Part) -> Builder:
    """A partial of the node's target; nodes nested in it are built when Hydra reads them."""
    return instantiate(node, _partial_=True, _convert_="all")


def load(cfg: DictConfig) -> Settings:
    """Resolves and checks a composed configuration.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    values = resolve(cfg)
    try:
        settings = Settings.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(explain(error, values)) from None
    for path, node in targets(values):
        check_target(path, node)
    for path, kind in RANGES.items():
        check_value(path, kind, values)
    check_sizes(settings)
    return settings


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """Plain containers with every interpolation filled in."""
    try:
        return typing.cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except (MissingMandatoryValue, InterpolationResolutionError) as error:
        if "???" in str(error) or isinstance(error, MissingMandatoryValue):
            key = str(error).split("Missing mandatory value: ")[-1].split()[0] if error.full_key is None else error.full_key
            missing = next((path for path in missing_keys(cfg)), key)
            raise UserError(f"{missing} has no value; give one, as {missing}=VALUE") from None
        raise UserError(" ".join(str(error).split())) from None
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from None


def missing_keys(cfg: DictConfig) -> Iterator[str]:
    """Paths whose value is ``???``."""
    yield from sorted(OmegaConf.missing_keys(cfg))


def explain(error: ValidationError, values: Mapping[str, Any]) -> str:
    """The first complaint of pydantic's, as one line in the user's terms."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-"))]
    key = ".".join(parts)
    value: Any = values
    known: list[str] = []
    for part in parts:
        if not isinstance(value, Mapping) or part not in value:
            break
        known, value = [*known, part], value[part]
    if first["type"] == "extra_forbidden":
        parent = Settings if len(parts) == 1 else {"eval": Eval, "loss": Loss}.get(parts[0], Settings)
        return unknown_key(key, value, list(parent.model_fields))
    if first["type"] == "missing":
        return f"{key} is missing; it is set in configs/ and must stay"
    return f"{'.'.join(known)}={show(value)}: {first['msg'].replace('Input s', 's')}"


def unknown_key(key: str, value: Any, accepted: list[str]) -> str:
    """Names the wrong key and the nearest right ones."""
    name = key.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(name, accepted, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of: {', '.join(sorted(accepted))}"
    return f"{key}={show(value)}: there is no key {name}; {hint}"


def show(value: Any) -> str:
    """A value as one would type it."""
    return json.dumps(value).replace('"', "") if not isinstance(value, float) else repr(value)


def targets(values: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Every node that names a ``_target_``, with its dotted path."""
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield path, dict(values)
        for key, value in values.items():
            yield from targets(value, f"{path}.{key}" if path else str(key))


def check_target(path: str, node: Part) -> None:
    """The target can be imported, takes every key, and the values fit its annotations."""
    name = node["_target_"]
    try:
        target = get_object(name)
    except Exception as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(f"{path}._target_={name} cannot be imported: {reason}") from None
    parameters, open_ended = accepted_parameters(target)
    for key, value in node.items():
        if key.startswith("_"):
            continue
        if key not in parameters:
            if open_ended:
                continue
            raise UserError(unknown_key(f"{path}.{key}", value, [each for each in parameters if each != "self"]))
        check_type(f"{path}.{key}", parameters[key], value)


def accepted_parameters(target: Any) -> tuple[dict[str, Any], bool]:
    """Parameter names with their annotations, and whether any other keyword is passed on.

    TorchRL's classes hand keywords up to their bases, so those count too and nothing else does.
    """
    library = getattr(target, "__module__", "").partition(".")[0] in ("torchrl", "torch")
    chain = [each.__init__ for each in target.__mro__[:-1]] if inspect.isclass(target) else [target]
    parameters: dict[str, Any] = {}
    open_ended = False
    for function in chain:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception:  # annotations that exist only for type checkers
            hints = {}
        for key, parameter in signature.parameters.items():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                parameters.setdefault(key, hints.get(key, Any))
        open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        if not open_ended:
            break
    return parameters, open_ended and not library


def check_type(path: str, annotation: Any, value: Any) -> None:
    """Holds a value to an annotation, as JSON is held to a schema: an integer may stand for a float."""
    if isinstance(value, Mapping):  # a nested part, checked by its own signature
        return
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True))
    except Exception:  # tensors, specs and the like: not for YAML to give
        return
    try:
        adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        messages = dict.fromkeys(each["msg"].replace("Input s", "s") for each in error.errors())
        raise UserError(f"{path}={show(value)}: {' or '.join(messages)}") from None


def check_value(path: str, kind: Any, values: Mapping[str, Any]) -> None:
    """Holds the value at ``path``, if there is one, to the range in :data:`RANGES`."""
    value: Any = values
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return
        value = value[part]
    check_type(path, kind, value)


def check_sizes(settings: Settings) -> None:
    """Counts that must fit each other."""
    collector, minibatches = settings.collector, settings.minibatches
    frames, envs, workers = settings.frames_per_batch, collector["num_envs"], collector.get("num_workers", 1)
    if frames % (envs * workers):
        down, up = frames - frames % (envs * workers), frames + -frames % (envs * workers)
        of_workers = f" in each of {workers} workers" if workers > 1 else ""
        better = " or ".join(str(each) for each in (down, up) if each)
        raise UserError(
            f"collector.frames_per_batch={frames} is not divisible by collector.num_envs={envs}{of_workers}; "
            f"use collector.frames_per_batch={better}"
        )
    capacity = settings.buffer.get("storage", {}).get("max_size", frames)
    limit, name = (frames, "collector.frames_per_batch") if "epochs" in minibatches else (capacity, "buffer.storage.max_size")
    if minibatches["size"] > limit:
        raise UserError(f"minibatches.size={minibatches['size']} is more than {name}={limit}; use {limit} or fewer")
    if "epochs" in minibatches and capacity < frames:
        raise UserError(
            f"buffer.storage.max_size={capacity} cannot hold a batch; use collector.frames_per_batch={frames} or more"
        )
    if minibatches.get("warmup_frames", 0) > capacity:
        raise UserError(
            f"minibatches.warmup_frames={minibatches['warmup_frames']} is more than the buffer ever holds; "
            f"use {capacity} or fewer, or a larger buffer.storage.max_size"
        )
    exploration = settings.exploration or {}
    if exploration.get("eps_end", 0.0) > exploration.get("eps_init", 1.0):
        raise UserError(
            f"exploration.eps_end={exploration['eps_end']} is above exploration.eps_init={exploration['eps_init']}; "
            "epsilon can only fall"
        )
    module = settings.loss.module
    if module.get("double_dqn") and not module.get("delay_value", True):
        raise UserError("loss.module.double_dqn=true needs a target network; use loss.module.delay_value=true")
    if workers > 1 and any(node["_target_"].endswith("VecNormV2") for node in settings.transforms.values()):
        raise UserError(
            "transforms=running_norm keeps its statistics in each worker; use collector=single or transforms=normalized"
        )


def check_action_space(settings: Settings, kind: str) -> None:
    """Refuses an action space the algorithm cannot act in, naming the algorithms that can.

    Args:
        settings: the run's.
        kind: what :func:`hydrl.envs.action_kind` says of the environment.
    """
    if kind not in settings.action_spaces:
        able = [name for name, kinds in algorithms().items() if kind in kinds]
        hint = f"use algo={' or algo='.join(able)}" if able else "no algorithm here can"
        raise UserError(
            f"algo={settings.algo} acts in {' and '.join(settings.action_spaces)} action spaces and "
            f"env={settings.task} has {kind} actions; {hint}"
        )


def algorithms() -> dict[str, list[str]]:
    """Each algorithm in ``configs/algo`` with the action spaces it declares."""
    files = sorted((CONFIGS / "algo").glob("*.yaml"))
    return {file.stem: list(OmegaConf.load(file).action_spaces) for file in files}


