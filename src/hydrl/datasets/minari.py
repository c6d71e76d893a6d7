"""Writing of Minari datasets, by the ``minari`` package."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from torchrl.envs import EnvBase

from hydrl.config.tree import option_target
from hydrl.datasets.convert import ABOUT
from hydrl.datasets.files import NEXT_OBSERVATIONS, Columns, column_entries, episode_ends, import_extra
from hydrl.datasets.record import env_spaces
from hydrl.envs.transitions import action_entries, entry_paths, nest_arrays
from hydrl.errors import UserError
from hydrl.run.atomic_files import atomically
from hydrl.specs import MASK


def check_is_free(out: Path) -> None:
    """Checks that Minari has no dataset of this name yet.

    Raises:
        UserError: if it has.
    """
    if str(out) in (existing := import_extra("minari", "format=minari").list_local_datasets()):
        versions = ", ".join(sorted(existing))
        raise UserError(f"out={out}: Minari has such a set already; give another name than {versions}")


def save_minari(
    name: str,
    columns: Columns,
    about: Mapping[str, Any],
    env: Mapping[str, Any],
    make_env: Callable[..., EnvBase],
) -> None:
    """Writes a dataset to Minari's local folder.

    Args:
        name: Minari's id, such as ``pendulum/expert-v0``.
        columns: all columns, with ``next_observations``.
        about: description by :func:`hydrl.datasets.record.describe_dataset`.
        env: the run's settings of its environment.
        make_env: makes that environment.
    """
    minari = import_extra("minari", "format=minari")
    own = env_spaces(make_env)
    task = (
        gymnasium.registry.get(env["id"].rpartition(":")[2])
        if env["_target_"] == option_target("env/gym")
        else None
    )
    if task is not None and not isinstance(task.entry_point, str):  # a class is not written down
        task = None
    with warnings.catch_warnings(action="ignore"):  # of an author, and a link, that it is not given
        created = minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=[*episode_buffers(columns, own)],
            env=task,
            algorithm_name=about["made_by"]["algo"],
            observation_space=own[0] if own else observation_space(about["specs"], columns),
            action_space=own[1] if own else make_space(about["specs"]["actions"]),
            description=f"{about['rows']} steps of {about['task']}, played by {about['made_by']['run']}",
            jpeg_encoding=False,
        )
    with atomically(Path(created.spec.data_path).parent / ABOUT) as partial:
        partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def episode_buffers(columns: Columns, own: tuple[Space, Space, str | None] | None) -> Iterator[Any]:
    """Minari's ``EpisodeBuffer`` for each episode; it has one observation more than actions.

    Args:
        columns: all columns.
        own: result of :func:`hydrl.datasets.record.env_spaces`. An action mask that is no entry of the
            observation is written to ``infos``.
    """
    from minari.data_collector.episode_buffer import EpisodeBuffer

    begin = 0
    for number, end in enumerate(np.flatnonzero(episode_ends(columns)) + 1):
        now, after = (column_entries(columns, column) for column in ("observations", NEXT_OBSERVATIONS))
        shown = {name: np.r_[values[begin:end], after[name][end - 1 : end]] for name, values in now.items()}
        taken = {name: values[begin:end] for name, values in column_entries(columns, "actions").items()}
        beside = own is not None and MASK in shown and own[2] is None
        infos = {MASK: shown.pop(MASK)} if beside else None
        yield EpisodeBuffer(
            id=number,
            observations=as_space_values(own[0], shown, entry_paths(own[0], own[2]))
            if own
            else shown.get("", shown),
            actions=as_space_values(own[1], taken, action_entries(own[1])) if own else taken[""],
            infos=infos,
            rewards=columns["rewards"][begin:end].astype(np.float64),
            terminations=columns["terminals"][begin:end],
            truncations=columns["timeouts"][begin:end],
        )
        begin = int(end)


def as_space_values(space: Space, columns: Columns, entries: Mapping[str, tuple[tuple, Space]]) -> Any:
    """Values in the nested form of a space, from columns by entry name; a single entry may be unnamed."""
    only = columns.get("")
    return nest_arrays(
        space, {path: only if only is not None else columns[name] for name, (path, _) in entries.items()}
    )


def observation_space(specs: Mapping[str, Any], columns: Columns) -> Space:
    """Observation space from the descriptions of columns."""
    spaces = {name.partition("/")[2]: make_space(spec) for name, spec in specs.items() if name != "actions"}
    return next(iter(spaces.values())) if "observations" in columns else Dict(spaces)


def make_space(spec: Mapping[str, Any]) -> Space:
    """Gymnasium space from its description; unbounded if the bounds were too many to be stored."""
    if "choices" in spec:
        return Discrete(spec["choices"])
    shape, kind = spec["shape"], np.dtype(spec["dtype"])
    least, most = (0.0, 255.0) if kind == np.uint8 else (-np.inf, np.inf)
    low, high = (
        np.broadcast_to(spec.get(end, default), shape) for end, default in (("low", least), ("high", most))
    )
    return Box(low.astype(kind), high.astype(kind), dtype=kind.type)
