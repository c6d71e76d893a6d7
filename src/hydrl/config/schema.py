"""Schema of a run: types of its keys, and the arguments that the run gives its components.

The networks are those of ``configs/networks.yaml``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    create_model,
)
from pydantic_core import PydanticCustomError

from hydrl.config.tree import find, read_option
from hydrl.limits import ClusterAddress

Node = dict[str, Any]
Values = Mapping[str, Any]

MODULE = "tensordict.nn.TensorDictModuleBase"
# What rules read of a component in its YAML; no argument of what it builds.
RULES = ("compatible_with", "requires", "limits")
NETWORKS: list[str] = read_option("/networks")["networks"]


def require_target(node: Node) -> Node:
    """Requires ``_target_`` of a component."""
    if not isinstance(node.get("_target_"), str):
        raise PydanticCustomError(
            "part", "A component should have _target_, the dotted path of a class or function"
        )
    return node


def name_logger(node: Any) -> Any:
    """Loggers by name; older runs have a single one."""
    return {"logger": node} if isinstance(node, dict) and "_target_" in node else node


Component = Annotated[Node, AfterValidator(require_target)]


class KeyScope(Enum):
    """What a key affects, besides what is learned from one batch to the next.

    A resumed run may change ``PROCESS``, ``RECORD`` and ``LENGTH``, and the path of its dataset; any other
    key would make it another run.
    """

    PROCESS = "set anew for each process"
    RECORD = "logging and saving"
    LENGTH = "length of the run and its evaluations"
    MACHINE = "the machine"
    LEARNING = "hyperparameters, which a fork may change"


@dataclass(frozen=True)
class CallSpec:
    """How the run calls a component.

    Attributes:
        positional: names of positional arguments.
        keywords: keyword arguments.
        optional: keyword arguments for components that accept them.
        gives: class of the result; ``None`` if it is not checked.
    """

    positional: str = ""
    keywords: frozenset[str] = field(default_factory=frozenset)
    optional: frozenset[str] = field(default_factory=frozenset)
    gives: str | None = None


class Strict(BaseModel):
    """Unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Eval(Strict):
    """When and how long to evaluate; counts are frames, episodes and steps."""

    every_frames: PositiveInt
    episodes: PositiveInt
    final_episodes: PositiveInt
    max_steps: PositiveInt | Literal["auto"]
    reward_threshold: float | None
    stop_when_solved: bool
    target_return: float | None = None  # these are not in the files of older runs
    backend: Literal["auto", "inline", "process", "ray"] = "inline"
    address: ClusterAddress | None = None
    video: bool = False
    video_every_frames: PositiveInt = 50_000
    nash: bool = False

    @property
    def counts(self) -> tuple[int, int, int]:
        """Frames between evaluations, their episodes, and those of the final evaluation."""
        return self.every_frames, self.episodes, self.final_episodes

    @property
    def frames_between_videos(self) -> int | None:
        """``video_every_frames``, or ``None`` without videos."""
        return self.video_every_frames if self.video else None


ENCODER = CallSpec("env in_keys", gives=MODULE)
RNN = CallSpec("in_keys size", optional=frozenset({"state"}), gives=MODULE)
MODEL = CallSpec("codec positions", gives="torch.nn.Module")  # of language
PLANNER = CallSpec("env", gives=MODULE)

# What may lie within a network, and the arguments that it gets.
WITHIN = {
    "encoder": ENCODER,
    "rnn": RNN,
    "model": MODEL,
    "norm": CallSpec("features"),
    "hidden_layers": CallSpec("num_cells activation size actions outputs", gives="torch.nn.Module"),
    "world_model": CallSpec("env", gives=MODULE),
    "planner": PLANNER,
}

# What may stand around a Gymnasium task, and the arguments that it gets.
WRAPPER = CallSpec("env", gives="gymnasium.Wrapper")
WRAPPERS = re.compile(r"env\.wrappers\.[^.]+")

# Keys of components that the run itself reads; a user's component may have none of them.
QUANTITIES = {
    "rnn": "actor.rnn",
    "workers": "collector.num_workers collector.num_collectors",
    "frames": "collector.frames_per_batch",
    "envs": "collector.num_envs",
    "size": "minibatches.size",
    "epochs": "minibatches.epochs",
    "updates": "minibatches.updates",
    "sequence": "minibatches.sequence",
    "warmup": "minibatches.warmup_frames",
    "burn_in": "minibatches.burn_in",
}


def quantity(values: Values, what: str) -> Any:
    """The value of a quantity such as ``frames``, under any of its keys; ``None`` without one."""
    candidates = (find(values, key) for key in QUANTITIES[what].split())
    return next((candidate for candidate in candidates if candidate is not None), None)


def has_workers(values: Values) -> bool:
    """Whether other processes collect."""
    return quantity(values, "workers") is not None or find(values, "collector.worker_timeout") is not None


def call_spec(path: str) -> CallSpec:
    """How the run calls the component at a dotted path; without arguments if only others read it."""
    path = re.sub(r"^extra_learners\.\w+\.", "", path)
    head, _, below = path.partition(".")
    if WRAPPERS.fullmatch(path):
        return WRAPPER
    if path == "writes":
        return CallSpec("networks")
    if path == "env.make":
        return CallSpec("id", gives="gymnasium.Env")
    if head in NETWORKS and below:
        return WITHIN.get(below, CallSpec())
    if head in ("transforms", "logger") and "." not in below:
        return CALL_SPECS[head]
    return (
        CallSpec(gives="torchrl.objectives.LossModule")
        if path == "loss.module"
        else CALL_SPECS.get(path, CallSpec())
    )


def one_of(names: Callable[[], Sequence[str]], noun: str = "", also: str = "") -> AfterValidator:
    """Validator of a name: one of ``names()``, which a message lists after ``noun``, or ``also``."""

    def check(name: str) -> str:
        if name not in (known := names()) and name != also:
            raise PydanticCustomError("name", f"Input should be one of {noun}{', '.join(known)}")
        return name

    return AfterValidator(check)


Group = Annotated[str, one_of(lambda: [*CALL_SPECS, "loss"], "the groups ", also="because")]
Network = Annotated[str, one_of(lambda: NETWORKS, "the networks ")]
InitPart = Annotated[str, one_of(lambda: [*NETWORKS, "targets", "normaliser"])]
Alone = Literal["continuous", "discrete", "multi-discrete", "text"]
Actions = Alone | Literal["multi-agent continuous", "multi-agent discrete", "multi-agent multi-discrete"]

# Options by group, or values by dotted key, a list or `>= N`; and `because`, the reason of all or by key.
Reasons = dict[str, str]
CompatibleWith = dict[Group, list[str | None] | str | Reasons]
Requires = dict[str, list[Any] | str | Reasons]


class Loss(Strict):
    """A loss module, what it is built from and how its terms are trained; see :mod:`hydrl.losses.build`."""

    module: Component
    networks: dict[str, Network]
    keys: dict[str, str | list[str]] = {}
    value_estimator: dict[str, Any] | None = None
    skip: list[str] = []
    every: dict[str, PositiveInt] = {}
    param_groups: dict[str, dict[str, Any]] = {}
    unit_norm: list[str] = ["*unit_weight"]
    compatible_with: CompatibleWith = {}
    requires: Requires = {}
    compile_min_updates: PositiveInt | None = None


class ExtraLearner(Strict):
    """A loss that learns from each batch before the run's own, by its own optimizer and minibatches."""

    loss: Loss
    optim: Component
    minibatches: Component | None = None  # null: those of the run's own loss
    target: Component | None = None
    writes: Annotated[Component | None, CallSpec("networks")] = (
        None  # called with the batch that was learned from
    )


class InitFrom(Strict):
    """What a new run begins with of what another has learned; see :mod:`hydrl.run.checkpoint.warm_start`."""

    run: str | None = None
    checkpoint: Literal["best", "last"] | Annotated[int, Field(ge=0)] = "best"
    parts: Annotated[list[InitPart], Field(min_length=1)] | None = None


class Keys(Strict):
    """Keys that are no components."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    run_dir: Annotated[str, KeyScope.PROCESS]
    resume: Annotated[str | None, KeyScope.PROCESS]
    trust: Annotated[bool, KeyScope.PROCESS]
    init_from: InitFrom = InitFrom()  # not in the files of older runs
    total_frames: Annotated[PositiveInt, KeyScope.LENGTH]
    anneal_frames: Annotated[PositiveInt, KeyScope.LENGTH]
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), KeyScope.MACHINE]
    torch_threads: Annotated[PositiveInt | Literal["auto"], KeyScope.MACHINE]
    compile: Annotated[bool | Literal["auto"], KeyScope.MACHINE]
    cudagraph: Annotated[bool, KeyScope.MACHINE]
    precision: Annotated[Literal["float32", "bf16"], KeyScope.LEARNING] = "float32"  # as of older runs
    pipelined_min_updates: Annotated[PositiveInt | None, KeyScope.MACHINE] = None
    init_stats_frames: Annotated[int, Field(gt=1)] | None
    max_grad_norm: Annotated[PositiveFloat | None, KeyScope.LEARNING]
    target_kl: Annotated[PositiveFloat | None, KeyScope.LEARNING]
    log_every_frames: Annotated[PositiveInt, KeyScope.RECORD]
    checkpoint_every_frames: Annotated[PositiveInt, KeyScope.RECORD]
    keep_checkpoints: Annotated[PositiveInt, KeyScope.RECORD]
    eval: Annotated[Eval, KeyScope.LENGTH]
    algo: str
    action_spaces: list[Actions]
    compatible_with: CompatibleWith
    extra_learners: dict[Annotated[str, Field(pattern=r"^[a-z_]+$")], ExtraLearner] = {}
    task: str
    loss: Annotated[Loss, KeyScope.LEARNING]


if TYPE_CHECKING:
    Networks = Keys
else:  # those that not every algorithm has; saved runs may be older than one of them
    SPEC = CallSpec("env actor", gives=MODULE)
    OPTIONAL = {name: (Annotated[Component | None, SPEC], None) for name in NETWORKS if name != "actor"}
    Networks = create_model("Networks", __base__=Keys, **OPTIONAL)


class RunConfig(Networks):
    """The whole resolved configuration; a field for each component."""

    env: Annotated[
        Component, CallSpec("", frozenset({"device"}), frozenset({"num_envs"}), "torchrl.envs.EnvBase")
    ]
    transforms: Annotated[
        dict[str, Component], CallSpec(optional=frozenset({"env"}), gives="torchrl.envs.Transform")
    ]
    encoder: Annotated[Component | None, ENCODER] = None  # these lie within networks, which name them
    rnn: Annotated[Component | None, RNN] = None
    model: Annotated[Component | None, MODEL] = None
    planner: Annotated[Component | None, PLANNER] = None
    actor: Annotated[Component, CallSpec("env", gives=MODULE)]
    exploration: Annotated[
        Component | None,
        KeyScope.LEARNING,
        CallSpec("action_spec", optional=frozenset({"action_mask_key", "action_key"}), gives=MODULE),
    ]
    collector: Annotated[
        Component, CallSpec("env make_env policy", frozenset({"seed", "device", "stop"}), frozenset({"data"}))
    ]
    buffer: Annotated[Component | None, CallSpec(gives="torchrl.data.ReplayBuffer")]
    data: Annotated[
        Component | None,
        CallSpec("env actor", optional=frozenset({"make_env"}), gives="torchrl.data.ReplayBuffer"),
    ] = None
    minibatches: Annotated[
        Component, KeyScope.LEARNING, CallSpec("buffer loss", optional=frozenset({"data"}))
    ]
    target: Annotated[
        Component | None, KeyScope.LEARNING, CallSpec("loss", gives="torchrl.objectives.TargetNetUpdater")
    ]
    optim: Annotated[Component, KeyScope.LEARNING, CallSpec("parameters", gives="torch.optim.Optimizer")]
    schedule: Annotated[Component | None, KeyScope.LEARNING, CallSpec("optimizer batches")]
    logger: Annotated[
        dict[str, Component] | None,
        BeforeValidator(name_logger),
        KeyScope.RECORD,
        CallSpec("", frozenset({"directory", "config", "name", "run_id"})),
    ]


CALL_SPECS = {
    name: row
    for name, info in RunConfig.model_fields.items()
    for row in info.metadata
    if isinstance(row, CallSpec)
}


def keys_with_scope(*roles: KeyScope) -> frozenset[str]:
    """The top-level keys that have one of ``roles``."""
    return frozenset(
        name for name, info in RunConfig.model_fields.items() if any(role in roles for role in info.metadata)
    )


def is_nullable(key: str) -> bool:
    """Whether a dotted key of the settings may be null."""
    kind: Any = RunConfig
    for name in key.split("."):
        info = getattr(kind, "model_fields", {}).get(name)
        kind = info and info.annotation
    return type(None) in get_args(kind)
