"""Configuration: checks what Hydra composed, before anything starts, and turns it into builders.

The only module that sees a ``DictConfig``. What a key may hold is said by the models below and by
:mod:`hydrl.config.checks`; every message names the key, the value and what would do.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from hydrl.config import CONFIGS, automatic
from hydrl.config.checks import check, use
from hydrl.config.mistakes import choices, content, explain, find, unresolved
from hydrl.config.moved import renamed
from hydrl.config.overrides import choices_made, key_of, words
from hydrl.config.signatures import Part
from hydrl.config.trust import check_trust
from hydrl.errors import UserError

Builder = Callable[..., Any]
# Of hydrl.parts.networks.actors, those that act in one kind of action space only.
ACTS_IN = {
    "tanh_normal": "continuous",
    "deterministic": "continuous",
    "categorical": "discrete",
    "q_value": "discrete",
    "distributional": "discrete",
}


def names_a_target(node: Part) -> Part:
    """A part says what it is built from."""
    if not isinstance(node.get("_target_"), str):
        raise PydanticCustomError(
            "part", "A part should have _target_, the dotted path of a class or function"
        )
    return node


Fitting = Literal[
    "transforms", "actor", "critic", "value", "exploration", "collector", "buffer", "minibatches",
    "loss", "target", "optim", "schedule", "logger",
]  # fmt: skip
Fits = dict[Fitting, list[str | None]]


def by_name(node: Any) -> Any:
    """Several parts by name, or one by itself, as files of older runs have their logger."""
    return {"logger": node} if isinstance(node, dict) and "_target_" in node else node


Built = Annotated[Part, AfterValidator(names_a_target)]


class Role(Enum):
    """What a key is for, where it shapes nothing that is learned from one batch to the next.

    A resumed run may change ``PROCESS``, ``RECORD`` and ``LENGTH``; any other key would make it another run.
    """

    PROCESS = "said for each process anew"
    RECORD = "what is written down, and how often"
    LENGTH = "how long a run goes, and how it is scored on the way"
    MACHINE = "what it runs on"


class Strict(BaseModel):
    """Unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Eval(Strict):
    """When and how long to evaluate; counts are frames, episodes and steps."""

    every_frames: PositiveInt
    episodes: PositiveInt
    final_episodes: PositiveInt
    max_steps: PositiveInt | Literal["auto"]
    solved_at: float | None
    stop_when_solved: bool
    video: bool = False  # these two are not in the files of older runs
    video_every_frames: PositiveInt = 50_000


class Loss(Strict):
    """A loss module, what it is built from and how its terms are trained; see :mod:`hydrl.parts.losses`."""

    module: Built
    networks: dict[str, Literal["actor", "critic", "value"]]
    keys: dict[str, str | list[str]]
    value_estimator: dict[str, Any] | None
    skip: list[str]
    every: dict[str, PositiveInt]
    param_groups: dict[str, dict[str, Any]]
    fits: Fits = {}  # not in the files of older runs
    compile_from: PositiveInt | None


class Settings(Strict):
    """The whole configuration, resolved: numbers as they are, parts as plain dictionaries."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    run_dir: Annotated[str, Role.PROCESS]
    resume: Annotated[str | None, Role.PROCESS]
    trust: Annotated[bool, Role.PROCESS]
    total_frames: Annotated[PositiveInt, Role.LENGTH]
    anneal_frames: Annotated[PositiveInt, Role.LENGTH]
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Role.MACHINE]
    torch_threads: Annotated[PositiveInt | Literal["auto"], Role.MACHINE]
    compile: Annotated[bool | Literal["auto"], Role.MACHINE]
    cudagraph: Annotated[bool, Role.MACHINE]
    init_stats_frames: Annotated[int, Field(gt=1)] | None
    max_grad_norm: PositiveFloat | None
    target_kl: PositiveFloat | None
    log_every_frames: Annotated[PositiveInt, Role.RECORD]
    checkpoint_every_frames: Annotated[PositiveInt, Role.RECORD]
    keep_checkpoints: Annotated[PositiveInt, Role.RECORD]
    eval: Annotated[Eval, Role.LENGTH]
    algo: str
    action_spaces: list[Literal["continuous", "discrete", "multi-agent continuous", "multi-agent discrete"]]
    fits: Fits
    task: str
    env: Built
    transforms: dict[str, Built]
    actor: Built
    critic: Built | None
    value: Built | None
    exploration: Built | None
    collector: Built
    buffer: Built | None
    minibatches: Built
    loss: Loss
    target: Built | None
    optim: Built
    schedule: Built | None
    logger: Annotated[dict[str, Built] | None, BeforeValidator(by_name), Role.RECORD]

    _shown: dict[str, Any] = PrivateAttr(default_factory=dict)
    _chosen: dict[str, str] = PrivateAttr(default_factory=dict)  # what stood at auto, and its line

    @classmethod
    def of(cls, values: Mapping[str, Any], shown: dict[str, Any]) -> Self:
        """The settings made of resolved ``values``; ``shown`` are the same as they are saved."""
        settings = cls.model_validate_json(json.dumps(values))
        settings._shown = shown
        return settings

    @property
    def shown(self) -> dict[str, Any]:
        """The settings as every file and logger has them: ``${oc.env:NAME}`` stays as written."""
        return self._shown or self.model_dump()

    def choose(self) -> None:
        """Puts in place of ``auto`` what it comes to here."""
        if self.compile == "auto":
            loss, memory = self.loss.module["_target_"].rpartition(".")[2], "memory" in self.actor
            found = automatic.compiling(loss, self.updates, self.loss.compile_from, memory=memory)
            self._put("compile", *found)
        if self.torch_threads == "auto":
            workers = "num_workers" in self.collector
            self._put("torch_threads", *automatic.threads(self.work, workers=workers))

    def keep(self, then: Mapping[str, Any]) -> None:
        """Puts in place of ``auto`` what it came to when a resumed run began, as ``then`` shows."""
        for key in self._chosen:
            self._put(key, then.get(key), "as the run began")

    def _put(self, key: str, value: Any, why: str) -> None:
        setattr(self, key, value)
        self._shown[key] = value
        self._chosen[key] = f"{key}=auto is {json.dumps(value)}: {why}" if why else ""

    @property
    def chosen(self) -> list[str]:
        """What ``auto`` came to and why, a line a key; one thread needs no line."""
        return [line for line in self._chosen.values() if line]

    @property
    def frames_per_batch(self) -> int:
        """Frames the collector hands over at once."""
        return self.collector["frames_per_batch"]

    @property
    def num_envs(self) -> int:
        """Environments stepped together in a process."""
        return self.collector["num_envs"]

    @property
    def batches(self) -> int:
        """Batches in the run; the last is whole, so ``total_frames`` is rounded up."""
        return -(-self.total_frames // self.frames_per_batch)

    @property
    def updates(self) -> int:
        """Updates in the run, where its minibatches say how many a batch they are."""
        numbers = self.minibatches
        cut = numbers.get("epochs", 1) * (self.frames_per_batch // numbers.get("size", self.frames_per_batch))
        return self.batches * numbers.get("updates", cut)

    @property
    def work(self) -> int:
        """Rows of a minibatch times the products of neighbouring hidden widths, of all networks."""
        nets = [part.get("num_cells", []) for part in (self.actor, self.critic, self.value) if part]
        return self.minibatches.get("size", 0) * sum(a * b for net in nets for a, b in pairwise(net))

    @property
    def anneal_batches(self) -> int:
        """Batches over which the learning rate falls."""
        return -(-self.anneal_frames // self.frames_per_batch)

    def build(self, part: str) -> Builder:
        """The builder of a part, its configured arguments filled in; a part set to none builds ``None``."""
        node = self.loss.module if part == "loss" else getattr(self, part)
        if node is None:
            return nothing
        make = builder(node)
        return partial(network, part, make) if part in ("actor", "critic", "value") else make

    @property
    def logger_builders(self) -> dict[str, Builder]:
        """The builders of the chosen loggers by their names."""
        return {name: builder(node) for name, node in (self.logger or {}).items()}

    @property
    def transform_builders(self) -> list[Builder]:
        """The transforms' builders in the order they apply; a share of the run is told what it is of."""
        over = {"over": self.anneal_frames}
        return [builder(over | node if "settle" in node else node) for node in self.transforms.values()]


def keys(*roles: Role) -> frozenset[str]:
    """The top-level keys that have one of ``roles``."""
    return frozenset(
        name for name, field in Settings.model_fields.items() if set(field.metadata) & set(roles)
    )


def nullable(key: str) -> bool:
    """Whether a dotted key of the settings may be null."""
    kind: Any = Settings
    for name in key.split("."):
        field = getattr(kind, "model_fields", {}).get(name)
        kind = field and field.annotation
    return type(None) in get_args(kind)


def nothing(*_: Any, **__: Any) -> None:
    """Builds a part that is set to none."""


def network(part: str, make: Builder, *handed: Any) -> Any:
    """What makes an actor, a critic or a value network, held to what all else asks of them.

    Raises:
        UserError: if it lacks that.
    """
    made = make(*handed)
    if not hasattr(made, "in_keys"):
        raise UserError(f"{part} is a {type(made).__name__}; wrap it in a TensorDictModule")
    if part == "actor" and (lacking := set(handed[0].action_keys) - set(made.out_keys)):
        raise UserError(f"actor writes {made.out_keys}, but not {', '.join(map(str, lacking))}, the action")
    return made


def builder(node: Part) -> Builder:
    """A partial of the node's target; the nodes nested in it are built here.

    Hydra's own partial checks its target against a list at every call, which takes 0.2-0.5 ms; here it is
    checked once, and calling the plain partial costs nothing.
    """
    try:
        made = instantiate(node, _partial_=True, _convert_="all")
    except InstantiationException as error:
        reason = str(error.__cause__ or error).split("full_key")[0]
        raise UserError(f"_target_={node['_target_']} cannot be built: {' '.join(reason.split())}") from error
    return partial(made.func, *made.args, **{key: nested(key, value) for key, value in made.keywords.items()})


def nested(key: str, value: Any) -> Any:
    """``in_keys`` and the like as TorchRL reads them: a nested entry is a list in YAML and a tuple here."""
    if key.endswith("_keys") and isinstance(value, list):
        return [tuple(each) if isinstance(each, list) else each for each in value]
    return value


def load(cfg: DictConfig) -> Settings:
    """Resolves and checks a composed configuration; for a run.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    try:
        return checked(cfg)
    except UserError as error:
        chosen = choices_made()
        algo, slash, _ = (chosen.get("tuned") or "").partition("/")
        if slash and algo != chosen["algo"]:
            told = f"tuned={chosen['tuned']} is for algo={algo}, not algo={chosen['algo']}"
            raise UserError(f"{told}: {error}") from None
        raise


def checked(cfg: DictConfig) -> Settings:
    """See :func:`load`."""
    values: dict[str, Any] = {}
    try:
        values = whole(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        settings = Settings.of(values, as_written(cfg))
    except OmegaConfBaseException as error:
        raise UserError(unresolved(error)) from None
    except ValidationError as error:
        raise UserError(explain(error, values, nullable=nullable)) from None
    if settings.resume not in (None, "auto") and not settings.trust:
        check_stranger(settings, typed_now())
    check(values)
    settings.choose()
    for name, make in zip(settings.transforms, settings.transform_builders, strict=True):
        try:
            make()
        except Exception as error:
            raise UserError(f"transforms.{name} cannot be built: {' '.join(str(error).split())}") from error
    return settings


def check_stranger(settings: Settings, typed: Sequence[str] = ()) -> None:
    """Refuses to go on with a run that could do more than train, but for what was ``typed`` now.

    Raises:
        UserError: naming what ``trust=true`` would allow.
    """
    values, told = settings.model_dump(), f"resume={settings.resume}"
    check_trust(values, told, typed)
    if "${oc.env:" in str(settings.shown["logger"]):  # which sends it away
        raise UserError(
            f"{told}: its logger is given values of the environment; add trust=true if you trust it"
        )
    scratch = find(values, "buffer.storage.scratch_dir")
    if scratch and Path(settings.run_dir).resolve() not in Path(scratch).resolve().parents:
        raise UserError(
            f"{told}: buffer.storage.scratch_dir={scratch} is outside the run; add trust=true to write there"
        )


def typed_now() -> list[str]:
    """What the user typed beside ``resume=DIR``: it stands after it, and the run's own words before."""
    said = [key_of(word) for word in words()]
    return words()[said.index("resume") :] if "resume" in said else []


def as_written(cfg: DictConfig) -> dict[str, Any]:
    """The configuration with everything resolved but what refers to ``${oc.env:NAME}``, which stays so."""

    def escape(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: escape(value) for key, value in node.items()}
        if isinstance(node, list):
            return [escape(value) for value in node]
        return node.replace("${", "\\${") if isinstance(node, str) and "${oc.env:" in node else node

    copy = OmegaConf.create(escape(OmegaConf.to_container(cfg)))
    OmegaConf.copy_cache(cfg, copy)
    return whole(OmegaConf.to_container(copy, resolve=True, throw_on_missing=True))


def whole(values: Any) -> dict[str, Any]:
    """What was composed, with parts named as they are now; one of which nothing is left is none."""
    return {key: None if each == {} and nullable(key) else each for key, each in renamed(values).items()}


def check_action_space(settings: Settings, kind: str) -> None:
    """Refuses an action space the algorithm or its actor cannot act in, naming those that can.

    Args:
        settings: the run's.
        kind: what :func:`hydrl.parts.environments.action_kind` says of the environment.
    """
    has = f"env={settings.task} has {kind} actions"
    if kind not in settings.action_spaces:
        able = [name for name, kinds in algorithms().items() if kind in kinds]
        advice = use("algo", able) if able else "no algorithm here can"
        spaces = " and ".join(settings.action_spaces)
        raise UserError(f"algo={settings.algo} acts in {spaces} action spaces and {has}; {advice}")
    actor = settings.actor["_target_"].removeprefix("hydrl.parts.networks.actors.")
    if (only := ACTS_IN.get(actor, kind)) != kind:
        raise UserError(f"actor={actor} acts in {only} action spaces and {has}; use actor=stochastic")


def algorithms() -> dict[str, list[str]]:
    """Each algorithm in ``configs/algo`` with the action spaces it declares."""
    return {name: [*content(f"/algo/{name}")["action_spaces"]] for name in choices(CONFIGS / "algo")}
