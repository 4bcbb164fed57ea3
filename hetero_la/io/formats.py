"""File formats that `hetero_la.io.files` reads and writes."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_la.io.overwritten import require_complete
from hetero_la.tiles.arrays.counted import in_bytes
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.kernels.cpu.device import available_memory

Arrays = Mapping[str, NDArray[Any]]

HAS_NO_NAMES = "it holds one array, which has no name to ask for"


def require_memory(nbytes: int, what: str) -> None:
    """Raise if less than `nbytes` of host memory are available.

    Parameters
    ----------
    nbytes : int
        Bytes needed.
    what : str
        Begin of the message: what the memory is needed for.

    Raises
    ------
    InsufficientMemoryError
        Before anything is allocated: the operating system might grant memory that it does not
        have.
    """
    there = available_memory()
    if nbytes > there:
        raise InsufficientMemoryError(
            f"{what} needs {in_bytes(nbytes)} of memory, and {in_bytes(there)} are available"
        )


def import_library(name: str) -> Any:
    """Import an optional library; raise ValueError with a hint to install it if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"the {name} library is missing (pip install 'hetero-la[files]' brings it)"
        ) from error


def choose_name(names: list[str], name: str | None) -> str:
    """Return the name of the array to read: the one asked for, or the only one."""
    if name is None and len(names) == 1:
        return names[0]
    listed = ", ".join(sorted(names)) or "none"
    if name is None:
        raise ValueError(
            f"it holds {len(names)} arrays ({listed}): choose one by the option 'name'"
        )
    if name not in names:
        raise ValueError(f"it has no array {name!r}; it has {listed}")
    return name


def _read_npy(path: Path, name: str | None, copies: int) -> NDArray:
    require_complete(path)
    with open(path, "rb") as file:
        magic = file.read(len(np.lib.format.MAGIC_PREFIX))
        if magic != np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is not a .npy file, despite its name")
        file.seek(0)
        version = np.lib.format.read_magic(file)
        # Version 3 differs from 2 only in the names of fields, which matrices do not have.
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        there = path.stat().st_size - file.tell()
    size = math.prod(shape) * dtype.itemsize
    if size > there and not dtype.hasobject:  # NumPy would allocate the whole array first
        raise ValueError(f"it should hold {size} bytes for its shape {shape}, and holds {there}")
    require_memory(copies * size, "it")
    return np.load(path, allow_pickle=False)


def _read_npz(path: Path, name: str | None, copies: int) -> NDArray:
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a .npz archive, despite its name")
    loaded = np.load(path, allow_pickle=False)
    with loaded:
        key = choose_name(list(loaded.files), name)
        # The size of the array, since the archive may be compressed.
        member = key if key in loaded.zip.namelist() else f"{key}.npy"
        require_memory(copies * loaded.zip.getinfo(member).file_size, f"its array {key!r}")
        return loaded[key]


def _read_mtx(path: Path, name: str | None, copies: int) -> NDArray:
    import scipy.io

    rows, columns, _, _, field, _ = scipy.io.mminfo(path)
    itemsize = 16 if field == "complex" else 8
    require_memory(copies * rows * columns * itemsize, f"the {rows} x {columns} matrix in it")
    matrix = scipy.io.mmread(path, spmatrix=False)
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


@contextlib.contextmanager
def opened_hdf5(path: Path, name: str | None) -> Iterator[Any]:
    """Open an array in a file, of which parts can be read."""
    h5py = import_library("h5py")
    with h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(
            lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None
        )
        yield file[choose_name(names, name)]


@contextlib.contextmanager
def opened_zarr(path: Path, name: str | None) -> Iterator[Any]:
    """Open an array in a store, of which parts can be read."""
    zarr = import_library("zarr")
    stored = zarr.open(path, mode="r")
    if isinstance(stored, zarr.Group):
        stored = stored[choose_name([key for key, _ in stored.arrays()], name)]
    elif name is not None:
        raise ValueError(HAS_NO_NAMES)
    yield stored


def _read_hdf5(path: Path, name: str | None, copies: int) -> NDArray:
    with opened_hdf5(path, name) as dataset:
        require_memory(copies * dataset.nbytes, f"its array {dataset.name!r}")
        return dataset[()]


def _read_zarr(path: Path, name: str | None, copies: int) -> NDArray:
    with opened_zarr(path, name) as stored:
        require_memory(copies * stored.nbytes, "its array")
        return stored[...]


def _write_npy(path: Path, arrays: Arrays) -> None:
    (array,) = arrays.values()
    with open(path, "xb") as file:
        np.save(file, array, allow_pickle=False)


def _write_npz(path: Path, arrays: Arrays) -> None:
    named: dict[str, Any] = dict(arrays)
    with open(path, "xb") as file:
        np.savez(file, **named)


def _write_mtx(path: Path, arrays: Arrays, opener: Callable[..., Any] = open) -> None:
    import scipy.io

    (array,) = arrays.values()
    if array.ndim > 2:
        raise ValueError(f"Matrix Market holds matrices, and the array has shape {array.shape}")
    with opener(path, "xb") as file:
        columns = array.reshape(-1, 1) if array.ndim < 2 else array
        scipy.io.mmwrite(file, columns, symmetry="general")


def _write_hdf5(path: Path, arrays: Arrays) -> None:
    with import_library("h5py").File(path, "x") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _write_zarr(path: Path, arrays: Arrays) -> None:
    group = import_library("zarr").open_group(path, mode="w-")
    for name, array in arrays.items():
        stored = group.create_array(name, shape=array.shape, dtype=array.dtype)
        if array.ndim == 0:
            stored[...] = array
            continue
        # After Ctrl-C, Zarr's threads still finish a call, so a call must not take long.
        step = stored.chunks[0]
        for start in range(0, array.shape[0], step):
            stored[start : start + step] = np.ascontiguousarray(array[start : start + step])


@dataclass(frozen=True, slots=True)
class Format:
    """Functions that read and write files of one suffix."""

    read: Callable[[Path, str | None, int], NDArray]
    write: Callable[[Path, Arrays], None]
    several: bool  #: whether it can hold more than one array
    library: str | None = None


_HDF5 = Format(_read_hdf5, _write_hdf5, several=True, library="h5py")
FORMATS = {
    ".npy": Format(_read_npy, _write_npy, several=False),
    ".npz": Format(_read_npz, _write_npz, several=True),
    ".mtx": Format(_read_mtx, _write_mtx, several=False),
    ".mtx.gz": Format(_read_mtx, partial(_write_mtx, opener=gzip.open), several=False),
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".zarr": Format(_read_zarr, _write_zarr, several=True, library="zarr"),
}
