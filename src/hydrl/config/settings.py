"""Configuration: checks what Hydra composed, before anything starts, and turns it into builders.

The only module that reads a ``DictConfig``. Values are checked by the models of :mod:`hydrl.config.schema`
and by :mod:`hydrl.config.checks`; every message names the key, the value and what to write instead.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    PrivateAttr,
    ValidationError,
)

from hydrl.config import CONFIGS, auto_values
from hydrl.config.checks import check
from hydrl.config.describe import advise_options, give_reason, matching_options, name_component, name_env
from hydrl.config.hydra_errors import find_all_mistakes
from hydrl.config.migrations import new_config
from hydrl.config.overrides import chosen_options, key_of, typed_words
from hydrl.config.ranges import take_limits
from hydrl.config.schema import (
    NETWORKS,
    QUANTITIES,
    RULES,
    Loss,
    Node,
    RunConfig,
    has_workers,
    is_nullable,
    quantity,
)
from hydrl.config.signatures import targets
from hydrl.config.suggestions import explain, explain_unresolved, join_or
from hydrl.config.tree import find, option_names, option_target, read_option, show
from hydrl.config.trust import check_addresses, check_trust
from hydrl.config.user_dirs import option_folders, searchpath
from hydrl.errors import ConfigError, UserError

Builder = Callable[..., Any]
ENVIRONMENT = "${oc.env:"  # a reference to an environment variable
VMAS = "torchrl.envs.VmasEnv"  # its actions are continuous by default


class Settings(RunConfig):
    """The keys of a run with what follows from them, and the builders of its components."""

    _shown: dict[str, Any] = PrivateAttr(default_factory=dict)
    _chosen: dict[str, str] = PrivateAttr(default_factory=dict)  # what stood at auto, and its line

    @classmethod
    def of(cls, values: Mapping[str, Any], shown: dict[str, Any]) -> Self:
        """Settings of resolved ``values``; ``shown`` are the same as they are saved."""
        settings = cls.model_validate_json(json.dumps(values))
        settings._shown = shown
        return settings

    @property
    def shown(self) -> dict[str, Any]:
        """The settings as every file and logger has them: ``${oc.env:NAME}`` stays as written."""
        return self._shown or self.model_dump()

    def resolve_auto(self) -> None:
        """Replaces ``auto`` by its value on this machine."""
        if self.compile == "auto":
            loss, rnn = self.loss.module["_target_"].rpartition(".")[2], quantity(vars(self), "rnn")
            chosen = auto_values.choose_compile(
                loss, self.updates, self.loss.compile_min_updates, recurrent=bool(rnn)
            )
            self._put("compile", *(chosen if self.updates else (False, "")))
        if self.torch_threads == "auto":
            workers = has_workers(vars(self))
            self._put("torch_threads", *auto_values.choose_threads(self.work, workers=workers))
        if self.collector.get("pipelined") == "auto":
            choice = auto_values.choose_pipelined(
                int(self.torch_threads), self.updates, self.pipelined_min_updates
            )
            self._put("collector.pipelined", *choice)
        if self.eval.backend == "auto":
            in_process = [option_target(f"collector/{name}") for name in ("single", "dataset")]
            is_single = self.collector["_target_"] in in_process and quantity(vars(self), "workers") is None
            is_single |= self.collector.get("pipelined") is False
            busy = int(self.torch_threads) + (0 if is_single else quantity(vars(self), "workers") or 1)
            backend = auto_values.choose_eval_backend(
                busy, self.device, self.total_frames, self.eval.every_frames
            )
            self._put("eval.backend", *backend)

    def keep_auto_values(self, then: Mapping[str, Any]) -> None:
        """Replaces ``auto`` by its value when a resumed run began, from its settings ``then``.

        Images are scaled as they were, unless ``encoder.scale`` is set now.
        """
        for key in self._chosen:
            value = find(then, key)
            if key == "eval.backend" and value is None:  # as of runs before there was a choice
                value = "inline"
            self._put(key, value, "the run was started with it")
        if any(key_of(word).endswith("encoder.scale") for word in typed_words()):
            return
        encoders = [
            target for target in targets(then) if target[1]["_target_"] == option_target("encoder/auto")
        ]
        for path, node in encoders:
            for values in (vars(self), self._shown):
                if isinstance(encoder := find(values, path), dict):
                    encoder["scale"] = node["scale"]

    def needs_trust(self) -> bool:
        """Whether the run is resumed only with ``trust=true``."""
        try:
            check_resumed(self)
        except UserError:
            return True
        return False

    def _put(self, key: str, value: Any, why: str) -> None:
        group, _, name = key.rpartition(".")
        node = getattr(self, group) if group else self
        node.update({name: value}) if isinstance(node, dict) else setattr(node, name, value)
        (self._shown[group] if group else self._shown)[name] = value
        typed, shown = key, show(value)
        if key == "collector.pipelined":
            typed, shown = "collector", "pipelined" if value else "single"
        self._chosen[key] = f"{typed}=auto is {shown}: {why}" if why else ""

    @property
    def chosen(self) -> list[str]:
        """What ``auto`` came to and why, a line a key; what needs none has none. And what a frame is."""
        return [
            *(line for line in self._chosen.values() if line),
            *frame_skip_notes(self),
            *no_update_notes(self),
            *sequence_notes(self),
            *precision_notes(self),
        ]

    @property
    def frames_per_batch(self) -> int:
        """Frames the collector hands over at once."""
        return quantity(vars(self), "frames")

    @property
    def num_envs(self) -> int:
        """Environments stepped together in a process."""
        return quantity(vars(self), "envs")

    @property
    def from_data(self) -> bool:
        """Whether frames are sampled from an offline dataset instead of collected."""
        return self.collector["_target_"] == option_target("collector/dataset")

    @property
    def steps_per_row(self) -> int:
        """Steps of an environment in a row of the replay buffer; several where a row is a sequence."""
        return steps_per_row(self.minibatches)

    @property
    def batches(self) -> int:
        """Batches in the run; the last is whole, so ``total_frames`` is rounded up."""
        return -(-self.total_frames // self.frames_per_batch)

    @property
    def updates(self) -> int:
        """Updates in the run, where its minibatches say how many a batch they are."""
        epochs, size, updates = (quantity(vars(self), name) for name in ("epochs", "size", "updates"))
        awaiting = max(0, -(-self.awaited[1] // self.frames_per_batch) - 1)
        return max(0, self.batches - awaiting) * (
            updates or (epochs or 1) * (self.frames_per_batch // (size or self.frames_per_batch))
        )

    @property
    def awaited(self) -> tuple[str, int]:
        """The key of how many frames a replay buffer has before the first update, and how many; else 0."""
        if quantity(vars(self), "warmup") is None:
            return "", 0
        awaited = ((QUANTITIES[name], quantity(vars(self), name) or 0) for name in ("warmup", "size"))
        return max(awaited, key=itemgetter(1))

    @property
    def work(self) -> int:
        """Rows of a minibatch times the largest product of neighbouring hidden widths."""
        widths = [network.get("num_cells", []) for network in self.networks.values()]
        largest = max((a * b for cells in widths for a, b in pairwise(cells)), default=0)
        return (quantity(vars(self), "size") or 0) * largest

    @property
    def networks(self) -> dict[str, Node]:
        """What the loss learns, by its name; what was not chosen is left out."""
        return {name: node for name in NETWORKS if (node := getattr(self, name)) is not None}

    @property
    def anneal_batches(self) -> int:
        """Batches over which the learning rate falls."""
        return -(-self.anneal_frames // self.frames_per_batch)

    def build(self, name: str) -> Builder:
        """The builder of a component, its configured arguments filled in; null builds ``None``."""
        return build(self, name)

    @property
    def compiling(self) -> dict[str, bool]:
        """Whether the update is compiled, and whether it is a CUDA graph."""
        return {"compile": self.compile is True, "cudagraph": self.cudagraph}

    @property
    def learners(self) -> dict[str, "Learning"]:
        """What learns from each batch, in order; the run's own loss comes last."""
        own = {"max_grad_norm": self.max_grad_norm, "target_kl": self.target_kl, **self.compiling}
        before = {
            name: Learning(partial(build, extra), extra.loss, {})
            for name, extra in self.extra_learners.items()
        }
        return before | {"": Learning(self.build, self.loss, own)}

    @property
    def logger_builders(self) -> dict[str, Builder]:
        """The builders of the chosen loggers by their names."""
        return {name: make_builder(node) for name, node in (self.logger or {}).items()}

    @property
    def goal(self) -> tuple[float | None, bool]:
        """The mean return that counts as solved, and whether the run stops there."""
        return self.eval.reward_threshold, self.eval.stop_when_solved

    @property
    def identity(self) -> dict[str, Any]:
        """What a logger needs to know of the run, by the names of ``RunInfo``'s attributes."""
        return {
            **{"algo": self.algo, "task": self.task, "seed": self.seed, "config": self.shown},
            **{"from_data": self.from_data, "info_keys": self.env.get("info_keys") or ()},
            **{"notes": self.chosen, "needs_trust": self.needs_trust},
        }

    def check_env(self, kind: str, groups: Sequence[str], *, alike: bool) -> None:
        """See :func:`check_action_space` and :func:`check_groups`."""
        check_action_space(self, kind)
        check_groups(self, groups, alike=alike)

    @property
    def eval_backend(self) -> Builder:
        """The builder of what plays evaluations in the background; none where the loop waits for them."""
        if (node := read_option("/eval_backends").get(self.eval.backend)) is None:
            return build_none
        options = {key: getattr(self.eval, key) for key in node if key not in ("_target_", *RULES)}
        if "eval.backend" in self._chosen:
            options["is_optional"] = True
        return make_builder({**node, **options})

    @property
    def transform_builders(self) -> list[Builder]:
        """Builders of the transforms in order; those with ``settle`` get ``anneal_frames``."""
        over = {"over": self.anneal_frames}
        return [make_builder(over | node if "settle" in node else node) for node in self.transforms.values()]


def frame_skip_notes(settings: Settings) -> Iterator[str]:
    """Notes of environments that repeat actions: what a frame is."""
    env = settings.env
    wrappers = (env.get("wrappers") or {}) if env["_target_"] == option_target("env/gym") else {}
    held = {
        f"env.wrappers.{name}.{key}": node[key]
        for name, node in wrappers.items()
        for key in node.keys() & {"frame_skip", "num_repeats", "skip"}
    }
    if env.get("make") and env.get("repeat", 1) > 1:  # of the Control Suite
        held["env.repeat"] = env["repeat"]
    for key, times in held.items():
        yield (
            f"a frame is a step of the agent: with {key}={times}, total_frames={settings.total_frames:,} "
            f"agent steps are {settings.total_frames * times:,} simulator frames"
        )


def no_update_notes(settings: Settings) -> Iterator[str]:
    """Notes of a run that ends before its first update, or whose first update is delayed."""
    if not settings.updates:
        key, frames = settings.awaited
        yield f"no update will be made: {key}={frames} is more than total_frames={settings.total_frames}"
    elif settings.awaited[0] == QUANTITIES["size"] and settings.awaited[1] > quantity(
        vars(settings), "warmup"
    ):
        yield (
            f"no update is made before the replay buffer holds minibatches.size={settings.awaited[1]} "
            f"frames, more than minibatches.warmup_frames={quantity(vars(settings), 'warmup')}"
        )


def sequence_notes(settings: Settings) -> Iterator[str]:
    """Notes that a loss of the user's own gets sequences without declaring that it can."""
    loss = settings.loss
    if quantity(vars(settings), "burn_in") is None or "sequences" in loss.compatible_with.get(
        "minibatches", ()
    ):
        return
    if not {*matching_options("loss", loss.module)} & {*option_names(CONFIGS / "loss")}:
        yield (
            f"{name_component('loss', loss.module)} learns from sequences of "
            f"minibatches.sequence={quantity(vars(settings), 'sequence')} steps, as the policy is recurrent; "
            "where it can, let its file say `compatible_with: {minibatches: [sequences]}`, else leave rnn out"
        )


def precision_notes(settings: Settings) -> Iterator[str]:
    """Notes that bf16 is slow on this machine."""
    if settings.precision == "bf16" and auto_values.is_on_cpu(settings.device) and not auto_values.has_bf16():
        yield (
            "precision=bf16: this CPU has neither amx_bf16 nor avx512_bf16, so bf16 is slower than float32; "
            "precision=float32 is advised"
        )


class Learning(NamedTuple):
    """Arguments of :func:`hydrl.training.make_learners` for a learner."""

    build: Callable[[str], Builder]
    loss: Loss
    options: dict[str, Any]


def build(settings: Any, name: str) -> Builder:
    """See :meth:`Settings.build`; of the settings of a run or an extra learner."""
    node = settings.loss.module if name == "loss" else getattr(settings, name, None)
    if node is None:
        return build_none
    if name == "buffer" and (steps := steps_per_row(settings.minibatches)) > 1:
        node = size_in_sequences(node, steps)
    make = make_builder(partial_wrappers(node) if name == "env" else node)
    if name not in NETWORKS:
        return make
    node = read_option("/precisions").get(settings.precision)
    return partial(build_network, name, make, convert=None if node is None else make_builder(node))


def partial_wrappers(env: Node) -> Node:
    """An environment's node, whose Gymnasium wrappers are called when an environment is made."""
    if not (wrappers := env.get("wrappers")) or env["_target_"] != option_target("env/gym"):
        return env
    return env | {"wrappers": {name: wrapper | {"_partial_": True} for name, wrapper in wrappers.items()}}


def steps_per_row(minibatches: Node) -> int:
    """See :attr:`Settings.steps_per_row`."""
    return minibatches.get("sequence", 1) if "warmup_frames" in minibatches else 1


def size_in_sequences(buffer: Node, steps: int) -> Node:
    """A buffer's node with its size in sequences, which overlap by half, instead of frames."""
    sizes = (("storage", "max_size"), ("sampler", "max_capacity"))
    return buffer | {
        key: buffer[key] | {size: max(1, buffer[key][size] // ((steps + 1) // 2))}
        for key, size in sizes
        if size in (buffer.get(key) or {})
    }


def build_none(*_: Any, **__: Any) -> None:
    """Builds a component that is null."""


def build_network(name: str, make: Builder, *arguments: Any, convert: Builder | None = None) -> Any:
    """Builds a network, checks its keys and converts it to the run's precision.

    Raises:
        UserError: for a module without keys, or an actor that writes no action.
    """
    built = make(*arguments)
    if not hasattr(built, "in_keys"):
        raise UserError(f"{name}: is a {type(built).__name__}. Wrap it in a TensorDictModule.")
    if name == "actor" and (lacking := set(arguments[0].action_keys) - set(built.out_keys)):
        raise UserError(
            f"actor: writes {built.out_keys}, but not {', '.join(map(str, lacking))}, the action."
        )
    return built if convert is None else convert(name, built)


def make_builder(node: Node) -> Builder:
    """A partial of the node's target; the nodes nested in it are built here.

    Hydra's own partial checks its target against a list at every call, which takes 0.2-0.5 ms; here it is
    checked once, and calling the plain partial costs nothing.
    """
    try:
        built = instantiate(without_rules(node), _partial_=True, _convert_="all")
    except InstantiationException as error:
        reason = str(error.__cause__ or error).split("full_key")[0]
        raise UserError(
            f"_target_={node['_target_']}: cannot be built: {' '.join(reason.split())}"
        ) from error
    return partial(
        built.func, *built.args, **{key: with_tuples(key, value) for key, value in built.keywords.items()}
    )


def without_rules(node: Any) -> Any:
    """A node without its rules, which are no arguments."""
    if isinstance(node, list):
        return [without_rules(entry) for entry in node]
    if isinstance(node, dict):
        return {
            key: without_rules(entry)
            for key, entry in node.items()
            if key not in RULES or "_target_" not in node
        }
    return node


def with_tuples(key: str, value: Any) -> Any:
    """``in_keys`` and the like as TorchRL reads them: a nested entry is a list in YAML and a tuple here."""
    if key.endswith("_keys") and isinstance(value, list):
        return [tuple(entry) if isinstance(entry, list) else entry for entry in value]
    return value


def load(cfg: DictConfig) -> Settings:
    """Resolves and checks a composed configuration; for a run.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    try:
        return check_composed(cfg)
    except UserError as error:
        if isinstance(error, ConfigError):
            error = find_all_mistakes(
                error, [*typed_words(), searchpath(option_folders()[1:])], check_composed
            )
        chosen = chosen_options()
        algo, slash, _ = (chosen.get("tuned") or "").partition("/")
        if slash and algo != chosen["algo"]:
            wrong = next(iter(error.lines.values())) if isinstance(error, ConfigError) else error
            raise UserError(
                f"tuned={chosen['tuned']}: this preset is for algo={algo}, not algo={chosen['algo']}. {wrong}"
            ) from None
        raise error from None


def check_composed(cfg: DictConfig) -> Settings:
    """See :func:`load`."""
    settings = check_values(cfg)
    settings.resolve_auto()
    for name, make in zip(settings.transforms, settings.transform_builders, strict=True):
        try:
            make()
        except Exception as error:
            raise UserError(f"transforms.{name}: cannot be built: {' '.join(str(error).split())}.") from error
    return settings


def check_values(cfg: DictConfig) -> Settings:
    """Settings of a composed configuration, checked without building anything; see :func:`load`."""
    values: dict[str, Any] = {}
    try:
        composed: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        limits = take_limits(composed)
        values = current_values(composed)
        settings = Settings.of(values, saved_values(cfg, values))
    except OmegaConfBaseException as error:
        raise UserError(explain_unresolved(error)) from None
    except ValidationError as error:
        raise explain(error, values, nullable=is_nullable) from None
    if settings.resume not in (None, "auto") and not settings.trust:
        check_resumed(settings, typed_after_resume())
    check(values, limits)
    return settings


def check_resumed(settings: Settings, typed: Sequence[str] = ()) -> None:
    """Refuses to go on with a run that could do more than train, but for what was ``typed`` now.

    Raises:
        UserError: naming what ``trust=true`` would allow.
    """
    values, resumed = settings.model_dump(), f"resume={settings.resume}"
    check_trust(values, resumed, typed)
    check_addresses(values, resumed, typed)
    if ENVIRONMENT in str(settings.shown["logger"]):  # which sends it away
        raise UserError(
            f"{resumed}: its logger is given environment variables. Add trust=true if you trust it."
        )
    scratch = find(values, "buffer.storage.scratch_dir")
    if scratch and Path(settings.run_dir).resolve() not in Path(scratch).resolve().parents:
        raise UserError(
            f"{resumed}: buffer.storage.scratch_dir={scratch} is outside the run. Add trust=true to write "
            "there."
        )


def typed_after_resume() -> list[str]:
    """Overrides that the user typed with ``resume=DIR``; the run's own come before it."""
    typed_keys = [key_of(word) for word in typed_words()]
    return typed_words()[typed_keys.index("resume") :] if "resume" in typed_keys else []


def saved_values(cfg: DictConfig, values: dict[str, Any]) -> dict[str, Any]:
    """A copy of the resolved ``values`` of ``cfg``, in which ``${oc.env:NAME}`` stays as it is written."""
    unresolved = OmegaConf.to_container(cfg)
    if ENVIRONMENT not in str(unresolved):
        return deepcopy(values)

    def escape(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: escape(value) for key, value in node.items()}
        if isinstance(node, list):
            return [escape(value) for value in node]
        return node.replace("${", "\\${") if isinstance(node, str) and ENVIRONMENT in node else node

    copy = OmegaConf.create(escape(unresolved))
    OmegaConf.copy_cache(cfg, copy)
    return current_values(OmegaConf.to_container(copy, resolve=True, throw_on_missing=True))


def current_values(values: Any) -> dict[str, Any]:
    """What was composed, with its components named as they are now; an empty one is null.

    An encoder in one word, ``own`` or an image encoder's name, is the run's, with that reader. With
    hindsight, networks read the desired goal and not the achieved one, unless ``in_keys`` is set.
    """
    take_limits(values)
    composed = new_config(values, scale="bounds").items()
    current: dict[str, Any] = {
        key: None if value == {} and is_nullable(key) else value for key, value in composed
    }
    relabelled = (current.get("buffer") or {}).get("_target_") == option_target("buffer/hindsight")
    for network in (current.get(name) or {} for name in NETWORKS):
        if relabelled and network.get("in_keys", ...) is None:
            network["in_keys"] = ["observation", "desired_goal"]
        encoder, own = network.get("encoder"), current.get("encoder") or {}
        if isinstance(encoder, str) and encoder != "shared":
            network["encoder"] = own | ({"reader": encoder} if encoder != "own" else {})
    return current


def check_action_space(settings: Settings, kind: str) -> None:
    """Refuses a kind of actions that the algorithm or its actor cannot act in, naming those that can."""
    has = f"{name_env(settings.task, settings.env)} has {kind} actions"
    if kind not in settings.action_spaces:
        is_offline = needs_dataset(settings.algo)
        able = [
            name
            for name, kinds in read_action_spaces().items()
            if kind in kinds and needs_dataset(name) == is_offline
        ]
        advice = (
            advise_options("algo", able) if able else f"No algorithm here can{' from a dataset' * is_offline}"
        )
        if settings.env["_target_"] == VMAS and "multi-agent discrete" in settings.action_spaces:
            advice = f"Add +env.continuous_actions=false. {advice}"
        if "one-hot" in kind:
            advice = "Let each action be an integer, as in torchrl.data.MultiCategorical"
        spaces = join_or(settings.action_spaces)
        raise UserError(f"algo={settings.algo}: acts in {spaces} action spaces, and {has}. {advice}.")
    rules = settings.actor.get("requires", {})
    if kind not in (only := rules.get("action_spaces", [kind])):
        actor = name_component("actor", settings.actor)
        why = give_reason(rules, "action_spaces").replace(", which", ", as it")
        raise UserError(
            f"{actor}: acts in {join_or(only)} action spaces{why}, and {has}. Use actor=stochastic."
        )


def check_groups(settings: Settings, groups: Sequence[str], *, alike: bool) -> None:
    """Refuses several groups of agents where the algorithm learns one; ``alike``: their specs are equal."""
    for name, network in settings.networks.items() if len(groups) > 1 else ():
        if "agent_groups" in (rules := network.get("requires", {})):
            env = name_env(settings.task, settings.env)
            joined = ", or env.group_map=all_in_one_group" * (alike and "group_map" in settings.env)
            of_network = f", as {name_component(name, network)}"
            why = give_reason(rules, "agent_groups").replace(", which", of_network)
            raise UserError(
                f"algo={settings.algo}: learns one group of agents{why}, and {env} has "
                f"{' and '.join(groups)}. Use algo=mappo or algo=ippo{joined}."
            )


def needs_dataset(algo: str) -> bool:
    """Whether an algorithm needs an offline dataset."""
    fits = (
        read_option(f"/algo/{algo}")["compatible_with"] if algo in option_names(CONFIGS / "algo") else {}
    )  # else one's own
    return fits.get("collector") == ["dataset"] or "data" in fits


def read_action_spaces() -> dict[str, list[str]]:
    """Each algorithm in ``configs/algo`` with the action spaces it declares."""
    return {name: [*read_option(f"/algo/{name}")["action_spaces"]] for name in option_names(CONFIGS / "algo")}
