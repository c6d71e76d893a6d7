"""What is handed over in Python as it is: classes of a notebook, as the choices that Hydra composes.

Hydra and a run's folder know parts by dotted names. A class that a module has goes by its own; one that only
this process has goes by a name in this module, which another process does not find.
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
from hydrl.config.overrides import literal
from hydrl.config.signatures import accepted_parameters
from hydrl.errors import UserError


def words(given: Mapping[str, Any]) -> list[str]:
    """Keywords of :func:`hydrl.train` as words of the command line.

    A dictionary is several keys, ``eval={"episodes": 5}`` is ``eval.episodes=5``; a class or function is
    the choice of its group.

    Raises:
        UserError: for a value that no configuration can hold, and for two classes or functions of one name.
    """
    found, named = [], dict[str, Any]()
    for value in handed_over(given):
        if named.setdefault(name := dotted(value), value) is not value:
            raise UserError(f"{name.rpartition('.')[2]}: two classes or functions have that name; rename one")
    for key, value in given.items():
        if isinstance(value, Mapping):
            within = {f"{key}.{name}": by_name(each) for name, each in value.items()}
            found += [f"{name}={literal(each, name)}" for name, each in within.items()]
        elif callable(value):
            found.append(f"{key}={choice(new_key(key), value)}")
        else:
            found.append(f"{key}={literal(getattr(value, 'folder', value), key)}")  # of a run
    return found


def handed_over(value: Any) -> Iterator[Callable[..., Any]]:
    """The classes and functions in nested keywords."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from handed_over(each)
    elif callable(value) and hasattr(value, "__name__"):
        yield value


def by_name(value: Any) -> Any:
    """The same with the dotted names of classes and functions in their places."""
    if isinstance(value, Mapping):
        return {key: by_name(each) for key, each in value.items()}
    return dotted(value) if callable(value) else value


def choice(group: str, make: Callable[..., Any]) -> str:
    """Makes of a class or function a choice of its group, and tells its name.

    Raises:
        UserError: if there is no such group, or it has one of that name.
    """
    name = getattr(make, "__name__", "").strip("<>")
    if group == "logger" or not (CONFIGS / group).is_dir() or not name:
        raise UserError(
            f"{group}={make!r}: a class or function is a choice of env, actor, critic or another group"
        )
    if (CONFIGS / group / f"{name}.yaml").exists():
        raise UserError(f"{group}={name}: hydrl has one of that name; give yours another")
    if group == "env":
        node: dict[str, Any] = {"task": name, "env": environment(name, make)}
    else:
        node = {group: {"_target_": dotted(make)}}
    with ConfigStoreWithProvider(__name__) as store:
        store.store(name, node, group, "_global_")
    return name


def take_present() -> None:
    """Hands over anew what has been defined anew since, as in a later cell of a notebook."""
    for id, spec in [*gymnasium.registry.items()]:
        if id.startswith("hydrl/") and present(spec.entry_point) is not spec.entry_point:
            environment(id.removeprefix("hydrl/"), present(spec.entry_point))
    for make in [*vars(sys.modules[__name__]).values()]:
        if present(make) is not make:
            dotted(present(make))


def present(make: Any) -> Any:
    """The class or function that its module has by that name now, if it has one; else the same."""
    if not inspect.isclass(make) and not inspect.isfunction(make):
        return make
    now = getattr(sys.modules.get(make.__module__), make.__qualname__, make)
    return now if type(now) is type(make) and now.__module__ == make.__module__ else make


def environment(name: str, make: Callable[..., Any]) -> dict[str, Any]:
    """The node of an environment: Gymnasium's tasks are registered, under ``hydrl/NAME``."""
    if isinstance(make, type) and issubclass(make, gymnasium.Env):
        gymnasium.registry.pop(f"hydrl/{name}", None)  # of an earlier cell
        gymnasium.register(f"hydrl/{name}", entry_point=make)
        return {"_target_": "hydrl.envs.gymnasium_env", "id": f"hydrl/{name}"}
    return {"_target_": dotted(make)}


def dotted(make: Callable[..., Any]) -> str:
    """The name by which it is found, in its own module or else in this one."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
    if module != "__main__" and "." not in name and getattr(sys.modules.get(module), name, None) is make:
        return f"{module}.{name}"
    setattr(sys.modules[__name__], make.__name__, make)
    return f"{__name__}.{make.__name__}"


def here_only(choices: Mapping[str, Any]) -> list[str]:
    """Those of a run's choices that were handed over in this process, as they are typed."""
    store: Mapping[str, Any] = ConfigStore.instance().repo
    found = {group: store.get(group, {}).get(f"{name}.yaml") for group, name in choices.items()}
    return [
        f"{group}={choices[group]}" for group, node in found.items() if node and node.provider == __name__
    ]


def leave_out(cfg: DictConfig, typed: Sequence[str]) -> None:
    """Takes out of a function's node what files set for another choice of its group, and it does not take.

    Args:
        cfg: composed.
        typed: keys, which stay and are refused.
    """
    for group, node in [(str(key), node) for key, node in cfg.items()]:
        name = str(node.get("_target_")).removeprefix(f"{__name__}.") if isinstance(node, DictConfig) else ""
        if name not in globals():
            continue
        parameters, open_ended = accepted_parameters(globals()[name])
        kept = {"_target_", *parameters, *(each.removeprefix(f"{group}.") for each in typed)}
        if lost := [] if open_ended else [str(each) for each in node if each not in kept]:
            print(f"{group}: {', '.join(lost)} are left out, as {name} takes none of them")
        with open_dict(cfg):
            for each in lost:
                del node[each]
