"""Matrices in files that are read and written in parts: NumPy, HDF5 and Zarr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.checks.inputs import DTYPES
from hetero_la.io.formats import HAS_NO_NAMES, import_library, opened_hdf5, opened_zarr
from hetero_la.io.outputs import errors_naming_file
from hetero_la.io.overwritten import require_complete
from hetero_la.tiles.storage.file_storage import StoredMatrix

#: Suffixes of files of which parts can be read, and of those that hold several arrays.
READABLE = (".npy", ".h5", ".hdf5", ".zarr")
WRITABLE = READABLE[1:]
#: Side of the square chunks of new arrays, in elements.
_CHUNK = 1024


def suffix_of(path: Path, known: tuple[str, ...], doing: str) -> str:
    """Return the suffix of a file; raise ValueError if it is not one of those known."""
    suffix = path.suffix.lower()
    if suffix not in known:
        raise ValueError(
            f"cannot {doing} {path} in parts: its suffix is none of {', '.join(known)}"
        )
    return suffix


@contextlib.contextmanager
def opened(path: Path, name: str | None = None) -> Iterator[StoredMatrix]:
    """Open a matrix in a file, of which parts are read.

    Parameters
    ----------
    path : Path
        ``.npy``, ``.h5``, ``.hdf5`` or ``.zarr``.
    name : str, optional
        Name of the array, if the file holds several.

    Raises
    ------
    ValueError, OSError
        If it cannot be read, or is no matrix of a supported dtype; the message names the file.
    """
    with contextlib.ExitStack() as stack:
        suffix = suffix_of(path, READABLE, "read")
        with errors_naming_file("read", path):
            found = stack.enter_context(_OPENED[suffix](path, name))
        if len(found.shape) != 2 or found.dtype.name not in DTYPES:
            raise ValueError(
                f"{path} holds an array of shape {found.shape} and dtype {found.dtype}, not a "
                f"matrix of {', '.join(DTYPES)}"
            )
        yield found


@contextlib.contextmanager
def _opened_npy(path: Path, name: str | None) -> Iterator[Any]:
    if name is not None:
        raise ValueError(HAS_NO_NAMES)
    require_complete(path)
    yield np.load(path, mmap_mode="r", allow_pickle=False)


_OPENED = {".npy": _opened_npy, ".h5": opened_hdf5, ".hdf5": opened_hdf5, ".zarr": opened_zarr}


@dataclass
class StoredFactors:
    """A file of factors that is being written: the large one in parts, vectors at the end."""

    matrix: StoredMatrix
    file: Any

    def write(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Write the vectors."""
        for name, vector in vectors.items():
            if name in self.file:
                del self.file[name]
            if hasattr(self.file, "create_dataset") and not hasattr(self.file, "create_array"):
                self.file.create_dataset(name, data=vector)
            else:
                self.file.create_array(name, data=vector)

    def flush(self) -> None:
        """Let the file hold what has been written, whatever happens to this process."""
        if hasattr(self.file, "flush"):
            self.file.flush()


@contextlib.contextmanager
def factors_file(
    path: Path, suffix: str, name: str, shape: tuple[int, ...], dtype: Any, *, old: bool
) -> Iterator[StoredFactors]:
    """Open a file for a large factor: a new one, or an old one to go on with."""
    with contextlib.ExitStack() as stack:
        with errors_naming_file("write", path):
            if suffix == ".zarr":
                file = import_library("zarr").open_group(path, mode="r+" if old else "w")
            else:
                file = import_library("h5py").File(path, "r+" if old else "w")
                stack.callback(file.close)
            if not old:
                chunks = tuple(min(_CHUNK, max(size, 1)) for size in shape)
                create = file.create_array if suffix == ".zarr" else file.create_dataset
                create(name, shape=shape, dtype=dtype, chunks=chunks)
        yield StoredFactors(file[name], file)
