"""What a configuration must satisfy before anything is built: ranges, what fits what, what is installed.

The cheapest checks come first; PyTorch is imported by the last.
"""

import importlib.util
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from hydrl.config import CONFIGS
from hydrl.config.mistakes import choices, choices_with, content, find, missing, no_such_choice, show
from hydrl.config.overrides import choices_made, forks, key_of, words
from hydrl.config.own import sources
from hydrl.config.schema import ASKED, GYMNASIUM, NETWORKS, WITHIN, Part, Values, asked
from hydrl.config.signatures import check_signatures, hold_one, targets
from hydrl.config.tuned import NOBODY_CHOSE, unnamed
from hydrl.errors import UserError

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Distance = Literal["l1", "l2", "smooth_l1"]
# Those of torch.nn that make sense between layers and need no arguments.
Activation = Literal["Tanh", "ReLU", "ELU", "SiLU", "GELU", "SELU", "CELU", "Mish", "LeakyReLU", "Softplus"]

# Ray's older client, ray://HOST:PORT, has no collectors.
ClusterAddress = Annotated[str, Field(pattern=r"^(auto|[^:/\s]+:\d+)$")]

# Ranges of what TorchRL and PyTorch would accept in silence, or refuse late.
RANGES: tuple[tuple[Any, str], ...] = (
    (Part, "buffer.storage"),
    (PositiveInt, "collector.frames_per_batch collector.num_envs collector.num_workers"),
    (PositiveInt, "collector.num_collectors"),
    (NotNegative, "collector.num_cpus collector.num_gpus"),
    (ClusterAddress | None, "collector.address eval.address"),
    (PositiveInt, "minibatches.epochs minibatches.size minibatches.updates minibatches.n_steps"),
    (PositiveInt, "buffer.storage.max_size"),
    (PositiveInt, "exploration.annealing_num_steps target.value_network_update_interval"),
    (Annotated[int, Field(ge=0)], "collector.init_random_frames minibatches.warmup_frames"),
    (Positive, "optim.lr optim.eps loss.module.dtarg"),
    (Positive, "collector.worker_timeout logger.wandb.init_timeout"),
    (NotNegative, "optim.weight_decay schedule.eta_min schedule.power"),
    (NotNegative, "exploration.sigma_init exploration.sigma_end"),
    (NotNegative, "loss.module.min_q_weight loss.module.alpha"),
    (PositiveInt, "loss.module.num_random"),
    (NotNegative, "loss.module.entropy_coeff loss.module.critic_coeff loss.module.beta"),
    (Fraction, "loss.value_estimator.gamma loss.value_estimator.lmbda target.tau"),
    (Fraction, "transforms.reward_scaling.gamma"),
    (float | None, "transforms.reward_scaling.scale"),
    (Positive, "loss.value_estimator.rho_thresh loss.value_estimator.c_thresh"),
    (Fraction, "exploration.eps_init exploration.eps_end buffer.sampler.beta buffer.her_ratio"),
    (NotNegative, "buffer.sampler.alpha"),
    (Annotated[float, Field(gt=0, lt=1)], "loss.module.clip_epsilon minibatches.share"),
    (Distance, "loss.module.loss_critic_type loss.module.loss_function"),
    (list[PositiveInt], "NETWORK.num_cells"),
    (list[PositiveInt] | None, "mixer.state_cells"),
    (Activation, "NETWORK.activation"),
    (PositiveInt, "NETWORK.memory.lstm NETWORK.memory.gru mixer.mixing_embed_dim"),
    (Annotated[int, Field(ge=2)] | None, "NETWORK.memory.span"),
    (PositiveInt | None, "encoder.features encoder.channels"),
    (PositiveInt | None, "minibatches.sequence"),
    (Annotated[int, Field(ge=0)], "minibatches.burn_in"),
    (Fraction, "minibatches.eta"),
    (Literal["per_state", "independent"], "actor.scale"),
    (PositiveInt, "actor.width actor.layers actor.heads actor.context"),
    (Annotated[float, Field(ge=0, lt=1)], "actor.dropout"),
    (Annotated[float, Field(gt=0.01, allow_inf_nan=False)], "actor.scale_init"),
    (Literal["orthogonal"] | None, "NETWORK.init"),
    (Positive | None, "actor.noisy"),
    (Annotated[float, Field(gt=0, le=1)], "transforms.normalize.settle"),
    (Annotated[int, Field(gt=1)], "actor.atoms"),
    (Literal["auto", "online", "offline"], "logger.wandb.mode"),
    (PositiveInt, "env.opponents.every_frames env.opponents.size"),
    (Fraction, "env.opponents.newest env.opponents.chance"),
)

# What must not be more than what.
LIMITS = (
    ("total_frames", "anneal_frames"),
    ("exploration.eps_end", "exploration.eps_init"),
    ("minibatches.size", "collector.frames_per_batch"),
    ("minibatches.size", "buffer.storage.max_size"),
    ("minibatches.warmup_frames", "buffer.storage.max_size"),
    ("collector.frames_per_batch", "buffer.storage.max_size"),
)

ON_RAY = "hydrl.parts.experience.clusters.ray_collector"

# Packages of the extras in pyproject.toml that a part cannot do without.
NEEDED = {
    ON_RAY: "ray",
    "hydrl.run.loggers.tensorboard": "tensorboard",
    "hydrl.run.loggers.trackio": "trackio",
    "hydrl.run.loggers.wandb": "wandb",
    "torchrl.envs.VmasEnv": "vmas",
    "hydrl.parts.networks.transformer.decision_transformer": "transformers",
}

# What reads an entry of an observation.
READERS = ("auto", "mlp", "cnn", "impala", "minatar")

# What counts of a number of `info`, and the names that are taken in the log.
FOLLOWED = ("last", "mean", "sum")
OWN_NUMBERS = {
    "train": "return episodes episode_length reward cut_short q_value explained_variance learning_rate "
    "epsilon sigma",
    "eval": "return_mean return_std return_min return_max length_mean length_min length_max episodes "
    "cut_episodes",
}

# Wrappers of Gymnasium's that go wrong here, and what does it.
INSTEAD_OF = {
    "gymnasium.wrappers.NormalizeObservation": "keeps statistics that evaluation and a saved policy would "
    "not have; use transforms=running_norm, or transforms=normalized",
    "gymnasium.wrappers.NormalizeReward": "would make returns those of scaled rewards; use "
    "transforms=normalized_rewards",
    "gymnasium.wrappers.Autoreset": "resets inside of step, where a run loses how an episode ends; leave it "
    "out, episodes begin anew without it",
}


def check(values: Values) -> None:
    """Everything below, cheapest first.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    for kind, keys in RANGES:
        for key in dict.fromkeys(each.replace("NETWORK", net) for each in keys.split() for net in NETWORKS):
            part, _, name = key.rpartition(".")
            if isinstance(node := find(values, part), Mapping) and name in node:
                hold_one(key, kind, values)
    for each in ("frames", "envs"):  # train.py asks every collector for them
        if asked(values, each) is None:
            raise UserError(missing(ASKED[each]))
    for rule in (in_need, unfit, too_large, begun_from, ill_wrapped, ill_named, ill_read, unmet, at_odds):
        for message in rule(values):
            raise UserError(message)
    check_signatures(values)


def unfit(values: Values) -> Iterator[str]:
    """Parts that the algorithm or its loss cannot learn with, and a task under another's name."""
    loss = values["loss"]
    asking = [(f"algo={values['algo']}", *each) for each in values["fits"].items()]
    asking += [(named("loss", loss["module"]), *each) for each in loss["fits"].items()]
    for asks, group, fitting in asking:
        names, able = chosen(group, values[group]), [each or "null" for each in fitting]
        here = {"null", *choices(CONFIGS / group)}
        # A part of one's own is taken at its word, where what fits is not of one's own too.
        taken = not set(names) & here and set(able) <= here
        if names and not taken and not set(names) & set(able):
            yield f"{group}={names[0]} does not fit {asks}; {use(group, able)}"
    task, env = values["task"], values["env"]
    # A scenario of VMAS names its task, and may be called as a task of others is.
    if task in choices(CONFIGS / "env") and task != env.get("scenario"):
        own = content(f"/env/{task}")["env"]
        of_id = "pettingzoo" if own["_target_"].endswith("pettingzoo_env") else "gym"
        for key, general in (("_target_", "custom"), ("id", of_id), ("scenario", "vmas")):
            if env.get(key) != own.get(key):
                given, value = f"env.{key}={env.get(key)}", str(env.get(key))
                able = choices_with(f"env.{key}", value) if key != "_target_" else []
                able += [f"env={value}" if value in choices(CONFIGS / "env") else f"env={general} {given}"]
                line = f"{given}: env={task} is {own.get(key)}, and its numbers too"
                yield f"{line}; use {' or '.join(able)}"


def in_need(values: Values) -> Iterator[str]:
    """Values of other keys that a part or the loss cannot do without."""
    loss = values["loss"]
    needing = [(loss["module"]["_target_"].rpartition(".")[2], loss.get("needs", {}))]
    needing += [(path, node["needs"]) for path, node in targets(values) if "needs" in node]
    for what, needs in needing:
        why = f", which {needs['because']}" if "because" in needs else ""
        for key, able in needs.items():
            if key in ("because", "action_spaces"):  # of which the environment tells
                continue
            if (value := find(values, key)) not in able:
                if isinstance(value, Mapping):  # a part, as it was chosen, or one's own by its keys
                    own = {
                        name: each
                        for name, each in value.items()
                        if each is not None and name[0] != "_" and name != "needs"
                    }
                    typed = choices_made().get(key)
                    value = typed if typed in choices(CONFIGS / key) else own
                yield f"{key}={show(value)} does not work with {what}{why}; use {key}={show(able[0])}"


def too_large(values: Values) -> Iterator[str]:
    """Numbers that do not fit each other."""
    for small, large in LIMITS:
        least, most = find(values, small), find(values, large)
        if large == ASKED["frames"] and asked(values, "warmup") is not None:
            continue  # drawn from all that is kept
        if None not in (least, most) and least > most:
            advice = f"use {small}={most} or less, or {large}={least} or more"
            yield f"{small}={least} is more than {large}={most}; {advice}"
    frames, envs = asked(values, "frames"), asked(values, "envs") * (asked(values, "workers") or 1)
    if over := frames % envs:
        yield (
            f"collector.frames_per_batch={frames} is not a multiple of {envs}, the environments "
            f"(collector.num_envs in each worker); use collector.frames_per_batch={frames - over + envs}"
        )
    sequence, burn_in = asked(values, "sequence"), asked(values, "burn_in")
    if sequence and burn_in is not None:
        yield from too_long(sequence, burn_in, asked(values, "size"), envs, values)
    elif sequence:
        steps, size = frames // envs, asked(values, "size")
        both = math.gcd(steps, size)
        if both % sequence:
            fitting = max(each for each in range(1, sequence) if both % each == 0)
            larger = f"minibatches.size={sequence} collector.frames_per_batch={envs * sequence}, or multiples"
            yield (
                f"minibatches.sequence={sequence} does not divide both minibatches.size={size} and the "
                f"{steps} steps of each environment in a batch; use "
                f"{f'minibatches.sequence={fitting}' if fitting > 1 else larger}"
            )


def too_long(sequence: int, burn_in: int, size: int, envs: int, values: Values) -> Iterator[str]:
    """Sequences in a replay memory that do not fit what is drawn of them, or what they lie in."""
    line = f"minibatches.sequence={sequence}"
    if sequence <= burn_in:
        yield f"{line} leaves nothing to learn from after minibatches.burn_in={burn_in}; use less of that"
    if sequence > size:
        yield f"{line} is more than minibatches.size={size}, the frames of a minibatch; use more of these"
    frames = find(values, "buffer.storage.max_size")
    if frames and frames < envs * sequence:
        yield f"buffer.storage.max_size={frames} holds no {line} of each of {envs} environments; use more"


def begun_from(values: Values) -> Iterator[str]:
    """What is asked for of another run and cannot be had, whatever that run is."""
    asks = values["init_from"]
    run, parts, which = asks["run"], asks["parts"] or [], asks["checkpoint"]
    if run is None and (parts or which != "best"):
        said = f"init_from.parts={show(parts)}" if parts else f"init_from.checkpoint={which}"
        yield f"{said}: no run is named; add init_from=DIR"
    if run is None:
        return
    if not run:
        yield "init_from= names no run; write init_from=DIR, or init_from=null for none"
    elif not Path(run).exists() and values["resume"] is None:  # a resumed run reads nothing of it
        none = ", or init_from=null for none" if run.lower() == "none" else ""
        yield f"init_from={run}: there is no such folder; give a run's, or one of its checkpoints{none}"
    if run.endswith(".torchrl") and which != "best":
        yield f"init_from.checkpoint={which}: init_from={run} is a checkpoint; leave one of them out"
    learned = set(values["loss"]["networks"].values())
    if lacking := [each for each in parts if each in NETWORKS and each not in learned]:
        there = ", ".join([each for each in NETWORKS if each in learned])
        yield f"init_from.parts={show(parts)}: this run has no {lacking[0]}; its networks are {there}"


def ill_wrapped(values: Values) -> Iterator[str]:
    """Wrappers that are none by name, and those that know what evaluation would not."""
    wrappers = values["env"].get("wrappers")
    if wrappers is None or values["env"]["_target_"] != GYMNASIUM:
        return
    if not isinstance(wrappers, Mapping):
        like = "env.wrappers.time_limit={_target_:gymnasium.wrappers.TimeLimit,max_episode_steps:200}"
        yield f"env.wrappers={show(wrappers)}: should be wrappers by names of yours, as {like}"
        return
    for name, node in wrappers.items():
        line = f"env.wrappers.{name}={show(node)}"
        if node is None:
            yield f"{line}: should be a wrapper; leave it out by ~env.wrappers.{name}"
        elif not (isinstance(node, Mapping) and isinstance(node.get("_target_"), str)):
            yield f"{line}: should have _target_, the path of a wrapper, as gymnasium.wrappers.TimeLimit"
        elif (target := node["_target_"]) in INSTEAD_OF:
            yield f"env.wrappers.{name}._target_={target} {INSTEAD_OF[target]}"


def ill_named(values: Values) -> Iterator[str]:
    """Numbers of ``info`` that are no names, or have one that the log needs itself."""
    given = values["env"].get("info_keys")
    if given is None or values["env"]["_target_"] != GYMNASIUM:
        return
    whole, each = isinstance(given, list), given if isinstance(given, Mapping) else {}
    names = list(given) if whole else list(each)
    if not (whole or each) or not all(isinstance(name, str) and name for name in names):
        like = "[distance], or {distance: mean} for its mean or sum over an episode"
        yield f"env.info_keys={show(given)}: should be a list of names of info, as {like}"
    for name, how in each.items():
        if how not in FOLLOWED:
            yield f"env.info_keys.{name}={show(how)}: should be last, mean or sum"
    for name in names:
        if taken := [f"{room}/{name}" for room in OWN_NUMBERS if name in OWN_NUMBERS[room].split()]:
            yield (
                f"env.info_keys={show(given)}: {' and '.join(taken)} is a number of hydrl's own; let the "
                f"task, or a wrapper, give {name} under another name"
            )


def ill_read(values: Values) -> Iterator[str]:
    """Parts within a network that are none, and readers of an entry that are none."""
    for network, name in ((each, name) for each in NETWORKS for name in WITHIN):
        node = (values[network] or {}).get(name)
        if isinstance(node, Mapping) and "_target_" not in node:
            line = f"{network}.{name}={show(node)}: should have _target_"
            yield f"{line}; {name}.KEY=VALUE sets a key of the one there is" if name != "norm" else line
    for path, node in targets(values):
        if node["_target_"] != "hydrl.parts.networks.encoders.encoder":
            continue
        network = path.partition(".")[0]
        if node.get("reader", "auto") not in READERS and path in map(key_of, words()):  # said in a word
            able = ["own", *["shared"] * (network != "actor" and may_share(values)), *READERS]
            yield f"{path}={node['reader']}: should be {', '.join(able[:-1])} or {able[-1]}"
        for key in (
            each for each in node if each not in ("reader", "features", "channels") and each[0] != "_"
        ):
            if node[key] not in READERS:
                reads = f"what reads the entry {key}: {', '.join(READERS)}"
                yield f"{path}.{key}={show(node[key])}: should be {reads}; pictures alone are pixels"


def at_odds(values: Values) -> Iterator[str]:
    """What each would do by itself, but not together, or not here."""
    folder = Path(values["run_dir"])
    started = (folder / "summary.json").exists() or any(folder.glob("checkpoints/checkpoint-*"))
    fork = forks(values["resume"], folder)
    if (values["resume"] is None or fork) and started:  # a run never writes over another
        there = f"hydra.run.dir={folder} holds a run already"
        yield f"{there}; go on with it by {shlex.quote(f'resume={folder}')}, or choose another"
    collector, module = values["collector"], values["loss"]["module"]
    workers, single = asked(values, "workers"), "sync" not in collector
    if workers and single and collector["_target_"] == "hydrl.parts.experience.collectors.make_collector":
        yield (
            f"collector.num_workers={workers}: collector=single collects in this process; "
            "use collector=multi_sync or collector=multi_async"
        )
    if workers and any(map(running, values["transforms"].values())):
        yield (
            "running statistics of observations or rewards would stay in the workers; "
            "use collector=single, or transforms=normalized init_stats_frames=1_000, "
            "which leaves rewards as they are"
        )
    steps = find(values, "minibatches.n_steps") or 1
    if steps > 1 and from_one_or_another(values) and not asked(values, "sequence"):
        yield (
            f"minibatches.n_steps={steps} sums rewards from batch to batch, and with collector.sync=false a "
            "batch comes from one worker or another; use collector=multi_sync or minibatches.n_steps=1"
        )
    least, greatest = find(values, "actor.v_min"), find(values, "actor.v_max")
    if None not in (least, greatest) and least >= greatest:
        yield f"actor.v_min={least} is not less than actor.v_max={greatest}, the greatest return"
    if module.get("double_dqn") and not module.get("delay_value", True):
        yield "loss.module.double_dqn=true needs a target network; use loss.module.delay_value=true"
    if "gamma" in module and module["_target_"].startswith("torchrl."):
        yield f"loss.module.gamma={module['gamma']}: set loss.value_estimator.gamma instead"
    yield from of_others(values)
    yield from of_no_use(values)
    yield from standardised(values)
    yield from unheard(values)
    yield from forgetful(values)
    if values["cudagraph"] and "Prioritized" in str(values["buffer"]):
        yield "cudagraph=true keeps the priorities inside the graph; use buffer=replay or cudagraph=false"
    yield from passed_over()
    yield from unheeded()
    yield from lacking(values)


def unmet(values: Values) -> Iterator[str]:
    """Opponents that no policy would join, or that could not act as it does."""
    if not values["env"].get("opponents"):
        return
    if asked(values, "memory"):
        yield (
            "env.opponents: earlier policies are asked move by move and remember nothing; use memory=null, "
            "or env.opponents=null, which draws their moves at random"
        )
    if asked(values, "workers"):
        yield (
            "env.opponents: policies join them in the run's own process; use collector=single, or "
            "env.opponents=null, which draws their moves at random"
        )


def standardised(values: Values) -> Iterator[str]:
    """What standardises by a batch that is too small for it, or where probabilities are compared."""
    norms = [group for group in NETWORKS if by_batch((values[group] or {}).get("norm"))]
    if norms and asked(values, "size") == 1:  # one row has no deviation
        yield f"minibatches.size=1: {norms[0]}.norm standardises by the minibatch; use minibatches.size=2"
    if find(values, "loss.value_estimator.average_gae") and values["collector"]["frames_per_batch"] == 1:
        yield (
            "collector.frames_per_batch=1: advantages are standardised by the batch; use "
            "collector.frames_per_batch=2 or loss.value_estimator.average_gae=false"
        )
    if norms and asked(values, "epochs"):
        yield (
            f"{norms[0]}.norm standardises by the minibatch, by which the probability of an action that was "
            f"taken changes; use layers@{norms[0]}=mlp"
        )


def by_batch(norm: Part | None) -> bool:
    """Whether a network's ``norm`` looks at other rows than the one it standardises."""
    return norm is not None and not norm["_target_"].endswith("LayerNorm")


def running(transform: Part) -> bool:
    """Whether a transform updates statistics while training collects."""
    *_, name = transform["_target_"].split(".")
    standing = {"normaliser": "frames", "reward_scaling": "scale"}  # what is given where nothing runs along
    if name in standing:
        return transform.get(standing[name]) is None
    return name in ("VecNorm", "VecNormV2", "RunningNorm", "RunningRewardScaling")


def passed_over() -> Iterator[str]:
    """A choice that was typed, where tuned numbers, which Hydra reads later, bring a part of their own."""
    made, typed = choices_made(), set(map(key_of, words()))
    tuned = made.get("tuned")
    for group, own in content(f"/tuned/{tuned}", sources()).items():
        if group not in typed or not isinstance(own, dict) or "_target_" not in own:
            continue
        choice, target = made.get(group), own["_target_"]
        if content(f"/{group}/{choice}", sources()).get("_target_") != target:
            keys = " or ".join(f"{group}.{key}" for key in own if key != "_target_") or f"{group}._target_"
            has = f"{group}={choice or 'null'} changes nothing: tuned={tuned} brings {target}"
            yield f"{has}; set {keys}, or add tuned=null to leave out all its numbers"


def unheeded() -> Iterator[str]:
    """Tuned numbers that are there and that nothing named, as in a sweep by a sweeper of others."""
    if file := unnamed(choices_made(), sources()):
        yield f"tuned={NOBODY_CHOSE} chooses no numbers here; write tuned={file}, or tuned=null for none"


def of_no_use(values: Values) -> Iterator[str]:
    """A return that no actor is asked for, and a cluster for evaluations that are not played on one."""
    if (asked_for := find(values, "eval.target_return")) is not None and "target_return" not in values[
        "actor"
    ]:
        yield f"eval.target_return={asked_for} is of algo=decision_transformer; use that, or leave it out"
    if (address := find(values, "eval.address")) is None:
        return
    if find(values, "eval.mode") != "ray":
        yield f"eval.address={address} is of eval.mode=ray; use that, or leave it out"
    if values["collector"]["_target_"] == ON_RAY:
        yield f"eval.address={address}: collector=ray has the cluster of both; use collector.address"


def lacking(values: Values) -> Iterator[str]:
    """Packages that are not installed, and a scenario that VMAS does not have."""
    if find(values, "eval.mode") == "ray" and importlib.util.find_spec("ray") is None:
        yield "eval.mode=ray needs a package that is not installed; pip install 'hydrl[ray]'"
    for path, part in targets(values):
        if (package := NEEDED.get(str(part["_target_"]))) is None:
            continue
        if (found := importlib.util.find_spec(package)) is None or found.origin is None:
            asked = env_named(values["task"], part) if path == "env" else path.replace(".", "=")
            asked = asked if "=" in asked else named(path, part)
            extra = "" if package == "wandb" else f"[{package}]"  # which comes with hydrl itself
            yield f"{asked} needs a package that is not installed; pip install 'hydrl{extra}'"
        elif package == "vmas":
            offered = [each.stem for each in (Path(found.origin).parent / "scenarios").rglob("[!_]*.py")]
            if part["scenario"] not in offered:
                yield no_such_choice("env.scenario", part["scenario"], sorted(offered))


def forgetful(values: Values) -> Iterator[str]:
    """What a memory cannot do without."""
    memory, critic = asked(values, "memory"), values["critic"] or {}
    if values["actor"].get("encoder") == "shared":
        yield "actor.encoder=shared is for the critic, which may read by the actor's; use actor.encoder=own"
    for network in (each for each in NETWORKS if each != "actor"):
        node = values[network] or {}
        if node.get("memory") and judges(values):
            yield f"{network}.memory: it has none of its own; use critic.encoder=shared, the actor's"
        if node.get("encoder") == "shared" and not may_share(values):
            told = "a critic that judges states, or SAC's without a memory"
            yield f"{network}.encoder=shared is for {told}; use {network}.encoder=own"
    if asked(values, "burn_in") is not None:
        yield from in_sequences(values)
    if not memory:
        return
    units = {each: memory[each] for each in ("lstm", "gru") if each in memory}
    if len(units) > 1:
        yield f"actor.memory={show(units)}: give one of them"
    if not asked(values, "sequence"):
        able = "minibatches.sequence=32" if asked(values, "epochs") else "minibatches=sequences"
        yield f"actor.memory={show(units or memory)} learns from whole sequences; use {able}"
    if asked(values, "sequence") == 1:
        yield "minibatches.sequence=1: of single steps a memory learns nothing; use 2 or more"
    shared = critic.get("encoder") == "shared" or "memory" in (critic.get("in_keys") or [])
    if shared and find(values, "loss.value_estimator.deactivate_vmap") is False:
        needs = "loss.value_estimator.deactivate_vmap=true"
        yield f"critic.encoder=shared reads the actor's memory; use {needs}, or leave it out"


def in_sequences(values: Values) -> Iterator[str]:
    """What goes wrong in silence where a replay memory holds sequences."""
    steps, several = find(values, "minibatches.n_steps"), "n_steps" in values["loss"]["module"]
    loss = named("loss", values["loss"]["module"])
    if not asked(values, "memory"):
        able = values["fits"].get("minibatches", ["replay"])
        other = "minibatches=replay" if "replay" in able else "another algorithm"
        yield f"minibatches=sequences is for a memory; use memory=lstm, or {other}"
    if not several and steps != 1:
        yield f"minibatches.n_steps={steps}: over sequences {loss} bootstraps from the next step; use 1"
    if not several and asked(values, "sequence") == 1:
        yield f"minibatches.sequence=1: {loss} bootstraps from the next step of a sequence; use 2 or more"
    if from_one_or_another(values):
        yield (
            "collector.sync=false: a batch comes from one worker or another, and sequences go on from batch "
            "to batch; use collector=multi_sync"
        )


def of_others(values: Values) -> Iterator[str]:
    """Frames that another policy acted in, where probabilities are compared with the policy's own."""
    if not asked(values, "epochs"):
        return
    if values["collector"]["_target_"] == "hydrl.run.dataset.DataSet":
        yield (
            f"collector=dataset gives what others did, and algo={values['algo']} learns from its own "
            "policy's frames alone; use algo=bc, or another that learns from data"
        )
    if frames := find(values, "collector.init_random_frames"):
        yield (
            f"collector.init_random_frames={frames}: frames that another policy acted in teach nothing here, "
            "where probabilities are compared with the policy's own; use collector.init_random_frames=0"
        )


def from_one_or_another(values: Values) -> bool:
    """Whether a batch comes from one of several workers, whoever is done first."""
    return find(values, "collector.sync") is False and (asked(values, "workers") or 1) > 1


def judges(values: Values) -> bool:
    """Whether the critic judges states beside an actor, and not actions."""
    return values["loss"]["networks"].get("critic_network") == "critic"


def may_share(values: Values) -> bool:
    """Whether the critic may have the actor's encoder."""
    reads_once = values["loss"]["module"].get("_target_") == "hydrl.parts.read_once.SACLoss"
    return judges(values) or (reads_once and not asked(values, "memory"))


def unheard(values: Values) -> Iterator[str]:
    """Networks that the loss asks for and nobody chose, or that were chosen and go nowhere."""
    networks = values["loss"]["networks"]
    others = [each["loss"]["networks"] for each in values.get("before", {}).values()]
    learned = {group for each in (networks, *others) for group in each.values()}
    for group in NETWORKS:
        there = values[group] is not None
        if there == (group in learned):
            continue
        every: Sequence[str | None] = [None] if there else choices(CONFIGS / group)
        able = [each for each in values["fits"].get(group, every) if there == (each is None)]
        algorithms = [] if able else algorithms_with(networks, values)
        reads = " and ".join(f"{part} as {argument}" for argument, part in networks.items())
        loss = named("loss", values["loss"]["module"])
        line = f"{named(group, values[group])} does not fit {loss}, which reads {reads}"
        yield f"{line}; {use('algo', algorithms) if algorithms else use(group, able or every)}"


def algorithms_with(networks: Values, values: Values) -> list[str]:
    """The algorithms for the same kinds of actions whose losses read the same networks."""
    said = {name: content(f"/algo/{name}") for name in choices(CONFIGS / "algo")}
    return [
        name
        for name, each in said.items()
        if {*each["action_spaces"]} & {*values["action_spaces"]}
        and networks in [content(f"/loss/{loss}").get("networks") for loss in each["fits"]["loss"]]
    ]


def use(group: str, able: Sequence[str | None]) -> str:
    """The choices that would do, for the end of a sentence."""
    names = [each or "null" for each in able]
    if len(names) > 3:
        return f"use {group}={', '.join(names[:-1])} or {names[-1]}"
    return "use " + " or ".join(f"{group}={name}" for name in names)


def named(group: str, node: Part | None) -> str:
    """The choice that ``node`` is, as it is typed; a part that is no choice by what it is built from."""
    alike = chosen(group, node) or [(node or {}).get("_target_", "")]
    return f"{group}={min(alike, key=len)}"  # a loss of several agents has the longer name


def env_named(task: str, env: Part) -> str:
    """The environment, as it is typed."""
    said = (each for each in ("id", "scenario", "_target_") if env.get(each) == task)
    key = None if task in choices(CONFIGS / "env") else next(said, None)
    return f"env.{key}={task}" if key else f"env={task}"


def chosen(group: str, node: Part | None) -> list[str]:
    """The choices of a group that ``node`` may be: what was typed, where that is what it is built from.

    Without any it is a part of one's own.
    """
    if node is None:
        return ["null"]
    wanted = {each["_target_"] for path, each in targets(node) if path not in WITHIN}

    def gives(name: str) -> bool:
        return {each["_target_"] for _, each in targets(content(f"/{group}/{name}"))} == wanted

    known = choices(CONFIGS / group)
    typed = choices_made().get(group)
    if typed in known and gives(typed):
        return [typed]
    own = [typed] if typed and typed not in known else []
    return [*own, *(name for name in known if gives(name))]
