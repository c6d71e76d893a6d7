"""Dataset files: NumPy archives and HDF5 files with D4RL's column names, and Minari datasets.

A row is a step, in the environment's own units. Observations are the column ``observations``, or one column
``observations/NAME`` for each entry.
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
MAX_VALUE = 1e18  # squares of larger values overflow single precision in a minibatch


def read_columns(kind: str, path: Path, label: str) -> dict[str, np.ndarray]:
    """Reads and checks the columns of a dataset.

    Args:
        kind: ``npz``, ``h5`` or ``minari``.
        path: a file, or a folder by ``scripts/record.py``; for Minari an id or a folder.
        label: name of the dataset in error messages.

    Returns:
        Arrays ``[steps, ...]`` by column name, such as ``observations``.

    Raises:
        UserError: if the dataset is missing or damaged, or a column is missing or of another length.
    """
    if kind == "minari":
        columns = read_minari(path, label)
        names = [*columns]
    else:
        file = path / f"data.{kind}" if path.is_dir() else path
        if not file.is_file():
            missing = f"no data.{kind} in this folder" if path.is_dir() else "no such file"
            raise UserError(f"{label}: {missing}. {suggest_kind(path, kind)}.")
        try:
            columns, names = READERS[kind](file)
        except UserError:
            raise
        except Exception as error:  # damaged files make NumPy and HDF5 raise anything
            raise UserError(f"{label}: cannot be read as {kind}: {short_reason(error)}.") from None
    check_columns(columns, label, names)
    return columns


def is_known(name: str) -> bool:
    """Whether a column of this name is read."""
    return name.partition("/")[0] in (*REQUIRED, NEXT_OBSERVATIONS, *END_COLUMNS)


def guess_kind(path: Path, exclude: str = "") -> str | None:
    """The option of ``data`` that reads a path, other than ``exclude``; ``None`` if none does."""
    fits = {
        "npz": path.suffix == ".npz" or (path / "data.npz").is_file(),
        "h5": path.suffix in (".h5", ".hdf5") or (path / "data.h5").is_file(),
        "replay_buffer": path.suffix == ".torchrl" or (path / "config_resolved.yaml").is_file(),
        "minari": any((folder / "main_data.hdf5").is_file() for folder in (path / "data", path)),
    }
    return next((kind for kind in fits if fits[kind] and kind != exclude), None)


def suggest_kind(path: Path, kind: str) -> str:
    """Advice for a path that is no dataset of ``kind``."""
    other = guess_kind(path, exclude=kind)
    return f"Use data={other}" if other else "Give another path"


def read_npz(file: Path) -> tuple[Columns, list[str]]:
    """Columns of a NumPy archive, and all names in it; pickled objects are not loaded."""
    with file.open("rb") as opened:
        begin = opened.read(8)
    if begin == b"\x89HDF\r\n\x1a\n":
        raise ValueError("it is HDF5. Use data=h5")
    if begin and not begin.startswith((b"PK", b"\x93NUMPY")):
        raise ValueError("not a NumPy archive")
    if begin.startswith(b"\x93NUMPY"):
        raise ValueError("one array without a name. Write named arrays with numpy.savez")
    columns: Columns = {}
    with np.load(file, allow_pickle=False) as archive:
        by_filename = {member.filename: member for member in archive.zip.infolist()}
        members = {}
        for name in filter(is_known, archive.files):
            if member := by_filename.get(f"{name}.npy", by_filename.get(name)):
                members[name] = member
        check_memory({name: member.file_size for name, member in members.items()})
        for name, member in members.items():
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
        raise ValueError("it is a NumPy archive. Use data=npz")
    columns: Columns = {}
    with h5py.File(file) as opened:
        datasets = hdf5_datasets(opened)
        known = {name: dataset for name, dataset in datasets.items() if is_known(name)}
        check_memory({name: prod(dataset.shape) * dataset.dtype.itemsize for name, dataset in known.items()})
        for name, dataset in known.items():
            if dataset.dtype.kind not in "biuf":
                raise ValueError(f"{name} has dtype {dataset.dtype}, not numbers")
            columns[name] = read_value(name, partial(dataset.__getitem__, ()))
        return columns, [*datasets]


READERS: dict[str, Callable[[Path], tuple[Columns, list[str]]]] = {"npz": read_npz, "h5": read_h5}


def read_minari(path: Path, label: str) -> Columns:
    """Columns of a local Minari dataset; nothing is downloaded."""
    minari = import_extra("minari", "data=minari")
    folder = minari_folder(path)
    if not (folder / "metadata.json").is_file():
        advice = suggest_kind(path, "minari")
        if is_minari_id(path):
            advice = f"Run minari download {path}, or {advice[0].lower()}{advice[1:]}"
        raise UserError(f"{label}: no such Minari dataset on this machine. {advice}.")
    try:
        check_minari(folder)
        return minari_columns(minari.MinariDataset(folder))
    except Exception as error:  # damaged files make Minari and HDF5 raise anything
        raise UserError(f"{label}: cannot be read as minari: {short_reason(error)}.") from None


def minari_columns(dataset: Any) -> Columns:
    """Columns of a Minari dataset; an action mask in ``infos`` becomes an observation."""
    parts: dict[str, list[np.ndarray]] = {}
    for episode in dataset.iterate_episodes():
        mask = (episode.infos or {}).get(MASK)
        masks = [] if mask is None else [((MASK,), np.asarray(mask))]
        for name, values in [*iterate_leaves(episode.observations), *masks]:
            parts.setdefault("/".join(["observations", *name]), []).append(values[:-1])
            parts.setdefault("/".join([NEXT_OBSERVATIONS, *name]), []).append(values[1:])
        terminals, timeouts = (np.array(ends, bool) for ends in (episode.terminations, episode.truncations))
        timeouts[-1:] |= ~terminals[-1:]  # an episode whose record stops early counts as truncated
        actions = {"/".join(["actions", *name]): values for name, values in iterate_leaves(episode.actions)}
        columns = {"rewards": episode.rewards, "terminals": terminals, "timeouts": timeouts}
        for column, values in (actions | columns).items():
            parts.setdefault(column, []).append(np.asarray(values))
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if "observations" in columns and f"observations/{MASK}" in columns:  # no longer the only entry
        for column in ("observations", NEXT_OBSERVATIONS):
            columns[f"{column}/observation"] = columns.pop(column)
    return columns


def minari_folder(path: Path) -> Path:
    """The folder with the files of a Minari dataset, which is given by id or folder."""
    for folder in (path / "data", path):
        if (folder / "main_data.hdf5").is_file():
            return folder
    import_extra("minari", "data=minari")
    from minari.storage.datasets_root_dir import get_dataset_path

    return get_dataset_path(str(path)) / "data"


def has_old_minari_format(path: Path) -> bool:
    """Whether a Minari dataset without ``about.json`` is of an early ``record``, in the policy's units."""
    storage = import_extra("minari", "data=minari").MinariDataset(minari_folder(path)).storage
    description = str(storage.metadata.get("description", ""))
    return re.match(r"\d+ steps of .+, played by ", description) is not None


def is_minari_id(path: Path) -> bool:
    """Whether a path could be a Minari id, such as ``pendulum/expert-v0``."""
    return not path.is_absolute() and re.search(r"-v\d+$", path.name) is not None


def iterate_leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Arrays in nested dictionaries and tuples, by name ``OUTER_INNER``; without a name if not nested."""
    if isinstance(tree, dict) or type(tree) is tuple:
        for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from iterate_leaves(inner, (*path, str(key)))
    else:
        yield ("_".join(path),) if path else (), np.asarray(tree)


def import_extra(name: str, option: str) -> Any:
    """Imports an optional package that ``option`` needs.

    Raises:
        UserError: if it is not installed.
    """
    try:
        return __import__(name)
    except ImportError:
        raise UserError(f"{option}: needs {name}. Run pip install 'hydrl[minari]'.") from None


def check_columns(columns: Columns, label: str, names: Sequence[str] = ()) -> None:
    """Checks that all columns are present, of one length and finite; flattens rewards and end flags.

    Args:
        columns: the columns that are read, changed in place.
        label: the dataset as the user named it, for messages.
        names: names of all columns in the file.

    Raises:
        UserError: naming the column and the first wrong row.
    """
    entries = {name.partition("/")[0] for name in columns}
    if missing := [name for name in REQUIRED if name not in entries]:
        present = ", ".join(dict.fromkeys(name.partition("/")[0] for name in names)) or "none"
        raise UserError(f"{label}: no column {', '.join(missing)}. Its columns: {printable(present)}.")
    if odd := [name for name in columns if not name.isprintable()]:
        raise UserError(f"{label}: the name of column {odd[0]!a} cannot be printed. Rename it.")
    count = len(columns["rewards"]) if columns["rewards"].ndim else 0
    if not count:
        raise UserError(f"{label}: the dataset has no rows.")
    for name, values in columns.items():
        check_values(values, count, f"{label}: {name}")
    for name in ("rewards", *END_COLUMNS):
        if name in columns:
            flat = columns[name].reshape(count, -1)
            if flat.shape[1:] != (1,):
                raise UserError(f"{label}: {name} has shape {flat.shape}. Write one number per row.")
            columns[name] = flat[:, 0]
            if name in END_COLUMNS and not np.isin(flat, (0, 1)).all():
                raise UserError(f"{label}: {name} is not boolean. Write true and false, or 1 and 0.")
    if NEXT_OBSERVATIONS not in entries and ("timeouts" not in columns or not episode_ends(columns).any()):
        lack = "no timeouts" if "timeouts" not in columns else "no row that ends an episode"
        problem = f"{lack} and no {NEXT_OBSERVATIONS}: one episode would run into the next"
        raise UserError(f"{label}: {problem}. Add one of the columns timeouts, {NEXT_OBSERVATIONS}.")


def check_values(values: np.ndarray, count: int, label: str) -> None:
    """Checks that a column has ``count`` rows of finite numbers; ``label`` names it in messages.

    Raises:
        UserError: naming the first wrong row.
    """
    if values.dtype.kind not in "biuf":
        raise UserError(f"{label} has dtype {values.dtype}, not numbers.")
    if not values.ndim or len(values) != count:
        rows = len(values) if values.ndim else 0
        raise UserError(f"{label} has {rows:,} rows, rewards has {count:,}.")
    if values.dtype.kind == "f" and not (finite := np.isfinite(values).reshape(count, -1).all(1)).all():
        raise UserError(f"{label} has a NaN or an infinity in row {finite.argmin():,}.")
    if (large := ((values > MAX_VALUE) | (values < -MAX_VALUE)).reshape(count, -1).any(1)).any():
        row = int(large.argmax())
        value = max(values[row].reshape(-1).tolist(), key=abs)
        raise UserError(f"{label} has {value:g} in row {row:,}. The limit is {MAX_VALUE:g}.")


def episode_ends(columns: Columns) -> np.ndarray:
    """Whether an episode ends with a row, terminated or truncated, ``[rows]``."""
    ended = columns["terminals"].astype(bool)
    return ended | columns["timeouts"].astype(bool) if "timeouts" in columns else ended


def column_entries(columns: Columns, of: str = "observations") -> dict[str, np.ndarray]:
    """Columns of ``of`` (``observations``, ``actions``, ...) by entry name; a single one has the name ""."""
    parts = {name: name.partition("/") for name in columns}
    return {entry: columns[name] for name, (group, _, entry) in parts.items() if group == of}


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


def write_columns(kind: str, file: Path, columns: dict[str, np.ndarray]) -> None:
    """Writes a dataset file.

    Args:
        kind: ``npz`` or ``h5``.
        file: the file.
        columns: arrays ``[steps, ...]`` by column name, see :func:`read_columns`.
    """
    if kind == "npz":
        with file.open("wb") as opened:
            arrays: dict[str, Any] = dict(columns)
            np.savez_compressed(opened, **arrays)
        return
    content = io.BytesIO()  # HDF5's library crashes the process on a full disk
    with import_extra("h5py", "format=h5").File(content, "w") as opened:
        for name, values in columns.items():
            opened.create_dataset(name, data=values, compression="gzip")
    file.write_bytes(content.getbuffer())
