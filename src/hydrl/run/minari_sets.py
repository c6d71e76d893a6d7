"""A set of Minari's, read and written by its own package."""

import re
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
from hydrl.run.columns import NEXT, Columns, ends, imported, instead, observed


def opened(path: Path, told: str) -> Columns:
    """Of a set of Minari's, a local one: nothing is fetched."""
    library = imported("minari", "data=minari")
    inner = next((each for each in (path / "data", path) if (each / "main_data.hdf5").is_file()), None)
    try:
        made = library.MinariDataset(inner) if inner else library.load_dataset(str(path))
    except (OSError, ValueError, KeyError):
        fetch = f"`minari download {path}` fetches one of its own; else " if is_name(path) else ""
        advice = f"{fetch}{instead(path, 'minari')}"
        raise UserError(f"{told}: there is no such set of Minari's here; {advice}") from None
    parts: dict[str, list[np.ndarray]] = {}
    for episode in made.iterate_episodes():
        for name, values in leaves(episode.observations):
            parts.setdefault("/".join(["observations", *name]), []).append(values[:-1])
            parts.setdefault("/".join([NEXT, *name]), []).append(values[1:])
        over, limits = (np.array(each, bool) for each in (episode.terminations, episode.truncations))
        limits[-1:] |= ~over[-1:]  # where the record of an episode stops, it goes on unseen
        columns = {
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminals": over,
            "timeouts": limits,
        }
        for column, values in columns.items():
            parts.setdefault(column, []).append(np.asarray(values))
    return {name: np.concatenate(each) for name, each in parts.items()}


def is_name(path: Path) -> bool:
    """Whether a set of Minari's could be called so, as ``pendulum/expert-v0``."""
    return not path.is_absolute() and re.search(r"-v\d+$", path.name) is not None


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """What a dictionary or tuple of arrays holds, by name: ``OUTER_INNER``, as a task's entries have it."""
    within = (
        values.items() if isinstance(values, dict) else enumerate(values) if type(values) is tuple else None
    )
    if within is None:
        yield ("_".join(path),) if path else (), np.asarray(values)
        return
    for key, each in within:
        yield from leaves(each, (*path, str(key)))


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
    # A class that is named by its place is in no register, and what a set says of its task may be left out.
    task = gymnasium.registry.get(env["id"].rpartition(":")[2]) if env["_target_"] == GYMNASIUM else None
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
