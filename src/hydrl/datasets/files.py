"""Sets of transitions as arrays, a row a step: HDF5 and NumPy's archives in D4RL's names, and Minari's sets.

All are in the task's own units. What is observed is the column ``observations``, or a column
``observations/NAME`` an entry.
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

from hydrl.datasets.declared import datasets_of, reason, require_member, require_minari, require_room
from hydrl.errors import UserError, printable
from hydrl.specs import MASK

Columns = dict[str, np.ndarray]

NEEDED = ("observations", "actions", "rewards", "terminals")
NEXT = "next_observations"
ENDS = ("terminals", "timeouts")
EXTRA = "pip install 'hydrl[minari]'"
LARGEST = 1e18  # the squares of a minibatch of larger numbers are beyond single precision


def read(kind: str, path: Path, told: str) -> Columns:
    """The columns of a set that this project reads; others are left where they are.

    Args:
        kind: ``npz``, ``h5`` or ``minari``.
        path: a file, or a folder of :mod:`hydrl.datasets.record`; of Minari's, a local name or a folder.
        told: how the user named it, for messages.

    Raises:
        UserError: if there is none, it cannot be read, or a column lacks or does not fit the others.
    """
    if kind == "minari":
        columns = minari(path, told)
        names = [*columns]
    else:
        file = path / f"data.{kind}" if path.is_dir() else path
        if not file.is_file():
            what = f"no data.{kind} in it" if path.is_dir() else "no such file"
            raise UserError(f"{told}: there is {what}; {instead(path, kind)}")
        try:
            columns, names = READERS[kind](file)
        except UserError:
            raise
        except Exception as error:  # whatever a damaged file leads NumPy and HDF5 to
            raise UserError(f"{told} cannot be read as {kind}: {reason(error)}") from None
    require(columns, told, names)
    return columns


def is_read(name: str) -> bool:
    """Whether a column of this name is one of those that this project reads."""
    return name.partition("/")[0] in (*NEEDED, NEXT, *ENDS)


def instead(path: Path, kind: str = "") -> str:
    """What a path that is no such set seems to be, where that is of another ``kind``."""
    kinds = {
        "npz": path.suffix == ".npz" or (path / "data.npz").is_file(),
        "h5": path.suffix in (".h5", ".hdf5") or (path / "data.h5").is_file(),
        "run": path.suffix == ".torchrl" or (path / "config_resolved.yaml").is_file(),
        "minari": (path / "data" / "main_data.hdf5").is_file() or (path / "main_data.hdf5").is_file(),
    }
    others = [each for each, fits in kinds.items() if fits and each != kind]
    return (
        f"use data={'replay_buffer' if others[0] == 'run' else others[0]}" if others else "give another path"
    )


def npz(file: Path) -> tuple[Columns, list[str]]:
    """Of an archive of NumPy's, and the names of all it has; nothing in it is run."""
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
        members = {each.filename: each for each in archive.zip.infolist()}
        held = {name: members.get(f"{name}.npy", members.get(name)) for name in archive.files}
        read = {name: member for name, member in held.items() if member is not None and is_read(name)}
        require_room({name: member.file_size for name, member in read.items()})
        for name, member in read.items():
            require_member(archive.zip, member)
            columns[name] = value_of(name, partial(archive.__getitem__, name))
        return columns, archive.files


def value_of(name: str, read: Callable[[], Any]) -> Any:
    """What a column holds.

    Raises:
        ValueError: naming the column, where it cannot be read.
    """
    try:
        return read()
    except Exception as error:
        raise ValueError(f"{name}: {reason(error)}") from None


def h5(file: Path) -> tuple[Columns, list[str]]:
    """Of an HDF5 file, groups within groups joined by a stroke, and the names of all it has."""
    h5py = imported("h5py", "data=h5")
    if zipfile.is_zipfile(file):
        raise ValueError("it is an archive; use data=npz")
    columns: Columns = {}
    with h5py.File(file) as opened:
        there = datasets_of(opened)
        read = {name: each for name, each in there.items() if is_read(name)}
        require_room({name: prod(each.shape) * each.dtype.itemsize for name, each in read.items()})
        for name, each in read.items():
            if each.dtype.kind not in "biuf":
                raise ValueError(f"{name} holds {each.dtype}, and numbers are read")
            columns[name] = value_of(name, partial(each.__getitem__, ()))
        return columns, [*there]


READERS: dict[str, Callable[[Path], tuple[Columns, list[str]]]] = {"npz": npz, "h5": h5}


def minari(path: Path, told: str) -> Columns:
    """Of a set of Minari's, a local one: nothing is fetched."""
    library = imported("minari", "data=minari")
    from minari.storage.datasets_root_dir import get_dataset_path

    inner = next((each for each in (path / "data", path) if (each / "main_data.hdf5").is_file()), None)
    inner = inner or get_dataset_path(str(path)) / "data"
    if not (inner / "metadata.json").is_file():
        fetch = f"`minari download {path}` fetches one of its own; else " if is_name(path) else ""
        advice = f"{fetch}{instead(path, 'minari')}"
        raise UserError(f"{told}: there is no such set of Minari's here; {advice}")
    try:
        require_minari(inner)
        return by_episode(library.MinariDataset(inner))
    except Exception as error:  # whatever a damaged file leads Minari and HDF5 to
        raise UserError(f"{told} cannot be read as minari: {reason(error)}") from None


def by_episode(made: Any) -> Columns:
    """The columns of a Minari set."""
    parts: dict[str, list[np.ndarray]] = {}
    for episode in made.iterate_episodes():
        allowed = (episode.infos or {}).get(MASK)
        beside = [] if allowed is None else [((MASK,), np.asarray(allowed))]
        for name, values in [*leaves(episode.observations), *beside]:
            parts.setdefault("/".join(["observations", *name]), []).append(values[:-1])
            parts.setdefault("/".join([NEXT, *name]), []).append(values[1:])
        over, limits = (np.array(each, bool) for each in (episode.terminations, episode.truncations))
        limits[-1:] |= ~over[-1:]  # where the record of an episode stops, it goes on unseen
        columns = {
            **{"/".join(["actions", *name]): each for name, each in leaves(episode.actions)},
            "rewards": episode.rewards,
            "terminals": over,
            "timeouts": limits,
        }
        for column, values in columns.items():
            parts.setdefault(column, []).append(np.asarray(values))
    made = {name: np.concatenate(each) for name, each in parts.items()}
    if "observations" in made and f"observations/{MASK}" in made:  # one array, and what says what is allowed
        for column in ("observations", NEXT):
            made[f"{column}/observation"] = made.pop(column)
    return made


def minari_folder(path: Path) -> Path:
    """Where a set of Minari's lies that is named, or the folder itself."""
    if path.exists() or not is_name(path):
        return path
    from minari.storage.datasets_root_dir import get_dataset_path

    return get_dataset_path(str(path))


def older_minari(path: Path) -> bool:
    """Whether a set of Minari's was written by a ``record`` whose values were the policy's."""
    library = imported("minari", "data=minari")
    folder = minari_folder(path)
    inner = folder / "data" if (folder / "data").is_dir() else folder
    if (folder / "about.json").is_file() or (inner.parent / "about.json").is_file():
        return False
    said = str(library.MinariDataset(inner).storage.metadata.get("description", ""))
    return re.match(r"\d+ steps of .+, played by ", said) is not None


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


def imported(name: str, asks: str) -> Any:
    """A package of an extra.

    Raises:
        UserError: if it is not installed.
    """
    try:
        return __import__(name)
    except ImportError:
        raise UserError(f"{asks} needs {name}; {EXTRA}") from None


def require(columns: Columns, told: str, names: Sequence[str] = ()) -> None:
    """All columns are there, as long as each other, and their numbers are numbers.

    Args:
        columns: that are read; those that end episodes are made flat here.
        told: how the user named the set, for messages.
        names: of all columns there are.

    Raises:
        UserError: naming the column, and the row where one is wrong.
    """
    there = {name.partition("/")[0] for name in columns}
    if lacking := [name for name in NEEDED if name not in there]:
        has = ", ".join(dict.fromkeys(name.partition("/")[0] for name in names)) or "none"
        raise UserError(f"{told}: it has no {' and no '.join(lacking)}; its columns are {printable(has)}")
    if odd := [name for name in columns if not name.isprintable()]:
        raise UserError(f"{told}: the column {odd[0]!a} has a name that cannot be printed")
    count = len(columns["rewards"]) if columns["rewards"].ndim else 0
    if not count:
        raise UserError(f"{told}: it has no rows")
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            raise UserError(f"{told}: {name} holds {values.dtype}, and numbers are read")
        if not values.ndim or len(values) != count:
            rows = len(values) if values.ndim else 0
            raise UserError(f"{told}: {name} has {rows:,} rows and rewards {count:,}")
        if values.dtype.kind == "f" and not (finite := np.isfinite(values).reshape(count, -1).all(1)).all():
            raise UserError(f"{told}: {name} has a NaN or an infinity in row {finite.argmin():,}")
        if (large := ((values > LARGEST) | (values < -LARGEST)).reshape(count, -1).any(1)).any():
            row = int(large.argmax())
            value = max(values[row].reshape(-1).tolist(), key=abs)
            raise UserError(
                f"{told}: {name} has {value:g} in row {row:,}, and numbers up to {LARGEST:g} are read"
            )
    for name in ("rewards", *ENDS):
        if name in columns:
            columns[name] = columns[name].reshape(count, -1)
            if columns[name].shape[1:] != (1,):
                raise UserError(
                    f"{told}: {name} should be one number a row, and there are {columns[name].shape}"
                )
            columns[name] = columns[name][:, 0]
            if name in ENDS and not np.isin(columns[name], (0, 1)).all():
                raise UserError(f"{told}: {name} should be true or false, or 1 or 0")
    if NEXT not in there and ("timeouts" not in columns or not ends(columns).any()):
        lacks = "no timeouts" if "timeouts" not in columns else "no row that ends an episode"
        raise UserError(f"{told}: it has {lacks} and no {NEXT}, so that one episode would run into the next")


def ends(columns: Columns) -> np.ndarray:
    """``[rows]``, whether an episode ends with a row, by itself or by its time limit."""
    found = columns["terminals"].astype(bool)
    return found | columns["timeouts"].astype(bool) if "timeouts" in columns else found


def observed(columns: Columns, of: str = "observations") -> dict[str, np.ndarray]:
    """What is observed by its entries' names, that of the one there may be being empty."""
    return {name.partition("/")[2]: each for name, each in columns.items() if name.partition("/")[0] == of}


def counted(columns: Columns) -> Columns:
    """All rows, with the return and the length of their episode so far.

    Returns:
        all columns, ``timeouts`` too; ``returns`` before a row and ``next_returns`` after it, undiscounted,
        and ``to_go``, what is returned from it on, NaN where an episode has no end; ``steps``, from 1;
        ``episodes``, their numbers.
    """
    done, count = ends(columns), len(columns["rewards"])
    made = {"timeouts": np.zeros(count, bool), **columns}
    begins = np.flatnonzero(np.r_[True, done[:-1]])
    lengths = np.diff(np.r_[begins, count])
    total = np.r_[0.0, np.cumsum(columns["rewards"], dtype=np.float64)]
    before = np.repeat(total[begins], lengths)
    made |= {"returns": total[:-1] - before, "next_returns": total[1:] - before}
    made["steps"] = np.arange(count) - np.repeat(begins, lengths) + 1
    made["episodes"] = np.repeat(np.arange(len(begins)), lengths)
    over = np.cumsum(lengths)
    made["to_go"] = np.repeat(np.where(done[over - 1], total[over], np.nan), lengths) - total[:-1]
    return made


def transitions(columns: Columns) -> Columns:
    """The rows of which it is known what came after them, with ``next_observations``, as :func:`counted`.

    Where there are none the row below has them, but not where an episode ends: a row that ends one by itself
    needs none, one before a time limit and the last one are left out. Its episode has them still: it returned
    what all its rows did.
    """
    made, terminal = counted(columns), columns["terminals"].astype(bool)
    if observed(columns, NEXT):
        return made
    for name, values in observed(columns).items():
        after = np.concatenate([values[1:], values[-1:]])
        rows = terminal.reshape(-1, *[1] * (values.ndim - 1))
        made["/".join([NEXT, *([name] if name else [])])] = np.where(rows, values, after)
    known = terminal | ~ends(columns)
    known[-1] = terminal[-1]
    return {name: values[known] for name, values in made.items()}


def write(kind: str, file: Path, columns: Columns) -> None:
    """Writes columns to a file, whole or not at all; ``npz`` or ``h5``."""
    if kind == "npz":
        with file.open("wb") as opened:
            arrays: dict[str, Any] = dict(columns)
            np.savez_compressed(opened, **arrays)
        return
    whole = io.BytesIO()  # HDF5's own library brings the process down where a disk is full
    with imported("h5py", "format=h5").File(whole, "w") as opened:
        for name, values in columns.items():
            opened.create_dataset(name, data=values, compression="gzip")
    file.write_bytes(whole.getbuffer())
