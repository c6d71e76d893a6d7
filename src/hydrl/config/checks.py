"""Checks of a configuration before anything is built, and those of the run as a whole.

Ranges are in :mod:`hydrl.config.ranges`, combinations of options in :mod:`hydrl.config.compatibility`,
environments in :mod:`hydrl.config.tasks`, networks in :mod:`hydrl.config.networks`.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from hydrl.config.call_checks import check_limits, check_signatures
from hydrl.config.compatibility import (
    incompatible_options,
    mislabelled_env,
    unmet_requirements,
    unused_networks,
)
from hydrl.config.networks import (
    encoder_mistakes,
    has_async_workers,
    sequence_mistakes,
    shared_encoder_mistakes,
    unread_model,
)
from hydrl.config.overrides import chosen_options, is_forked, key_of, typed_words
from hydrl.config.ranges import value_conflicts
from hydrl.config.schema import NETWORKS, QUANTITIES, Node, Values, quantity
from hydrl.config.suggestions import explain_missing, without_copies
from hydrl.config.tasks import info_key_mistakes, missing_packages, wrapper_mistakes
from hydrl.config.tree import find, read_option, show
from hydrl.config.tuned import AUTO_PRESET, find_preset
from hydrl.config.user_dirs import option_folders
from hydrl.errors import ConfigError, UserError

Rule = Callable[[Values], Iterator[str]]  # messages of what is wrong


def check(values: Values, limits: Mapping[str, str]) -> None:
    """Runs all checks of a whole configuration and its :func:`limits <hydrl.config.ranges.take_limits>`.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    if mistakes := check_limits(values, limits):
        raise ConfigError(without_copies(mistakes, values))
    for name in ("frames", "envs"):  # train.py asks every collector for them
        if quantity(values, name) is None:
            raise UserError(explain_missing(QUANTITIES[name]))
    of_options: list[Rule] = [
        unmet_requirements,
        incompatible_options,
        partial(value_conflicts, limits=limits),
    ]
    for rule in (*of_options, *COMPARISONS):
        for message in rule(values):
            raise UserError(message)
    check_signatures(values)


def init_from_mistakes(values: Values) -> Iterator[str]:
    """Mistakes in ``init_from``."""
    asks = values["init_from"]
    run, parts, which = asks["run"], asks["parts"] or [], asks["checkpoint"]
    if run is None and (parts or which != "best"):
        setting = f"init_from.parts={show(parts)}" if parts else f"init_from.checkpoint={which}"
        yield f"{setting}: no run is named. Add init_from=DIR."
    if run is None:
        return
    if not run:
        yield "init_from=: no run is named. Write init_from=DIR, or init_from=null for none."
    elif not Path(run).exists() and values["resume"] is None:  # a resumed run reads nothing of it
        none = ", or init_from=null for none" if run.lower() == "none" else ""
        yield f"init_from={run}: no such folder. Write a run's, or one of its checkpoints{none}."
    if run.endswith(".torchrl") and which != "best":
        yield f"init_from.checkpoint={which}: init_from={run} is a checkpoint. Leave one of them out."
    learned = set(values["loss"]["networks"].values())
    if lacking := [part for part in parts if part in NETWORKS and part not in learned]:
        available = ", ".join([network for network in NETWORKS if network in learned])
        yield f"init_from.parts={show(parts)}: this run has no {lacking[0]}. Its networks are {available}."


def existing_run(values: Values) -> Iterator[str]:
    """A run folder that holds a run already, which no other run writes over."""
    folder = Path(values["run_dir"])
    started = (folder / "summary.json").exists() or any(folder.glob("checkpoints/checkpoint-*"))
    if (values["resume"] is None or is_forked(values["resume"], folder)) and started:
        problem = f"hydra.run.dir={folder}: holds a run already"
        yield f"{problem}. Resume it by {shlex.quote(f'resume={folder}')}, or choose another folder."


def worker_mistakes(values: Values) -> Iterator[str]:
    """Statistics and sums of rewards that do not work across worker processes."""
    if quantity(values, "workers") and any(map(has_running_statistics, values["transforms"].values())):
        yield (
            "transforms: running statistics of observations or rewards would stay in the workers. "
            "Use collector=single, or transforms=normalized init_stats_frames=1_000, "
            "which leaves rewards as they are."
        )
    steps = find(values, "minibatches.n_steps") or 1
    if steps > 1 and has_async_workers(values) and not quantity(values, "sequence"):
        yield (
            f"minibatches.n_steps={steps}: rewards are summed from batch to batch, and with "
            "collector.sync=false a batch comes from one worker or another. Use collector=multi_sync or "
            "minibatches.n_steps=1."
        )


def loss_mistakes(values: Values) -> Iterator[str]:
    """Arguments of a loss that conflict with each other or with the batch."""
    module = values["loss"]["module"]
    if module.get("double_dqn") and not module.get("delay_value", True):
        yield "loss.module.double_dqn=true: needs a target network. Use loss.module.delay_value=true."
    if "gamma" in module and module["_target_"].startswith("torchrl."):
        gamma = module["gamma"]
        yield f"loss.module.gamma={gamma}: no such key. Write loss.value_estimator.gamma={gamma}."
    if find(values, "loss.value_estimator.average_gae") and values["collector"]["frames_per_batch"] == 1:
        yield (
            "collector.frames_per_batch=1: advantages are normalized over the batch. Use "
            "collector.frames_per_batch=2 or loss.value_estimator.average_gae=false."
        )


def unused_eval_keys(values: Values) -> Iterator[str]:
    """Keys of ``eval`` that nothing reads."""
    if (asked_for := find(values, "eval.target_return")) is not None and "target_return" not in values[
        "actor"
    ]:
        yield f"eval.target_return={asked_for}: is of algo=decision_transformer. Use that, or leave it out."
    if (address := find(values, "eval.address")) is not None and find(values, "eval.backend") != "ray":
        yield f"eval.address={address}: is of eval.backend=ray. Use that, or leave it out."


def has_running_statistics(transform: Node) -> bool:
    """Whether a transform updates statistics during training."""
    *_, name = transform["_target_"].split(".")
    standing = {"normalizer": "frames", "reward_scaling": "scale"}  # what is given where nothing runs along
    if name in standing:
        return transform.get(standing[name]) is None
    return name in ("VecNorm", "VecNormV2", "RunningNorm", "RunningRewardScaling")


def overridden_choices(_: Values) -> Iterator[str]:
    """Options on the command line that a tuned preset replaces by a component of its own."""
    options, typed = chosen_options(), set(map(key_of, typed_words()))
    tuned = options.get("tuned")
    for group, own in read_option(f"/tuned/{tuned}", option_folders()).items():
        if group not in typed or not isinstance(own, dict) or "_target_" not in own:
            continue
        choice, target = options.get(group), own["_target_"]
        if read_option(f"/{group}/{choice}", option_folders()).get("_target_") != target:
            keys = " or ".join(f"{group}.{key}" for key in own if key != "_target_") or f"{group}._target_"
            has = f"{group}={choice or 'null'}: changes nothing, for tuned={tuned} sets {target}"
            yield f"{has}. Set {keys}, or add tuned=null to leave out the preset."


def ignored_presets(_: Values) -> Iterator[str]:
    """Tuned presets that another sweeper did not choose."""
    if file := find_preset(chosen_options(), option_folders()):
        yield f"tuned={AUTO_PRESET}: chooses no preset here. Write tuned={file}, or tuned=null for none."


# What compares the values of several keys, or reads the command line and this machine. Everything else on
# which options go together stands in the options' own YAML.
COMPARISONS: tuple[Rule, ...] = (
    mislabelled_env,
    init_from_mistakes,
    wrapper_mistakes,
    info_key_mistakes,
    encoder_mistakes,
    existing_run,
    worker_mistakes,
    loss_mistakes,
    unused_eval_keys,
    unused_networks,
    unread_model,
    shared_encoder_mistakes,
    sequence_mistakes,
    overridden_choices,
    ignored_presets,
    missing_packages,
)
