"""Classes and functions passed to ``hydrl.train``, as options that Hydra composes.

Hydra and a run's folder know components by dotted names. A class of a module has its own; one that only this
process has, as of a notebook, gets a name in this module, which another process does not find.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from hydra.core.config_store import ConfigStore, ConfigStoreWithProvider
from omegaconf import DictConfig, open_dict

from hydrl.config import CONFIGS
from hydrl.config.migrations import new_key
from hydrl.config.overrides import to_override
from hydrl.config.signatures import accepted_parameters
from hydrl.errors import UserError


def to_overrides(keywords: Mapping[str, Any]) -> list[str]:
    """Converts keywords of :func:`hydrl.train` to overrides of the command line.

    A dictionary is several keys: ``eval={"episodes": 5}`` is ``eval.episodes=5``. A class or function is an
    option of its group.

    Raises:
        UserError: for a value that no configuration can hold, and for two classes or functions of one name.
    """
    overrides, by_name = [], dict[str, Any]()
    for value in classes_in(keywords):
        if by_name.setdefault(name := dotted_name(value), value) is not value:
            raise UserError(f"{name.rpartition('.')[2]}: two classes or functions of this name. Rename one.")
    for key, value in keywords.items():
        if isinstance(value, Mapping):
            entries = {f"{key}.{name}": replace_by_names(entry) for name, entry in value.items()}
            overrides += [f"{name}={to_override(entry, name)}" for name, entry in entries.items()]
        elif callable(value):
            overrides.append(f"{key}={add_option(new_key(key), value)}")
        else:
            overrides.append(f"{key}={to_override(getattr(value, 'folder', value), key)}")  # of a run
    return overrides


def classes_in(value: Any) -> Iterator[Callable[..., Any]]:
    """The classes and functions in nested keywords."""
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from classes_in(entry)
    elif callable(value) and hasattr(value, "__name__"):
        yield value


def replace_by_names(value: Any) -> Any:
    """Replaces classes and functions in nested keywords by their dotted names."""
    if isinstance(value, Mapping):
        return {key: replace_by_names(entry) for key, entry in value.items()}
    return dotted_name(value) if callable(value) else value


def add_option(group: str, make: Callable[..., Any]) -> str:
    """Adds a class or function to the options of its group; returns its name there.

    Raises:
        UserError: if there is no such group, or it has one of that name.
    """
    name = getattr(make, "__name__", "").strip("<>")
    if group == "logger" or not (CONFIGS / group).is_dir() or not name:
        raise UserError(
            f"{group}={make!r}: not a group of components. Pass a class or function as env, actor, critic, …"
        )
    if (CONFIGS / group / f"{name}.yaml").exists():
        raise UserError(f"{group}={name}: hydrl has an option of this name. Rename yours.")
    if group == "env":
        node: dict[str, Any] = {"task": name, "env": env_node(name, make)}
    else:
        node = {group: {"_target_": dotted_name(make)}}
    with ConfigStoreWithProvider(__name__) as store:
        store.store(name, node, group, "_global_")
    return name


def refresh() -> None:
    """Replaces classes and functions that have been redefined since, as in a later cell of a notebook."""
    for id, spec in [*gymnasium.registry.items()]:
        if id.startswith("hydrl/") and latest(spec.entry_point) is not spec.entry_point:
            env_node(id.removeprefix("hydrl/"), latest(spec.entry_point))
    for make in [*vars(sys.modules[__name__]).values()]:
        if latest(make) is not make:
            dotted_name(latest(make))


def latest(make: Any) -> Any:
    """The class or function that now has this name in its module, or the same."""
    if not inspect.isclass(make) and not inspect.isfunction(make):
        return make
    now = getattr(sys.modules.get(make.__module__), make.__qualname__, make)
    return now if type(now) is type(make) and now.__module__ == make.__module__ else make


def env_node(name: str, make: Callable[..., Any]) -> dict[str, Any]:
    """The configuration of an environment; Gymnasium's are registered as ``hydrl/NAME``."""
    if isinstance(make, type) and issubclass(make, gymnasium.Env):
        gymnasium.registry.pop(f"hydrl/{name}", None)  # of an earlier cell
        gymnasium.register(f"hydrl/{name}", entry_point=make)
        return {"_target_": "hydrl.envs.gymnasium_env", "id": f"hydrl/{name}"}
    return {"_target_": dotted_name(make)}


def dotted_name(make: Callable[..., Any]) -> str:
    """The dotted name of a class or function, in its own module or else in this one."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
    if module != "__main__" and "." not in name and getattr(sys.modules.get(module), name, None) is make:
        return f"{module}.{name}"
    setattr(sys.modules[__name__], make.__name__, make)
    return f"{__name__}.{make.__name__}"


def process_only_options(choices: Mapping[str, Any]) -> list[str]:
    """The options of a run that only this process has, as overrides."""
    store: Mapping[str, Any] = ConfigStore.instance().repo
    nodes = {group: store.get(group, {}).get(f"{name}.yaml") for group, name in choices.items()}
    return [
        f"{group}={choices[group]}" for group, node in nodes.items() if node and node.provider == __name__
    ]


def drop_unaccepted(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Removes keys that files set for another option of the group and that the function does not accept.

    Args:
        cfg: composed.
        typed: keys that stay, and are refused later.
    """
    for group, node in [(str(key), node) for key, node in cfg.items()]:
        name = str(node.get("_target_")).removeprefix(f"{__name__}.") if isinstance(node, DictConfig) else ""
        if name not in globals():
            continue
        parameters, open_ended = accepted_parameters(globals()[name])
        accepted = {"_target_", *parameters, *(key.removeprefix(f"{group}.") for key in typed)}
        if dropped := [] if open_ended else [str(key) for key in node if key not in accepted]:
            print(f"{group}: {name} does not accept {', '.join(dropped)}; dropped")
        with open_dict(cfg):
            for key in dropped:
                del node[key]
