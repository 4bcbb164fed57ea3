"""Matrices in files: NumPy, Matrix Market, HDF5 and Zarr."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_la.io.formats import FORMATS, HAS_NO_NAMES, Arrays, Format, import_library
from hetero_la.io.outputs import errors_naming_file, replacing_file, require_writable_path


def _format(path: Path) -> Format:
    lower = path.name.lower()
    for suffix, found in FORMATS.items():
        if lower.endswith(suffix):
            return found
    raise ValueError(f"its suffix is none of {', '.join(FORMATS)}")


def read_matrix(
    path: str | os.PathLike[str], name: str | None = None, *, copies: int = 1
) -> NDArray[Any]:
    """Read one array from a file.

    Parameters
    ----------
    path : path-like
        ``.npy``, ``.npz``, ``.mtx`` or ``.mtx.gz`` (Matrix Market, array or
        coordinate), ``.h5`` or ``.hdf5`` (with h5py), ``.zarr`` (with zarr).
    name : str, optional
        Name of the array, if the file holds several.
    copies : int, optional
        Number of arrays of its size for which there must be memory, itself included.

    Returns
    -------
    ndarray
        The array, dense, of the file's dtype.

    Raises
    ------
    ValueError, OSError, InsufficientMemoryError
        If the file cannot be read; the message names path and reason.  Pickled objects are
        never loaded.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from hetero_la.io.files import read_matrix, write_matrix
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_matrix(Path(folder) / "both.npz", {"a": np.eye(2), "b": np.ones(2)})
    ...     read_matrix(Path(folder) / "both.npz", name="b")
    array([1., 1.])
    """
    path = Path(path)
    with errors_naming_file("read", path):
        chosen = _format(path)
        if name is not None and not chosen.several:
            raise ValueError(HAS_NO_NAMES)
        array = np.asarray(chosen.read(path, name, copies))
        if array.dtype.kind not in "biufc":
            raise ValueError(f"its dtype is {array.dtype}, not a number")
        return array


def require_writable(path: str | os.PathLike[str], arrays: int = 1) -> None:
    """Raise now, rather than after a long run, if `path` cannot be written.

    Parameters
    ----------
    path : path-like
        File to write.
    arrays : int, optional
        Number of arrays to write.

    Raises
    ------
    ValueError, OSError
        As `write_matrix` would.
    """
    path = Path(path)
    with errors_naming_file("write", path):
        chosen = _format(path)
        if arrays != 1 and not chosen.several:
            able = ", ".join(suffix for suffix, f in FORMATS.items() if f.several)
            raise ValueError(f"it cannot hold {arrays} arrays, which {able} can")
        if chosen.library:
            import_library(chosen.library)
    # A folder is replaced only if it certainly is a Zarr store.
    store = chosen.library == "zarr" and any((path / f).exists() for f in (".zgroup", "zarr.json"))
    require_writable_path(path, folder=store)


def write_matrix(path: str | os.PathLike[str], arrays: NDArray[Any] | Arrays) -> None:
    """Write one array, or several by name, to a file.

    An existing file is replaced only when the new one is complete.

    Parameters
    ----------
    path : path-like
        The suffix chooses the format, as for `read_matrix`.
    arrays : ndarray or mapping of str to ndarray
        ``.npy``, ``.mtx`` and ``.mtx.gz`` hold one array, the others any number.
        Matrix Market has no vectors: a vector is read back as a single column.

    Raises
    ------
    ValueError, OSError
        If the file cannot be written; the message names path and reason.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from hetero_la.io.files import read_matrix, write_matrix
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_matrix(Path(folder) / "a.mtx", np.eye(2))
    ...     read_matrix(Path(folder) / "a.mtx")
    array([[1., 0.],
           [0., 1.]])
    """
    path = Path(path)
    named = dict(arrays) if isinstance(arrays, Mapping) else {"a": np.asarray(arrays)}
    require_writable(path, len(named))
    for key, array in named.items():
        if array.dtype.kind not in "biufc":
            raise ValueError(f"cannot write {path}: the dtype of {key!r} is {array.dtype}")
    with replacing_file(path) as unfinished:
        _format(path).write(unfinished, named)
