"""A set of Minari's, written by its own package from columns."""

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

from hydrl.config.schema import GYMNASIUM
from hydrl.config.settings import Settings
from hydrl.datasets.convert import ABOUT
from hydrl.datasets.files import NEXT, Columns, ends, imported, observed
from hydrl.datasets.record import own_spaces
from hydrl.envs.transitions import action_entries, entry_paths, nest_arrays
from hydrl.errors import UserError
from hydrl.run.atomic_files import atomically
from hydrl.specs import MASK


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
        about: of :func:`hydrl.datasets.record.about`.
        settings: of the run that played.
    """
    minari = imported("minari", "format=minari")
    env, own = settings.env, own_spaces(settings)
    task = gymnasium.registry.get(env["id"].rpartition(":")[2]) if env["_target_"] == GYMNASIUM else None
    if task is not None and not isinstance(task.entry_point, str):  # a class is not written down
        task = None
    with warnings.catch_warnings(action="ignore"):  # of an author, and a link, that it is not given
        created = minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=[*episodes(made, own)],
            env=task,
            algorithm_name=about["made_by"]["algo"],
            observation_space=own[0] if own else seen(about["specs"], made),
            action_space=own[1] if own else space(about["specs"]["actions"]),
            description=f"{about['rows']} steps of {about['task']}, played by {about['made_by']['run']}",
            jpeg_encoding=False,
        )
    with atomically(Path(created.spec.data_path).parent / ABOUT) as partial:
        partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def episodes(made: Columns, own: tuple[Space, Space, str | None] | None) -> Iterator[Any]:
    """What Minari calls a buffer, one an episode; what is observed has a row more than what is done.

    Args:
        made: all columns.
        own: of :func:`hydrl.datasets.record.own_spaces`. A mask of actions that is no entry of what the task
            shows is written to ``infos``.
    """
    from minari.data_collector.episode_buffer import EpisodeBuffer

    begin = 0
    for number, end in enumerate(np.flatnonzero(ends(made)) + 1):
        now, after = (observed(made, column) for column in ("observations", NEXT))
        shown = {name: np.r_[each[begin:end], after[name][end - 1 : end]] for name, each in now.items()}
        taken = {name: each[begin:end] for name, each in observed(made, "actions").items()}
        beside = own is not None and MASK in shown and own[2] is None
        infos = {MASK: shown.pop(MASK)} if beside else None
        yield EpisodeBuffer(
            id=number,
            observations=nested(own[0], shown, entry_paths(own[0], own[2])) if own else shown.get("", shown),
            actions=nested(own[1], taken, action_entries(own[1])) if own else taken[""],
            infos=infos,
            rewards=made["rewards"][begin:end].astype(np.float64),
            terminations=made["terminals"][begin:end],
            truncations=made["timeouts"][begin:end],
        )
        begin = int(end)


def nested(space: Space, columns: Columns, entries: Mapping[str, tuple[tuple, Space]]) -> Any:
    """Columns by their entries' names as a space has them; that of the only one may have no name."""
    only = columns.get("")
    return nest_arrays(
        space, {path: only if only is not None else columns[name] for name, (path, _) in entries.items()}
    )


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
