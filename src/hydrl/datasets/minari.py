"""Writing of Minari datasets with the ``minari`` package."""

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


def check_does_not_exist(out: Path) -> None:
    """Checks that Minari has no dataset of this name yet.

    Raises:
        UserError: if it has.
    """
    if str(out) in (existing := import_extra("minari", "format=minari").list_local_datasets()):
        names = ", ".join(sorted(existing))
        raise UserError(f"out={out}: Minari has this dataset already. Use another name than {names}.")


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
    spaces = env_spaces(make_env)
    is_gym = env["_target_"] == option_target("env/gym")
    spec = gymnasium.registry.get(env["id"].rpartition(":")[2]) if is_gym else None
    if spec is not None and not isinstance(spec.entry_point, str):  # Minari cannot store a class
        spec = None
    with warnings.catch_warnings(action="ignore"):  # that author and code link are missing
        created = minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=[*episode_buffers(columns, spaces)],
            env=spec,
            algorithm_name=about["made_by"]["algo"],
            observation_space=spaces[0] if spaces else observation_space(about["specs"], columns),
            action_space=spaces[1] if spaces else make_space(about["specs"]["actions"]),
            description=f"{about['rows']} steps of {about['task']}, played by {about['made_by']['run']}",
            jpeg_encoding=False,
        )
    with atomically(Path(created.spec.data_path).parent / ABOUT) as partial:
        partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def episode_buffers(columns: Columns, spaces: tuple[Space, Space, str | None] | None) -> Iterator[Any]:
    """Minari's ``EpisodeBuffer`` for each episode; it has one observation more than actions.

    Args:
        columns: all columns.
        spaces: result of :func:`hydrl.datasets.record.env_spaces`. An action mask that is no entry of the
            observation is written to ``infos``.
    """
    from minari.data_collector.episode_buffer import EpisodeBuffer

    entries, after, taken = (
        column_entries(columns, column) for column in ("observations", NEXT_OBSERVATIONS, "actions")
    )
    begin = 0
    for number, end in enumerate(np.flatnonzero(episode_ends(columns)) + 1):
        observed: Any = {
            name: np.r_[values[begin:end], after[name][end - 1 : end]] for name, values in entries.items()
        }
        actions: Any = {name: values[begin:end] for name, values in taken.items()}
        infos = None
        if spaces is None:
            observed, actions = observed.get("", observed), actions[""]
        else:
            infos = {MASK: observed.pop(MASK)} if MASK in observed and spaces[2] is None else None
            observed = as_space_values(spaces[0], observed, entry_paths(spaces[0], spaces[2]))
            actions = as_space_values(spaces[1], actions, action_entries(spaces[1]))
        yield EpisodeBuffer(
            id=number,
            observations=observed,
            actions=actions,
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
    shape, dtype = spec["shape"], np.dtype(spec["dtype"])
    defaults = {"low": 0.0, "high": 255.0} if dtype == np.uint8 else {"low": -np.inf, "high": np.inf}
    low, high = (np.broadcast_to(spec.get(end, defaults[end]), shape).astype(dtype) for end in defaults)
    return Box(low, high, dtype=dtype.type)
