"""Compatibility of options: the algorithm, its loss, networks and other components."""

import re
from collections.abc import Iterator, Mapping, Sequence

from hydrl.config import CONFIGS
from hydrl.config.describe import advise_options, give_reason, matching_options, name_component, name_env
from hydrl.config.overrides import chosen_options
from hydrl.config.schema import NETWORKS, RULES, Values
from hydrl.config.signatures import targets
from hydrl.config.suggestions import join_or
from hydrl.config.tree import find, option_names, options_with_key, read_option, show

COMPATIBILITY_RULES = {"compatible_with", "requires"}
# Requirements that are no keys; most are checked once the environment is made.
CHECKED_LATER = ("action_spaces", "agent_groups", "package")


def with_rules(values: Values) -> Iterator[tuple[str, Values]]:
    """All nodes with rules, ``compatible_with`` and ``requires``, by their names in messages."""
    loss = values["loss"]
    yield f"algo={values['algo']}", {"compatible_with": values["compatible_with"]}
    yield name_component("loss", loss["module"]), {"compatible_with": loss["compatible_with"]}
    yield loss["module"]["_target_"].rpartition(".")[2], {"requires": loss.get("requires", {})}
    for path, node in targets(values):
        if COMPATIBILITY_RULES & node.keys():
            env = name_env(values["task"], node) if path == "env" else ""
            yield env or (name_component(path, node) if (CONFIGS / path).is_dir() else path), node


def incompatible_options(values: Values) -> Iterator[str]:
    """Components that the algorithm, its loss or another component cannot work with."""
    for label, node in with_rules(values):
        rules = node.get("compatible_with", {})
        for group, options in rules.items():
            if group == "because":
                continue
            names, able = matching_options(group, values[group]), [option or "null" for option in options]
            here = {"null", *option_names(CONFIGS / group)}
            # A component of one's own is taken at its word, unless the rule names one of one's own too.
            own = not set(names) & here and set(able) <= here
            if names and not own and not set(names) & set(able):
                unread = " data=null" if "mixed" in names and "replay" in able and values["data"] else ""
                why = give_reason(rules, group)
                advice = advise_options(group, able) + unread
                yield f"{group}={names[0]}: does not go with {label}{why}. {advice}."


def mislabelled_env(values: Values) -> Iterator[str]:
    """An environment whose id is that of another option."""
    task, env = values["task"], values["env"]
    # A scenario of VMAS names its task, and may be called as a task of others is.
    # So may one of a family's, which are called by their ids.
    if task in option_names(CONFIGS / "env") and task != env.get("scenario") and not env.get("make"):
        own = read_option(f"/env/{task}")["env"]
        of_id = "pettingzoo" if own["_target_"].endswith("pettingzoo_env") else "gym"
        for key, general in (("_target_", "custom"), ("id", of_id), ("scenario", "vmas")):
            if env.get(key) != own.get(key):
                setting, value = f"env.{key}={env.get(key)}", str(env.get(key))
                able = options_with_key(f"env.{key}", value) if key != "_target_" else []
                able += [
                    f"env={value}" if value in option_names(CONFIGS / "env") else f"env={general} {setting}"
                ]
                problem = f"env={task} is {own.get(key)}, with its hyperparameters"
                yield f"{setting}: {problem}. Use {join_or(able)}."


def unmet_requirements(values: Values) -> Iterator[str]:
    """Values of other keys that a component or the loss cannot work with."""
    for label, node in with_rules(values):
        rules = node.get("requires", {})
        for key in rules.keys() - {"because", *CHECKED_LATER}:
            value = find(values, key)
            least = re.fullmatch(r">= (\d+)", str(rules[key]))
            if value >= int(least[1]) if least and value is not None else value in rules[key]:
                continue
            if isinstance(value, Mapping):  # a component, as it was chosen, or one's own by its keys
                own = {
                    name: rule
                    for name, rule in value.items()
                    if rule is not None and name[0] != "_" and name not in RULES
                }
                typed = chosen_options().get(key)
                value = typed if typed in option_names(CONFIGS / key) else own
            able = f"{key}={least[1]} or more" if least else f"{key}={show(rules[key][0])}"
            yield f"{key}={show(value)}: does not go with {label}{give_reason(rules, key)}. Use {able}."


def unused_networks(values: Values) -> Iterator[str]:
    """Networks that the loss needs and that are null, or that no loss reads."""
    networks = values["loss"]["networks"]
    others = [extra["loss"]["networks"] for extra in values.get("extra_learners", {}).values()]
    learned = {group for names in (networks, *others) for group in names.values()}
    for group in NETWORKS:
        is_chosen = values[group] is not None
        if is_chosen == (group in learned):
            continue
        every: Sequence[str | None] = [None] if is_chosen else option_names(CONFIGS / group)
        able = [
            option for option in values["compatible_with"].get(group, every) if is_chosen == (option is None)
        ]
        algorithms = [] if able else algorithms_with(networks, values)
        reads = " and ".join(f"{network} as {argument}" for argument, network in networks.items())
        loss = name_component("loss", values["loss"]["module"])
        line = f"{name_component(group, values[group])}: does not go with {loss}, which reads {reads}"
        advice = advise_options("algo", algorithms) if algorithms else advise_options(group, able or every)
        yield f"{line}. {advice}."


def algorithms_with(networks: Values, values: Values) -> list[str]:
    """Algorithms for the same action spaces whose losses read the same networks."""
    contents = {name: read_option(f"/algo/{name}") for name in option_names(CONFIGS / "algo")}
    return [
        name
        for name, algorithm in contents.items()
        if {*algorithm["action_spaces"]} & {*values["action_spaces"]}
        and networks
        in [read_option(f"/loss/{loss}").get("networks") for loss in algorithm["compatible_with"]["loss"]]
    ]
