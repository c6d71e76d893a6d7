"""How a user's mistake is told: the key, the value, and what would do, nearest first."""

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from hydrl.config import CONFIGS
from hydrl.config.overrides import choices_made
from hydrl.config.tree import choices, choices_with, find, paths, show

# What pydantic says in the terms of Python.
SHOULD = {
    "int_type": "be an integer",
    "int_from_float": "be an integer",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "dict_type": "be a group of keys",
    "model_type": "be a group of keys",
    "model_attributes_type": "be a group of keys",
    "device": "be auto, cpu, cuda or cuda:N",
    **dict.fromkeys(
        ["collector.address", "eval.address", "hydra.launcher.address"],
        "be HOST:PORT of a Ray cluster, or auto for one that runs here",
    ),
    "env.scenario": "be a scenario of VMAS, such as balance",
    "data.path": "be the folder of a run that kept its replay buffer, or what data=minari, h5 or npz reads",
}

# An `env.id` of each choice of `env` that is of many tasks.
IDS = {
    "gym": "CartPole-v1",
    "atari": "ALE/Pong-v5",
    "dm_control": "walker-walk",
    "minatar": "MinAtar/Breakout-v1",
    "pettingzoo": "mpe2/simple_spread_v3",
    "self_play": "classic/tictactoe_v3",
}

# What other libraries, and newcomers, call a key that is here.
CALLED = {
    "algo": "algorithm agent",
    "env": "environment env_id env_name",
    "seed": "random_seed",
    "total_frames": "total_timesteps timesteps total_steps num_timesteps",
    "device": "gpu cuda",
    "hydra.run.dir": "save_dir output_dir log_dir",
    "logger": "wandb tensorboard track",
    "checkpoint_every_frames": "save_freq",
    "log_every_frames": "log_interval log_freq",
    "resume": "load load_path load_model trained_agent",
    "init_from": "pretrained pretrained_path warm_start finetune",
    "eval.every_frames": "eval_freq",
    "eval.episodes": "n_eval_episodes",
    "eval.video": "render render_mode capture_video",
    "actor": "model",
    "actor.num_cells": "net_arch hidden_sizes",
    "actor.activation": "activation_fn",
    "collector": "num_workers",
    "collector.num_envs": "n_envs num_envs",
    "collector.frames_per_batch": "n_steps num_steps train_freq",
    "collector.init_random_frames": "learning_starts",
    "minibatches.size": "batch_size minibatch_size num_minibatches",
    "minibatches.epochs": "n_epochs num_epochs update_epochs",
    "minibatches.updates": "gradient_steps",
    "minibatches.n_steps": "n_steps",
    "minibatches.warmup_frames": "learning_starts",
    "buffer.storage.max_size": "buffer_size",
    "optim.lr": "learning_rate lr policy_lr q_lr",
    "loss.value_estimator.gamma": "gamma discount",
    "loss.value_estimator.lmbda": "gae_lambda",
    "loss.module.entropy_coeff": "ent_coef entropy_coef",
    "loss.module.alpha_init": "ent_coef alpha",
    "loss.module.critic_coeff": "vf_coef",
    "loss.module.num_qvalue_nets": "n_critics",
    "loss.module.normalize_advantage": "norm_adv adv_norm",
    "loss.module.clip_epsilon": "clip_range clip_coef",
    "target.tau": "tau polyak",
    "target.value_network_update_interval": "target_update_interval target_network_frequency",
    "exploration.eps_init": "exploration_initial_eps start_e eps_start",
    "exploration.eps_end": "exploration_final_eps end_e",
    "exploration.annealing_num_steps": "exploration_fraction",
    "exploration": "action_noise",
    "exploration.sigma_init": "exploration_noise noise_std",
    "schedule": "anneal_lr lr_schedule",
}
# What the same number means here.
MEANS = {"collector.frames_per_batch": "the steps of all environments together"}

# Keys of Stable-Baselines3 and CleanRL that no key here stands for, and what does it here.
NETWORKS = "networks are the choices of actor and critic, and actor.num_cells=[64,64] sets their widths"
SHOWN = "a run always shows a bar, or a line an evaluation where the output is no terminal"
INSTEAD = {
    "verbose": SHOWN,
    "progress_bar": SHOWN,
    "policy": NETWORKS,
    "policy_kwargs": f"{NETWORKS}, actor.activation=ReLU what lies between them",
    "features_extractor_class": "pictures are read by encoder=cnn, impala, minatar or one of your own",
    "CnnPolicy": "pictures are read by convolutions without a word; encoder=impala chooses others",
    "reader": "hidden layers are mounted by /layers@_here_: mlp now, and encoder is what reads observations",
    "tensorboard_log": "write logger=tensorboard; it writes into the run folder",
    "callback": "eval, checkpoint_every_frames and logger say what happens on the way",
    "torch_deterministic": "leave it out; runs on the CPU with the same seed are equal to the last bit",
    "exp_name": "a run is named by its folder; write hydra.run.dir=outputs/NAME",
    "wandb_project_name": "write logger=wandb logger.project=NAME",
    "normalize": "write transforms=normalized; the transforms of a run are listed by --cfg job",
    "VecNormalize": "write transforms=normalized; the transforms of a run are listed by --cfg job",
    "frame_stack": "write env.wrappers.s={_target_:gymnasium.wrappers.FrameStackObservation,stack_size:4}",
    "use_sde": "exploration and actor.scale say how actions vary; not by a noise that depends on the state",
    "policy_delay": "write +loss.every.loss_actor=2; the actor then learns at every second update",
    "policy_frequency": "write +loss.every.loss_actor=2; the actor then learns at every second update",
    "clip_range_vf": "write +loss.module.clip_value=0.2",
    "clip_vloss": "write +loss.module.clip_value=0.2",
}
# What TorchRL has and goes wrong there; docs/upstream.md has where.
REFUSED = {
    "collector=distributed": "torch.distributed's tells nothing of what ended a worker but a time-out after "
    "16 seconds; use collector=ray",
    "collector=rpc": "TorchRL's joins its workers along time, so that advantages cross from one into the "
    "next, and never ends once a worker was killed; use collector=ray",
}
LEFT_OUT = ("critic", "value", "mixer", "discriminator")  # what not every algorithm has
FAMILIES = {"ALE": "atari", "MinAtar": "minatar"}  # which env makes ids that begin so
NEEDED_GROUPS = ("algo", "env", "loss", "collector", "optim")


def explain(
    error: ValidationError, values: Any, node: str = "", nullable: Callable[[str], bool] = lambda key: False
) -> str:
    """What is wrong with the first wrong key, as one line in the user's terms.

    Args:
        error: pydantic's.
        values: the whole configuration.
        node: the dotted path of what of it pydantic was given.
        nullable: whether a dotted key may be null.
    """

    def key_of(complaint: Mapping[str, Any]) -> str:
        """Its dotted path, without the union member or list index that pydantic adds."""
        path = [node] * bool(node) + [str(part) for part in complaint["loc"]]
        while path[1:] and not isinstance(find(values, ".".join(path[:-1])), Mapping):
            path.pop()
        return ".".join(path)

    key = key_of(error.errors()[0])
    value = find(values, key)
    complaints = {each["type"]: each["msg"] for each in error.errors() if key_of(each) == key}
    if key == "task":  # env=gym and env=custom take it from these
        given = values.get("env") or {}
        key = next((f"env.{each}" for each in ("id", "_target_") if given.get(each, key) == value), key)
    if "extra_forbidden" in complaints:
        return no_such_key(key, show(value), values)
    if "missing" in complaints:
        return missing(key)
    should = [
        should_of(key) or SHOULD.get(kind) or text.partition("should ")[2]
        for kind, text in complaints.items()
    ]
    line = f"{key}={show(value)}: should " + " or ".join(dict.fromkeys(should)).replace(" or be ", " or ")
    if value is None:
        return f"{line}; leave it out by ~{key}" if key.startswith("transforms.") else line
    if meant := number_meant(value, whole=bool(complaints.keys() & {"int_type", "int_from_float"})):
        return f"{line}; write {key}={meant}"
    if str(value).lower() == "none" and nullable(key):
        return f"{line}; write {key}=null"
    if "part" in complaints and (able := find(values, f"compatible_with.{key}") or choices(CONFIGS / key)):
        # What the algorithm says of one may be there alone.
        if "_target_" not in value and key in (find(values, "loss.networks") or {}).values():
            line = f"algo={values['algo']} needs {'an' if key == 'actor' else 'a'} {key}"
        return f"{line}; use " + " or ".join(f"{key}={each or 'null'}" for each in able)
    return f"{line}{listed(key, value)}" if "list_type" in complaints else line


def listed(key: str, value: Any) -> str:
    """How a value that should be a list is written as one; nothing for a group of keys."""
    if isinstance(value, Mapping):
        return ""
    numbers = re.findall(r"\d+", value) if str(value)[:1].isdigit() and isinstance(value, str) else []
    if isinstance(value, str) and not numbers and key.endswith("_cells"):
        return f" of integers, as {key}=[64,64]"
    return f"; write {key}=[{','.join(numbers) or show(value)}]"


def should_of(key: str) -> str:
    """What a value of a key should be, where the terms of Python do not say it; empty where they do."""
    if key == "env.id":
        return f"be a name, such as {IDS.get(choices_made().get('env', ''), IDS['gym'])}"
    return SHOULD.get(key, "")


def number_meant(value: Any, *, whole: bool) -> str:
    """A number as it is written here, for ``1M`` and, where it should be ``whole``, for ``1e6``."""
    if short := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", str(value)):
        return f"{round(float(short[1]) * {'k': 1_000, 'm': 1_000_000}[short[2].lower()]):_}"
    return str(int(value)) if whole and isinstance(value, float) and value.is_integer() else ""


def missing(key: str) -> str:
    """What a key that must be there is told with."""
    where = "; the file of env=… says it, as `task: NAME` at the top level" if key == "task" else ""
    return f"{key} is missing and cannot be left out{where}"


def unresolved(error: OmegaConfBaseException) -> str:
    """What an interpolation or a mandatory key lacks."""
    text = str(error.msg or error).splitlines()[0]
    _, lacking, key = text.partition("Missing mandatory value: ")
    if lacking:
        key = key if "." in key else error.full_key or key
        advice = f", which should {should}" if (should := should_of(key)) else ""
        return f"{key} has no value; write {key}=VALUE{advice}"
    group = re.search(r"Interpolation key '(\w+)' not found", text)
    if group and group[1] == "task":
        return missing("task")
    if group and (able := choices(CONFIGS / group[1])):
        return f"{missing(group[1])}; use {group[1]}={able[0]}"
    return f"{error.full_key}: {text}" if error.full_key else text


def no_such_key(key: str, value: str, values: Mapping[str, Any]) -> str:
    """Names a wrong key and the right ones.

    Args:
        key: dotted.
        value: what it was given, as shown.
        values: the configuration it is looked for in.
    """
    if (said := INSTEAD.get(key)) and key not in values:
        return f"{key}={value}: there is no such key; {said}"
    line = f"{key}={value}: there is no such key"
    group, _, name = key.rpartition(".")
    part, argument = [*key.split("."), ""][:2]
    if (
        part in LEFT_OUT
        and values.get(part, ...) is None
        and set(find(values, f"compatible_with.{part}") or ()) <= {None}
    ):
        return f"{line}; algo={values['algo']} has no {part}"
    known = [each for each in paths(values) if each != key]
    do = instead(key, known)
    elsewhere = part == "env" and do.endswith(" it")  # another choice has it, and this may take it
    target = find(values, f"{part if elsewhere else group}._target_")
    takes = arguments_of(target) if target else ()
    if takes and (find(values, group) or {}).keys() == {"_target_"}:  # whose other keys are in no file
        handed = {"self", "args", "kwargs", *(find(values, f"{group.rpartition('.')[0]}.networks") or ())}
        able = [each for each in takes if each not in handed]
        near = difflib.get_close_matches(name, able, 1)
        do = f"; did you mean +{group}.{near[0]}={value}?" if near else f"; {target} takes {', '.join(able)}"
        return f"{line}; write +{key}={value}" if name in able else line + do
    if elsewhere and argument in takes:
        return f"{line}; write +{key}={value}"
    if f"; {group} has " in do and name in takes:
        do += f". For another argument of {target} write +{key}={value}"
    elif f"; {group} has " in do and group == "env" and takes:
        of = "env.scenario_kwargs" if "scenario_kwargs" in takes else "env"
        do += f". For a keyword of the task's own write +{of}.{name}={value}" * ("kwargs" in takes)
    return line + do


def arguments_of(target: str) -> Collection[str]:
    """What a ``_target_`` takes by name, where it can be imported."""
    try:
        built = get_object(target)
        return inspect.signature(built.__init__ if inspect.isclass(built) else built).parameters
    except Exception:  # it is told of when it is built
        return ()


def instead(key: str, known: list[str], *, elsewhere: bool = True) -> str:
    """What could stand in place of a wrong ``key``, for the end of a sentence.

    Args:
        key: dotted.
        known: the dotted paths that there are.
        elsewhere: whether other choices than those made count too.
    """
    if key.lower() in known:
        return f"; did you mean {key.lower()}?"
    group, _, name = key.replace("/", ".").rpartition(".")
    alike = difflib.get_close_matches(name, " ".join(CALLED.values()).split(), 1, 0.85)
    called = [each for each, names in CALLED.items() if {*alike} & {*names.split()}]
    meant = [each for each in called if each in known and each != group]
    if not meant and elsewhere:
        for each in [key] if group else called:
            if able := choices_with(each):
                has = "has" if len(able) == 1 else "have"
                return f"; {' and '.join(able)} {has} {'it' if each == key else each}"
    beside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == group}
    own = [each for each in beside if each[0] != "_" or "target" in name]
    near = meant or [beside[each] for each in difflib.get_close_matches(name, own)]
    near = near or [each for each in known if each.rpartition(".")[2] == name][:4]
    if not near and not (group and beside):
        near = difflib.get_close_matches(key, known, cutoff=0.7)
    if near:
        asked = [f"{each} ({MEANS[each]})" if each in meant and each in MEANS else each for each in near]
        return f"; did you mean {' or '.join(asked)}?"
    if group and not beside:
        return instead(group, known)
    if not group and len(known) > 30:
        return "; python train.py --cfg job prints all"
    return f"; {group or 'the top level'} has {', '.join(each for each in beside if each[0] != '_')}"


def no_such_choice(group: str, choice: str, offered: list[str]) -> str:
    """Lists what a group offers, nearest first."""
    if told := REFUSED.get(f"{group}={choice}"):
        return f"{group}={choice}: {told}"
    if group == "env" and (known := gymnasium_id(choice)):
        by = FAMILIES.get(known.partition("/")[0], "gym")
        able = [*choices_with("env.id", known), f"env={by} env.id={known}"]
        return f"{group}={choice}: no such choice; use {' or '.join(able)}"
    if group in ("actor", "critic") and (kind := re.search("cnn|conv|resnet|mlp", choice.lower())):
        told = NETWORKS if kind[0] == "mlp" else INSTEAD["features_extractor_class"]
        return f"{group}={choice}: no such choice; {told}; here are {', '.join(offered)}"
    if (
        choice in ("None", "NONE", "Null", "false", "False")
        and group not in NEEDED_GROUPS
        and "/" not in group
    ):
        return f"{group}={choice}: no such choice; write {group}=null, or try {', '.join(offered)}"
    near = difflib.get_close_matches(choice.lower(), offered, n=3, cutoff=0.5)
    rest = [each for each in offered if each not in near]
    return f"{group}={choice}: no such choice; try {', '.join([*near, *rest])}"


def gymnasium_id(name: str) -> str | None:
    """The nearest id that is installed, or ``name`` where it looks like one; imports Gymnasium."""
    near = difflib.get_close_matches(name, get_object("gymnasium.registry"), 1, 0.8)
    return near[0] if near else name if re.search(r"-v\d+$", name) else None
