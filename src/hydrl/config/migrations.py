"""Parts that have moved: files of older runs, and of one's own, may name them as they were."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ENCODER = "hydrl.networks.encoders.encoder"
DATASET_COLLECTOR = "hydrl.datasets.collector.DatasetCollector"


def renamed(values: Any, *, scale: str = "bytes") -> Any:
    """Nested ``values`` in which each ``_target_`` names a part of hydrl where it is now.

    Args:
        values: of a saved run, or of a new one.
        scale: of an encoder that does not say how it scales images: ``bytes``, as before there was a choice.
    """
    if isinstance(values, list):
        return [renamed(each, scale=scale) for each in values]
    if not isinstance(values, dict):
        return values
    if set(values) in ({"lstm"}, {"gru"}):  # a memory, before it was a part
        return {"_target_": "hydrl.networks.rnn.RecurrentLayer", "_partial_": True, **values}
    if "path" in (collector := set_of(values)):  # a set of data, before that was a part
        named = {key: each for key, each in collector.items() if key in ("path", "task")}
        left = {key: each for key, each in collector.items() if key not in named}
        values = {
            **values,
            "collector": left,
            "data": {"_target_": "hydrl.datasets.collector.load_dataset", **named},
        }
    made = {key: renamed(each, scale=scale) for key, each in values.items()}
    made |= {"_target_": now(made["_target_"])} if "_target_" in made else {}
    return {"scale": scale, **made} if made.get("_target_") == ENCODER else made


def set_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The collector in settings, where it draws from a set of data."""
    collector: Any = values.get("collector")
    draws = isinstance(collector, dict) and now(collector.get("_target_")) == DATASET_COLLECTOR
    return collector if draws else {}


def with_encoders(then: Mapping[str, Any], now: Mapping[str, Any], networks: Sequence[str]) -> dict[str, Any]:
    """Settings from when all observations were one vector, as they are said now, to be compared.

    Args:
        then: of an older run; one that names an encoder is given back.
        now: of the same run as it would be begun now.
        networks: the names of those that are learned.
    """
    if "encoder" in then:
        return {**then}
    made = {**then, **{name: now.get(name) for name in ("encoder", "memory")}}
    for name in (each for each in networks if then.get(each)):
        of_the_actor = then[name].get("in_keys") == ["memory"]
        new = {each: None for each in ("in_keys", "memory") if each in (now.get(name) or {})}
        kept = {key: value for key, value in then[name].items() if value not in (["observation"], ["memory"])}
        read = "shared" if of_the_actor else (now.get(name) or {}).get("encoder")
        made[name] = {**new, **({"encoder": read} if read else {}), **kept}
    if (normalize := (then.get("transforms") or {}).get("normalize")) and "in_keys" in normalize:
        seen = normalize["in_keys"]
        standing = {**normalize, "in_keys": None if seen == ["observation"] else seen}
        made["transforms"] = {**then["transforms"], "normalize": standing}
    return made


def now(target: Any) -> Any:
    """The current dotted name of ``target``, one that an earlier version wrote; anything else as it is."""
    if not isinstance(target, str) or not target.startswith("hydrl."):
        return target
    parts = target.split(".")
    for length in range(len(parts), 1, -1):
        if module := table()["modules"].get(".".join(parts[:length])):
            parts = [module, *parts[length:]]
            break
    return renamed_path(".".join(parts))


def now_of(module: str, path: str) -> tuple[str, str]:
    """The current module and qualified name of a class or function."""
    module = now(module)
    return module, renamed_path(f"{module}.{path}").removeprefix(f"{module}.")


def renamed_path(name: str) -> str:
    """``name`` with its class or function renamed, where that stands in the table."""
    for old, new in sorted(table()["names"].items(), key=lambda names: -len(names[0])):  # methods first
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return name


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The tables in ``migrations.yaml``."""
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
