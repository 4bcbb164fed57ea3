"""Matrices in files: NumPy, Matrix Market, HDF5 and Zarr.

A file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_la.io.formats import (
    FORMATS,
    HAS_NO_NAMES,
    Arrays,
    Format,
    import_library,
    require_memory,
)
from hetero_la.scheduler.machine.atomic_files import atomic_replacement, require_replaceable
from hetero_la.tiles.arrays.errors import InsufficientMemoryError

__all__ = [
    "read_matrix",
    "replacing_file",
    "require_memory",
    "require_writable",
    "require_writable_path",
    "write_matrix",
    "write_text",
]


def _format(path: Path) -> Format:
    lower = path.name.lower()
    for suffix, found in FORMATS.items():
        if lower.endswith(suffix):
            return found
    raise ValueError(f"its suffix is none of {', '.join(FORMATS)}")


#: Errors that the libraries raise for files that are damaged or of another format.
_UNREADABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RuntimeError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def _errors_naming_file(doing: str, path: Path) -> Iterator[None]:
    """Turn the errors of libraries into one sentence that names the file."""
    try:
        yield
    except InsufficientMemoryError as error:
        raise InsufficientMemoryError(f"cannot {doing} {path}: {error}") from error
    except MemoryError as error:
        raise InsufficientMemoryError(f"cannot {doing} {path}: memory is exhausted") from error
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0]
        raise type(error)(f"cannot {doing} {path}: {reason}") from error
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot {doing} {path}: {reason}") from error


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
    with _errors_naming_file("read", path):
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
    with _errors_naming_file("write", path):
        chosen = _format(path)
        if arrays != 1 and not chosen.several:
            able = ", ".join(suffix for suffix, f in FORMATS.items() if f.several)
            raise ValueError(f"it cannot hold {arrays} arrays, which {able} can")
        if chosen.library:
            import_library(chosen.library)
    # A folder is replaced only if it certainly is a Zarr store.
    store = chosen.library == "zarr" and any((path / f).exists() for f in (".zgroup", "zarr.json"))
    require_writable_path(path, folder=store)


def require_writable_path(path: Path, *, folder: bool = False) -> None:
    """Raise now if nothing can be written at `path`; `folder` allows to replace a folder."""
    with _errors_naming_file("write", path):
        parent = path.resolve().parent
        if not parent.is_dir():
            raise FileNotFoundError(f"there is no folder {parent}")
        if not os.access(parent, os.W_OK):
            raise PermissionError(f"the folder {parent} is not writable")
        if path.is_dir() and not folder:
            raise IsADirectoryError("it is a folder")
        require_replaceable(path)
        tempfile.TemporaryFile(dir=parent).close()  # permissions alone are not sufficient


def require_different_files(first: Path | None, second: Path | None) -> None:
    """Raise if two outputs go to one file, where the second would replace the first.

    Raises
    ------
    ValueError
        If both are the same file; the message names it.
    """
    if first is not None and second is not None and first.resolve() == second.resolve():
        raise ValueError(f"two outputs cannot both be written to {second}: choose another name")


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
    """
    path = Path(path)
    named = dict(arrays) if isinstance(arrays, Mapping) else {"a": np.asarray(arrays)}
    require_writable(path, len(named))
    for key, array in named.items():
        if array.dtype.kind not in "biufc":
            raise ValueError(f"cannot write {path}: the dtype of {key!r} is {array.dtype}")
    with replacing_file(path) as unfinished:
        _format(path).write(unfinished, named)


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a path whose file replaces `path` if the block succeeds.

    Errors are raised with one sentence that names the file.

    Examples
    --------
    >>> import tempfile
    >>> from hetero_la.io.files import Path, replacing_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing_file(Path(folder) / "report.txt") as unfinished:
    ...         _ = unfinished.write_text("all of it")
    ...     (Path(folder) / "report.txt").read_text()
    'all of it'
    """
    with _errors_naming_file("write", path), atomic_replacement(path) as unfinished:
        yield unfinished


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; the file is complete or does not change."""
    with replacing_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
