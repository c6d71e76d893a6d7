"""What a data file declares, looked at before anything in it is read: it may be damaged, or a stranger's."""

import json
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import psutil
from numpy.lib import format as npy

from hydrl.errors import printable

PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def reason(error: Exception) -> str:
    """What is wrong, in one short line."""
    text = " ".join(str(error).split()).partition(" If you trust")[0][:160]
    return printable(text) or type(error).__name__


def require_room(sizes: Mapping[str, int]) -> None:
    """All that a file declares fits into this machine's memory.

    Args:
        sizes: bytes by column.

    Raises:
        ValueError: naming the largest column.
    """
    declared, room = sum(sizes.values()), psutil.virtual_memory().total
    if declared > room:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{largest} declares {sizes[largest] / 1e9:,.1f} GB, all columns {declared / 1e9:,.1f} GB, "
            f"and this machine has {room / 1e9:,.1f} GB of memory"
        )


def require_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """A member of a NumPy archive is an array, of the size that its header declares.

    Raises:
        ValueError: naming the column.
    """
    name = member.filename.removesuffix(".npy")
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    if member.compress_type not in PACKED:
        raise ValueError(f"{name} has the unknown compression {member.compress_type}")
    try:
        with archive.open(member) as opened:
            version = npy.read_magic(opened)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(opened)
            begin = opened.tell()
    except Exception as error:
        raise ValueError(f"{name} is no array: {reason(error)}") from None
    if not dtype.hasobject and begin + prod(shape) * dtype.itemsize != member.file_size:
        held = f"{member.file_size - begin:,}"
        raise ValueError(f"{name} declares {prod(shape) * dtype.itemsize:,} bytes and holds {held}")


def datasets_of(opened: Any) -> dict[str, Any]:
    """All data sets of an open HDF5 file by name, groups within groups joined by a stroke.

    Raises:
        ValueError: naming one that is a link, or whose values lie in another file.
    """
    import h5py

    found: dict[str, Any] = {}
    passed, waiting = set[int](), [("", opened)]
    while waiting:
        within, group = waiting.pop()
        if (address := h5py.h5o.get_info(group.id).addr) in passed:  # a group may hold itself
            continue
        passed.add(address)
        for each in group:
            name = f"{within}/{each}".lstrip("/")
            if not isinstance(group.get(each, getlink=True), h5py.HardLink):
                raise ValueError(f"{name} is a link; copy what it names into the file")
            node = group[each]
            if isinstance(node, h5py.Group):
                waiting.append((name, node))
            elif isinstance(node, h5py.Dataset):
                if node.is_virtual or node.external:
                    raise ValueError(f"{name} has its values in another file; copy them into this one")
                if node.shape is None:
                    raise ValueError(f"{name} has no values")
                found[name] = node
    return found


def require_minari(folder: Path) -> None:
    """A folder of a Minari set holds what its ``metadata.json`` says, and is read without anything else.

    Raises:
        ValueError: for what does not.
    """
    import h5py

    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    for name in ("observation_space", "action_space"):
        if not isinstance(metadata.get(name), str):  # Minari would make the environment that the file names
            raise ValueError(f"metadata.json has no {name}")
    if not (file := folder / "main_data.hdf5").is_file():
        return
    with h5py.File(file) as opened:
        count, declared = len(opened), metadata.get("total_episodes")
        if not isinstance(declared, int) or not 0 <= declared <= count:
            raise ValueError(f"metadata.json declares total_episodes={declared}, and the file holds {count}")
        sizes = {name: prod(each.shape) * each.dtype.itemsize for name, each in datasets_of(opened).items()}
    require_room({name: size for name, size in sizes.items() if "/infos/" not in name})
    for name, size in sizes.items():
        require_room({name: size})
