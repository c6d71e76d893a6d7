"""Dataset files: HDF5 and NumPy archives with D4RL's column names, and Minari datasets.

A row is a step; all values are in the environment's own units. Observations are the column ``observations``,
or one column ``observations/NAME`` for each entry.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hydrl.datasets.declared import check_memory, check_minari, check_npz_member, hdf5_datasets, short_reason
from hydrl.errors import UserError, printable
from hydrl.specs import MASK

Columns = dict[str, np.ndarray]

REQUIRED = ("observations", "actions", "rewards", "terminals")
NEXT_OBSERVATIONS = "next_observations"
END_COLUMNS = ("terminals", "timeouts")
EXTRA = "pip install 'hydrl[minari]'"
MAX_VALUE = 1e18  # squares of larger values overflow single precision in a minibatch


def read_columns(kind: str, path: Path, label: str) -> Columns:
    """Reads and checks the known columns of a dataset; others are ignored.

    Args:
        kind: ``npz``, ``h5`` or ``minari``.
        path: a file, or a folder by :mod:`hydrl.datasets.record`; for Minari an id or a folder.
        label: how the user named it, for messages.

    Raises:
        UserError: if it is missing or unreadable, or a column is missing or does not fit the others.
    """
    if kind == "minari":
        columns = read_minari(path, label)
        names = [*columns]
    else:
        file = path / f"data.{kind}" if path.is_dir() else path
        if not file.is_file():
            what = f"no data.{kind} in it" if path.is_dir() else "no such file"
            raise UserError(f"{label}: there is {what}; {suggest_kind(path, kind)}")
        try:
            columns, names = READERS[kind](file)
        except UserError:
            raise
        except Exception as error:  # damaged files make NumPy and HDF5 raise anything
            raise UserError(f"{label} cannot be read as {kind}: {short_reason(error)}") from None
    check_columns(columns, label, names)
    return columns


def is_read(name: str) -> bool:
    """Whether a column of this name is read."""
    return name.partition("/")[0] in (*REQUIRED, NEXT_OBSERVATIONS, *END_COLUMNS)


def suggest_kind(path: Path, kind: str = "") -> str:
    """Advice for a path that is no dataset of ``kind``: the kind it seems to be."""
    kinds = {
        "npz": path.suffix == ".npz" or (path / "data.npz").is_file(),
        "h5": path.suffix in (".h5", ".hdf5") or (path / "data.h5").is_file(),
        "run": path.suffix == ".torchrl" or (path / "config_resolved.yaml").is_file(),
        "minari": (path / "data" / "main_data.hdf5").is_file() or (path / "main_data.hdf5").is_file(),
    }
    others = [other for other, fits in kinds.items() if fits and other != kind]
    options = ["replay_buffer" if other == "run" else other for other in others]
    return f"use data={options[0]}" if options else "give another path"


def read_npz(file: Path) -> tuple[Columns, list[str]]:
    """Columns of a NumPy archive, and all names in it; pickled objects are not loaded."""
    with file.open("rb") as opened:
        begin = opened.read(8)
    if begin == b"\x89HDF\r\n\x1a\n":
        raise ValueError("it is HDF5; use data=h5")
    if begin and not begin.startswith((b"PK", b"\x93NUMPY")):
        raise ValueError("it is no archive of NumPy's")
    if begin.startswith(b"\x93NUMPY"):
        raise ValueError("it holds one array, and not several by name, as numpy.savez writes them")
    columns: Columns = {}
    with np.load(file, allow_pickle=False) as archive:
        members = {member.filename: member for member in archive.zip.infolist()}
        held = {name: members.get(f"{name}.npy", members.get(name)) for name in archive.files}
        read = {name: member for name, member in held.items() if member is not None and is_read(name)}
        check_memory({name: member.file_size for name, member in read.items()})
        for name, member in read.items():
            check_npz_member(archive.zip, member)
            columns[name] = read_value(name, partial(archive.__getitem__, name))
        return columns, archive.files


def read_value(name: str, read: Callable[[], Any]) -> Any:
    """Reads a column's values.

    Raises:
        ValueError: naming the column, if it cannot be read.
    """
    try:
        return read()
    except Exception as error:
        raise ValueError(f"{name}: {short_reason(error)}") from None


def read_h5(file: Path) -> tuple[Columns, list[str]]:
    """Columns of an HDF5 file, named ``GROUP/NAME``, and all names in it."""
    h5py = import_extra("h5py", "data=h5")
    if zipfile.is_zipfile(file):
        raise ValueError("it is an archive; use data=npz")
    columns: Columns = {}
    with h5py.File(file) as opened:
        datasets = hdf5_datasets(opened)
        read = {name: dataset for name, dataset in datasets.items() if is_read(name)}
        check_memory({name: prod(dataset.shape) * dataset.dtype.itemsize for name, dataset in read.items()})
        for name, dataset in read.items():
            if dataset.dtype.kind not in "biuf":
                raise ValueError(f"{name} holds {dataset.dtype}, and numbers are read")
            columns[name] = read_value(name, partial(dataset.__getitem__, ()))
        return columns, [*datasets]


READERS: dict[str, Callable[[Path], tuple[Columns, list[str]]]] = {"npz": read_npz, "h5": read_h5}


def read_minari(path: Path, label: str) -> Columns:
    """Columns of a local Minari dataset; nothing is downloaded."""
    library = import_extra("minari", "data=minari")
    from minari.storage.datasets_root_dir import get_dataset_path

    inner = next((folder for folder in (path / "data", path) if (folder / "main_data.hdf5").is_file()), None)
    inner = inner or get_dataset_path(str(path)) / "data"
    if not (inner / "metadata.json").is_file():
        fetch = f"`minari download {path}` fetches one of its own; else " if is_minari_name(path) else ""
        advice = f"{fetch}{suggest_kind(path, 'minari')}"
        raise UserError(f"{label}: there is no such set of Minari's here; {advice}")
    try:
        check_minari(inner)
        return minari_columns(library.MinariDataset(inner))
    except Exception as error:  # damaged files make Minari and HDF5 raise anything
        raise UserError(f"{label} cannot be read as minari: {short_reason(error)}") from None


def minari_columns(dataset: Any) -> Columns:
    """Columns of a Minari dataset."""
    parts: dict[str, list[np.ndarray]] = {}
    for episode in dataset.iterate_episodes():
        allowed = (episode.infos or {}).get(MASK)
        beside = [] if allowed is None else [((MASK,), np.asarray(allowed))]
        for name, values in [*iterate_leaves(episode.observations), *beside]:
            parts.setdefault("/".join(["observations", *name]), []).append(values[:-1])
            parts.setdefault("/".join([NEXT_OBSERVATIONS, *name]), []).append(values[1:])
        over, limits = (np.array(flags, bool) for flags in (episode.terminations, episode.truncations))
        limits[-1:] |= ~over[-1:]  # an episode whose record stops early counts as truncated
        columns = {
            **{"/".join(["actions", *name]): values for name, values in iterate_leaves(episode.actions)},
            "rewards": episode.rewards,
            "terminals": over,
            "timeouts": limits,
        }
        for column, values in columns.items():
            parts.setdefault(column, []).append(np.asarray(values))
    dataset = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if (
        "observations" in dataset and f"observations/{MASK}" in dataset
    ):  # one array, and what says what is allowed
        for column in ("observations", NEXT_OBSERVATIONS):
            dataset[f"{column}/observation"] = dataset.pop(column)
    return dataset


def minari_folder(path: Path) -> Path:
    """Folder of a Minari dataset given by id or folder."""
    if path.exists() or not is_minari_name(path):
        return path
    from minari.storage.datasets_root_dir import get_dataset_path

    return get_dataset_path(str(path))


def has_old_minari_format(path: Path) -> bool:
    """Whether a Minari dataset was written by an early ``record``, with values as the policy has them."""
    library = import_extra("minari", "data=minari")
    folder = minari_folder(path)
    inner = folder / "data" if (folder / "data").is_dir() else folder
    if (folder / "about.json").is_file() or (inner.parent / "about.json").is_file():
        return False
    description = str(library.MinariDataset(inner).storage.metadata.get("description", ""))
    return re.match(r"\d+ steps of .+, played by ", description) is not None


def is_minari_name(path: Path) -> bool:
    """Whether a path could be a Minari id, such as ``pendulum/expert-v0``."""
    return not path.is_absolute() and re.search(r"-v\d+$", path.name) is not None


def iterate_leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Arrays in nested dictionaries and tuples, by name ``OUTER_INNER``."""
    within = (
        values.items() if isinstance(values, dict) else enumerate(values) if type(values) is tuple else None
    )
    if within is None:
        yield ("_".join(path),) if path else (), np.asarray(values)
        return
    for key, inner in within:
        yield from iterate_leaves(inner, (*path, str(key)))


def import_extra(name: str, asks: str) -> Any:
    """Imports an optional package.

    Raises:
        UserError: if it is not installed.
    """
    try:
        return __import__(name)
    except ImportError:
        raise UserError(f"{asks} needs {name}; {EXTRA}") from None


def check_columns(columns: Columns, label: str, names: Sequence[str] = ()) -> None:
    """Checks that all columns are present, of one length and finite; flattens rewards and end flags.

    Args:
        columns: the columns that are read, changed in place.
        label: how the user named the dataset, for messages.
        names: names of all columns in the file.

    Raises:
        UserError: naming the column and the first wrong row.
    """
    entries = {name.partition("/")[0] for name in columns}
    if lacking := [name for name in REQUIRED if name not in entries]:
        has = ", ".join(dict.fromkeys(name.partition("/")[0] for name in names)) or "none"
        raise UserError(f"{label}: it has no {' and no '.join(lacking)}; its columns are {printable(has)}")
    if odd := [name for name in columns if not name.isprintable()]:
        raise UserError(f"{label}: the column {odd[0]!a} has a name that cannot be printed")
    count = len(columns["rewards"]) if columns["rewards"].ndim else 0
    if not count:
        raise UserError(f"{label}: it has no rows")
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            raise UserError(f"{label}: {name} holds {values.dtype}, and numbers are read")
        if not values.ndim or len(values) != count:
            rows = len(values) if values.ndim else 0
            raise UserError(f"{label}: {name} has {rows:,} rows and rewards {count:,}")
        if values.dtype.kind == "f" and not (finite := np.isfinite(values).reshape(count, -1).all(1)).all():
            raise UserError(f"{label}: {name} has a NaN or an infinity in row {finite.argmin():,}")
        if (large := ((values > MAX_VALUE) | (values < -MAX_VALUE)).reshape(count, -1).any(1)).any():
            row = int(large.argmax())
            value = max(values[row].reshape(-1).tolist(), key=abs)
            raise UserError(
                f"{label}: {name} has {value:g} in row {row:,}, and numbers up to {MAX_VALUE:g} are read"
            )
    for name in ("rewards", *END_COLUMNS):
        if name in columns:
            columns[name] = columns[name].reshape(count, -1)
            if columns[name].shape[1:] != (1,):
                raise UserError(
                    f"{label}: {name} should be one number a row, and there are {columns[name].shape}"
                )
            columns[name] = columns[name][:, 0]
            if name in END_COLUMNS and not np.isin(columns[name], (0, 1)).all():
                raise UserError(f"{label}: {name} should be true or false, or 1 or 0")
    if NEXT_OBSERVATIONS not in entries and ("timeouts" not in columns or not episode_ends(columns).any()):
        lacks = "no timeouts" if "timeouts" not in columns else "no row that ends an episode"
        raise UserError(
            f"{label}: it has {lacks} and no {NEXT_OBSERVATIONS}, so that one episode would run into the next"
        )


def episode_ends(columns: Columns) -> np.ndarray:
    """Whether an episode ends with a row, terminated or truncated, ``[rows]``."""
    ended = columns["terminals"].astype(bool)
    return ended | columns["timeouts"].astype(bool) if "timeouts" in columns else ended


def column_entries(columns: Columns, of: str = "observations") -> dict[str, np.ndarray]:
    """Columns of ``of`` (``observations``, ``actions``, ...) by entry name; a single one has the name ""."""
    return {
        name.partition("/")[2]: values for name, values in columns.items() if name.partition("/")[0] == of
    }


def add_episode_columns(columns: Columns) -> Columns:
    """Adds columns computed from episodes.

    Returns:
        all columns, with ``timeouts``; undiscounted ``returns`` before and ``next_returns`` after a row;
        ``to_go``, the return from a row on, NaN in an unfinished episode; ``steps``, from 1; ``episodes``,
        episode ids.
    """
    done, count = episode_ends(columns), len(columns["rewards"])
    extended = {"timeouts": np.zeros(count, bool), **columns}
    begins = np.flatnonzero(np.r_[True, done[:-1]])
    lengths = np.diff(np.r_[begins, count])
    total = np.r_[0.0, np.cumsum(columns["rewards"], dtype=np.float64)]
    before = np.repeat(total[begins], lengths)
    extended |= {"returns": total[:-1] - before, "next_returns": total[1:] - before}
    extended["steps"] = np.arange(count) - np.repeat(begins, lengths) + 1
    extended["episodes"] = np.repeat(np.arange(len(begins)), lengths)
    over = np.cumsum(lengths)
    extended["to_go"] = np.repeat(np.where(done[over - 1], total[over], np.nan), lengths) - total[:-1]
    return extended


def transitions(columns: Columns) -> Columns:
    """Rows with a known next observation, with ``next_observations`` and :func:`add_episode_columns`.

    Without that column the next row's observation is used. A terminating row needs none; a truncating row and
    an unfinished last one are dropped, but count towards their episode's return.
    """
    extended, terminal = add_episode_columns(columns), columns["terminals"].astype(bool)
    if column_entries(columns, NEXT_OBSERVATIONS):
        return extended
    for name, values in column_entries(columns).items():
        after = np.concatenate([values[1:], values[-1:]])
        rows = terminal.reshape(-1, *[1] * (values.ndim - 1))
        extended["/".join([NEXT_OBSERVATIONS, *([name] if name else [])])] = np.where(rows, values, after)
    known = terminal | ~episode_ends(columns)
    known[-1] = terminal[-1]
    return {name: values[known] for name, values in extended.items()}


def write_columns(kind: str, file: Path, columns: Columns) -> None:
    """Writes columns as ``npz`` or ``h5``."""
    if kind == "npz":
        with file.open("wb") as opened:
            arrays: dict[str, Any] = dict(columns)
            np.savez_compressed(opened, **arrays)
        return
    whole = io.BytesIO()  # HDF5's library crashes the process on a full disk
    with import_extra("h5py", "format=h5").File(whole, "w") as opened:
        for name, values in columns.items():
            opened.create_dataset(name, data=values, compression="gzip")
    file.write_bytes(whole.getbuffer())
