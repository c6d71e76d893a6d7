"""Checks of environments: wrappers, info keys and packages."""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from hydrl.config.describe import give_reason, name_component, name_env
from hydrl.config.schema import Values
from hydrl.config.signatures import targets
from hydrl.config.suggestions import no_such_choice
from hydrl.config.tree import option_target, read_option, show
from hydrl.limits import Reduction

# Reductions of an info key over an episode, and names of metrics that info keys cannot have.
REDUCTIONS = get_args(Reduction)

OWN_METRICS = {
    "train": "return episodes episode_length reward cut_short q_value explained_variance learning_rate "
    "epsilon sigma",
    "eval": "return_mean return_std return_min return_max length_mean length_min length_max episodes "
    "cut_episodes",
}

# Wrappers of Gymnasium's that do not work here, and what to use instead.
WRAPPER_REPLACEMENTS = {
    "gymnasium.wrappers.NormalizeObservation": "its statistics would be missing in evaluation "
    "and a saved policy. Use transforms=running_norm, or transforms=normalized",
    "gymnasium.wrappers.NormalizeReward": "returns would be those of scaled rewards. Use "
    "transforms=normalized_rewards",
    "gymnasium.wrappers.Autoreset": "resets inside of step, where a run loses how an episode ends. Leave it "
    "out: episodes begin anew without it",
}


def wrapper_mistakes(values: Values) -> Iterator[str]:
    """Mistakes in ``env.wrappers``."""
    wrappers = values["env"].get("wrappers")
    if wrappers is None or values["env"]["_target_"] != option_target("env/gym"):
        return
    if not isinstance(wrappers, Mapping):
        like = "env.wrappers.time_limit={_target_:gymnasium.wrappers.TimeLimit,max_episode_steps:200}"
        yield f"env.wrappers={show(wrappers)}: should be wrappers by names of yours. Write {like}."
        return
    for name, node in wrappers.items():
        line = f"env.wrappers.{name}={show(node)}"
        if node is None:
            yield f"{line}: should be a wrapper. Write ~env.wrappers.{name}."
        elif not (isinstance(node, Mapping) and isinstance(node.get("_target_"), str)):
            yield f"{line}: should have _target_, such as gymnasium.wrappers.TimeLimit."
        elif (target := node["_target_"]) in WRAPPER_REPLACEMENTS:
            yield f"env.wrappers.{name}._target_={target}: {WRAPPER_REPLACEMENTS[target]}."


def info_key_mistakes(values: Values) -> Iterator[str]:
    """Mistakes in ``env.info_keys``."""
    info_keys = values["env"].get("info_keys")
    if info_keys is None or values["env"]["_target_"] != option_target("env/gym"):
        return
    whole, reductions = isinstance(info_keys, list), info_keys if isinstance(info_keys, Mapping) else {}
    names = list(info_keys) if whole else list(reductions)
    if not (whole or reductions) or not all(isinstance(name, str) and name for name in names):
        like = "[distance], or {distance: mean} for its mean or sum over an episode"
        yield f"env.info_keys={show(info_keys)}: should be a list of names in info. Write {like}."
    for name, how in reductions.items():
        if how not in REDUCTIONS:
            yield f"env.info_keys.{name}={show(how)}: should be last, mean, sum or max."
    for name in names:
        if taken := [f"{room}/{name}" for room in OWN_METRICS if name in OWN_METRICS[room].split()]:
            yield (
                f"env.info_keys={show(info_keys)}: {' and '.join(taken)} is a metric of hydrl's own. Let the "
                f"environment, or a wrapper, give {name} under another name."
            )


def missing_packages(values: Values) -> Iterator[str]:
    """Missing packages, and unknown scenarios of VMAS."""
    backend = read_option("/eval_backends").get(values["eval"]["backend"], {})
    for path, component in [*targets(values), (f"eval.backend={values['eval']['backend']}", backend)]:
        rules = component.get("requires", {})
        if (package := rules.get("package")) is None:
            continue
        if (spec := importlib.util.find_spec(package)) is None or spec.origin is None:
            setting = name_env(values["task"], component) if path == "env" else path
            setting = re.sub(r"^(\w+)\.(\w+)$", r"\1=\2", setting)  # logger.wandb
            setting = setting if "=" in setting else name_component(path, component)
            extra = "" if package == "wandb" else f"[{package}]"  # which comes with hydrl itself
            why = give_reason(rules, "package")
            line = f"{setting}: {package}{why}{',' * bool(why)} is not installed"
            yield f"{line}. Run pip install 'hydrl{extra}'."
        elif package == "vmas":
            offered = [file.stem for file in (Path(spec.origin).parent / "scenarios").rglob("[!_]*.py")]
            if component["scenario"] not in offered:
                yield no_such_choice("env.scenario", component["scenario"], sorted(offered))
