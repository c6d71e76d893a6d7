"""Checks of dataset files before their contents are read: they may be damaged or untrusted."""

import json
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import psutil
from numpy.lib import format as npy

from hydrl.errors import printable

KNOWN_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def short_reason(error: Exception) -> str:
    """An error's message in one short line."""
    text = " ".join(str(error).split()).partition(" If you trust")[0][:160]
    return printable(text) or type(error).__name__


def check_memory(sizes: Mapping[str, int]) -> None:
    """Checks that a file's declared columns fit into this machine's memory.

    Args:
        sizes: size of each column in bytes.

    Raises:
        ValueError: naming the largest column.
    """
    declared, memory = sum(sizes.values()), psutil.virtual_memory().total
    if declared > memory:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{largest} declares {sizes[largest] / 1e9:,.1f} GB, all columns {declared / 1e9:,.1f} GB, "
            f"and this machine has {memory / 1e9:,.1f} GB of memory"
        )


def check_npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Checks that a member of a NumPy archive is an array of its declared size.

    Raises:
        ValueError: naming the column.
    """
    name = member.filename.removesuffix(".npy")
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    if member.compress_type not in KNOWN_COMPRESSION:
        raise ValueError(f"{name} has an unknown compression, {member.compress_type}")
    try:
        with archive.open(member) as opened:
            version = npy.read_magic(opened)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(opened)
            begin = opened.tell()
    except Exception as error:
        raise ValueError(f"{name} is not an array: {short_reason(error)}") from None
    declared, actual = prod(shape) * dtype.itemsize, member.file_size - begin
    if not dtype.hasobject and declared != actual:
        raise ValueError(f"{name} declares {declared:,} bytes and has {actual:,}")


def hdf5_datasets(opened: Any) -> dict[str, Any]:
    """All HDF5 datasets of an open file by their path, ``GROUP/NAME``.

    Raises:
        ValueError: naming a link, or one whose values are in another file.
    """
    import h5py

    datasets: dict[str, Any] = {}
    visited, groups = set[int](), [("", opened)]
    while groups:
        parent, group = groups.pop()
        if (address := h5py.h5o.get_info(group.id).addr) in visited:  # a group may contain itself
            continue
        visited.add(address)
        for member in group:
            name = f"{parent}/{member}".lstrip("/")
            if not isinstance(group.get(member, getlink=True), h5py.HardLink):
                raise ValueError(f"{name} is a link. Copy its target into the file")
            node = group[member]
            if isinstance(node, h5py.Group):
                groups.append((name, node))
            elif isinstance(node, h5py.Dataset):
                if node.is_virtual or node.external:
                    raise ValueError(f"{name} has its values in another file. Copy them into this one")
                if node.shape is None:
                    raise ValueError(f"{name} has no values")
                datasets[name] = node
    return datasets


def check_minari(folder: Path) -> None:
    """Checks that a Minari dataset's folder holds what its ``metadata.json`` declares.

    Raises:
        ValueError: if it does not, or if reading it would create an environment.
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
            raise ValueError(f"metadata.json declares total_episodes={declared}, and the file has {count}")
        datasets = hdf5_datasets(opened)
        sizes = {name: prod(node.shape) * node.dtype.itemsize for name, node in datasets.items()}
    check_memory({name: size for name, size in sizes.items() if "/infos/" not in name})
    for name, size in sizes.items():
        check_memory({name: size})
