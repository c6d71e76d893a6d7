"""What a configuration must satisfy before anything is built: ranges, what fits what, what is installed.

The cheapest checks come first; PyTorch is imported by the last. Numbers are looked at in
:mod:`hydrl.config.ranges`, parts that fit each other in :mod:`hydrl.config.compatibility`, environments in
:mod:`hydrl.config.tasks`, networks in :mod:`hydrl.config.networks`; here is what is of the run as a whole.
"""

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from hydrl.config.call_checks import check_limits, check_signatures
from hydrl.config.compatibility import incompatible, mislabelled, unheard, unmet_requirements
from hydrl.config.networks import forgetful, from_one_or_another, ill_read, standardised
from hydrl.config.overrides import choices_made, forks, key_of, words
from hydrl.config.ranges import too_large
from hydrl.config.schema import NETWORKS, QUANTITIES, Part, Values, quantity
from hydrl.config.suggestions import missing, without_copies
from hydrl.config.tasks import ill_named, ill_wrapped, lacking
from hydrl.config.tree import content, find, show
from hydrl.config.tuned import NOBODY_CHOSE, unnamed
from hydrl.config.user_dirs import sources
from hydrl.errors import ConfigError, UserError


def check(values: Values, limits: Mapping[str, str]) -> None:
    """Everything below, cheapest first.

    Args:
        values: the whole configuration.
        limits: see :func:`hydrl.config.ranges.take_limits`.

    Raises:
        UserError: naming the key, the value and what would do.
    """
    if mistakes := dict(check_limits(values, limits)):
        raise ConfigError(without_copies(mistakes, values))
    for name in ("frames", "envs"):  # train.py asks every collector for them
        if quantity(values, name) is None:
            raise UserError(missing(QUANTITIES[name]))
    for rule in (
        unmet_requirements,
        incompatible,
        mislabelled,
        partial(too_large, limits=limits),
        begun_from,
        ill_wrapped,
        ill_named,
        ill_read,
        at_odds,
    ):
        for message in rule(values):
            raise UserError(message)
    check_signatures(values)


def begun_from(values: Values) -> Iterator[str]:
    """What is asked for of another run and cannot be had, whatever that run is."""
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


def at_odds(values: Values) -> Iterator[str]:
    """What each would do by itself, but not together, or not here."""
    folder = Path(values["run_dir"])
    started = (folder / "summary.json").exists() or any(folder.glob("checkpoints/checkpoint-*"))
    fork = forks(values["resume"], folder)
    if (values["resume"] is None or fork) and started:  # a run never writes over another
        problem = f"hydra.run.dir={folder}: holds a run already"
        yield f"{problem}. Resume it by {shlex.quote(f'resume={folder}')}, or choose another folder."
    module, workers = values["loss"]["module"], quantity(values, "workers")
    if workers and any(map(running, values["transforms"].values())):
        yield (
            "transforms: running statistics of observations or rewards would stay in the workers. "
            "Use collector=single, or transforms=normalized init_stats_frames=1_000, "
            "which leaves rewards as they are."
        )
    steps = find(values, "minibatches.n_steps") or 1
    if steps > 1 and from_one_or_another(values) and not quantity(values, "sequence"):
        yield (
            f"minibatches.n_steps={steps}: rewards are summed from batch to batch, and with "
            "collector.sync=false a batch comes from one worker or another. Use collector=multi_sync or "
            "minibatches.n_steps=1."
        )
    if module.get("double_dqn") and not module.get("delay_value", True):
        yield "loss.module.double_dqn=true: needs a target network. Use loss.module.delay_value=true."
    if "gamma" in module and module["_target_"].startswith("torchrl."):
        gamma = module["gamma"]
        yield f"loss.module.gamma={gamma}: no such key. Write loss.value_estimator.gamma={gamma}."
    yield from of_no_use(values)
    yield from standardised(values)
    yield from unheard(values)
    yield from forgetful(values)
    if values["cudagraph"] and "Prioritized" in str(values["buffer"]):
        yield "cudagraph=true: keeps the priorities inside the graph. Use buffer=replay or cudagraph=false."
    yield from passed_over()
    yield from unheeded()
    yield from lacking(values)


def of_no_use(values: Values) -> Iterator[str]:
    """A return that no actor is asked for, and a cluster for evaluations that are not played on one."""
    if (asked_for := find(values, "eval.target_return")) is not None and "target_return" not in values[
        "actor"
    ]:
        yield f"eval.target_return={asked_for}: is of algo=decision_transformer. Use that, or leave it out."
    if (address := find(values, "eval.address")) is not None and find(values, "eval.backend") != "ray":
        yield f"eval.address={address}: is of eval.backend=ray. Use that, or leave it out."


def running(transform: Part) -> bool:
    """Whether a transform updates statistics while training collects."""
    *_, name = transform["_target_"].split(".")
    standing = {"normalizer": "frames", "reward_scaling": "scale"}  # what is given where nothing runs along
    if name in standing:
        return transform.get(standing[name]) is None
    return name in ("VecNorm", "VecNormV2", "RunningNorm", "RunningRewardScaling")


def passed_over() -> Iterator[str]:
    """A choice that was typed, where tuned numbers, which Hydra reads later, bring a part of their own."""
    options, typed = choices_made(), set(map(key_of, words()))
    tuned = options.get("tuned")
    for group, own in content(f"/tuned/{tuned}", sources()).items():
        if group not in typed or not isinstance(own, dict) or "_target_" not in own:
            continue
        choice, target = options.get(group), own["_target_"]
        if content(f"/{group}/{choice}", sources()).get("_target_") != target:
            keys = " or ".join(f"{group}.{key}" for key in own if key != "_target_") or f"{group}._target_"
            has = f"{group}={choice or 'null'}: changes nothing, for tuned={tuned} sets {target}"
            yield f"{has}. Set {keys}, or add tuned=null to leave out the preset."


def unheeded() -> Iterator[str]:
    """Tuned numbers that are there and that nothing named, as in a sweep by a sweeper of others."""
    if file := unnamed(choices_made(), sources()):
        yield f"tuned={NOBODY_CHOSE}: chooses no preset here. Write tuned={file}, or tuned=null for none."
