"""A set of Minari's, written by its own package from columns."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

from hydrl.config.schema import GYMNASIUM
from hydrl.config.settings import Settings
from hydrl.errors import UserError
from hydrl.run.columns import NEXT, Columns, ends, imported, observed


def free(out: Path) -> None:
    """Minari has no set of that name yet.

    Raises:
        UserError: if it has.
    """
    if str(out) in (there := imported("minari", "format=minari").list_local_datasets()):
        versions = ", ".join(sorted(there))
        raise UserError(f"out={out}: Minari has such a set already; give another name than {versions}")


def save(name: str, made: Columns, about: Mapping[str, Any], settings: Settings) -> None:
    """Writes columns with ``next_observations`` where Minari keeps its sets.

    Args:
        name: as ``pendulum/expert-v0``.
        made: all columns.
        about: of :func:`hydrl.run.played.about`.
        settings: of the run that played.
    """
    minari = imported("minari", "format=minari")
    env = settings.env
    task = gymnasium.registry.get(env["id"].rpartition(":")[2]) if env["_target_"] == GYMNASIUM else None
    if task is not None and not isinstance(task.entry_point, str):  # a class is not written down
        task = None
    with warnings.catch_warnings(action="ignore"):  # of an author, and a link, that it is not given
        minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=[*episodes(made)],
            env=task,
            algorithm_name=about["made_by"]["algo"],
            observation_space=seen(about["specs"], made),
            action_space=space(about["specs"]["actions"]),
            description=f"{about['rows']} steps of {about['task']}, played by {about['made_by']['run']}",
            jpeg_encoding=False,
        )


def episodes(made: Columns) -> Iterator[Any]:
    """What Minari calls a buffer, one an episode; what is observed has a row more than what is done."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    begin = 0
    for number, end in enumerate(np.flatnonzero(ends(made)) + 1):
        now, after = (observed(made, column) for column in ("observations", NEXT))
        shown = {name: np.r_[each[begin:end], after[name][end - 1 : end]] for name, each in now.items()}
        yield EpisodeBuffer(
            id=number,
            observations=shown.get("", shown),
            actions=made["actions"][begin:end],
            rewards=made["rewards"][begin:end].astype(np.float64),
            terminations=made["terminals"][begin:end],
            truncations=made["timeouts"][begin:end],
        )
        begin = int(end)


def seen(specs: Mapping[str, Any], made: Columns) -> Space:
    """The space of what is observed."""
    found = {name.partition("/")[2]: space(each) for name, each in specs.items() if name != "actions"}
    return next(iter(found.values())) if "observations" in made else Dict(found)


def space(spec: Mapping[str, Any]) -> Space:
    """Of plain data, as Gymnasium has it; without bounds where there were too many to be kept."""
    if "choices" in spec:
        return Discrete(spec["choices"])
    shape, kind = spec["shape"], np.dtype(spec["dtype"])
    least, most = (0.0, 255.0) if kind == np.uint8 else (-np.inf, np.inf)
    low, high = (
        np.broadcast_to(spec.get(end, each), shape) for end, each in (("low", least), ("high", most))
    )
    return Box(low.astype(kind), high.astype(kind), dtype=kind.type)
