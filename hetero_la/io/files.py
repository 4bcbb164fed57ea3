"""Matrices in files: NumPy, Matrix Market, HDF5 and Zarr.

What is written appears under its name only once it is complete.
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

from hetero_la.io.formats import FORMATS, NAMELESS, Arrays, Format, library, require_memory
from hetero_la.scheduler.machine.atomic_files import atomic_replacement, require_replaceable
from hetero_la.tiles.arrays.errors import InsufficientMemoryError

__all__ = [
    "read_matrix",
    "replacing",
    "require_memory",
    "require_place",
    "require_writable",
    "write_matrix",
    "write_text",
]


def _format(path: Path) -> Format:
    lower = path.name.lower()
    for suffix, found in FORMATS.items():
        if lower.endswith(suffix):
            return found
    raise ValueError(f"its suffix is none of {', '.join(FORMATS)}")


#: What the libraries raise for files that are damaged or not what their names say.
_UNREADABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RuntimeError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def _explained(doing: str, path: Path) -> Iterator[None]:
    """Turn what libraries raise into one sentence that names the file."""
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
        Which array, where the file holds several.
    copies : int, optional
        For how many arrays of its size there must be memory, itself included.

    Returns
    -------
    ndarray
        The array, dense, of the file's dtype.

    Raises
    ------
    ValueError, OSError, InsufficientMemoryError
        In one sentence, with the path and the reason.  Pickled objects are
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
    with _explained("read", path):
        chosen = _format(path)
        if name is not None and not chosen.several:
            raise ValueError(NAMELESS)
        array = np.asarray(chosen.read(path, name, copies))
        if array.dtype.kind not in "biufc":
            raise ValueError(f"its dtype is {array.dtype}, not a number")
        return array


def require_writable(path: str | os.PathLike[str], arrays: int = 1) -> None:
    """Raise now, rather than after a long run, if `path` cannot be written.

    Parameters
    ----------
    path : path-like
        Where `write_matrix` is to write.
    arrays : int, optional
        How many arrays.

    Raises
    ------
    ValueError, OSError
        As `write_matrix` would.
    """
    path = Path(path)
    with _explained("write", path):
        chosen = _format(path)
        if arrays != 1 and not chosen.several:
            able = ", ".join(suffix for suffix, f in FORMATS.items() if f.several)
            raise ValueError(f"it cannot hold {arrays} arrays, which {able} can")
        if chosen.library:
            library(chosen.library)
    # A folder is replaced only where it surely is a Zarr store, and nobody's data.
    store = chosen.library == "zarr" and any((path / f).exists() for f in (".zgroup", "zarr.json"))
    require_place(path, folder=store)


def require_place(path: Path, *, folder: bool = False) -> None:
    """Raise now if nothing can be written at `path`, where a `folder` may be in the way."""
    with _explained("write", path):
        parent = path.resolve().parent
        if not parent.is_dir():
            raise FileNotFoundError(f"there is no folder {parent}")
        if not os.access(parent, os.W_OK):
            raise PermissionError(f"the folder {parent} is not writable")
        if path.is_dir() and not folder:
            raise IsADirectoryError("it is a folder")
        require_replaceable(path)
        tempfile.TemporaryFile(dir=parent).close()  # permissions do not tell it all


def require_two_files(first: Path | None, second: Path | None) -> None:
    """Raise if two outputs go to one file: the one that is written later would replace the other.

    Raises
    ------
    ValueError
        With the name of the file.
    """
    if first is not None and second is not None and first.resolve() == second.resolve():
        raise ValueError(f"two outputs cannot both be written to {second}: choose another name")


def write_matrix(path: str | os.PathLike[str], arrays: NDArray[Any] | Arrays) -> None:
    """Write one array, or several by name, to a file.

    The file appears complete or not at all; one that was there stays until then.

    Parameters
    ----------
    path : path-like
        The suffix chooses the format, as for `read_matrix`.
    arrays : ndarray or mapping of str to ndarray
        ``.npy``, ``.mtx`` and ``.mtx.gz`` hold one array, the others any number.
        Matrix Market knows no vectors: one comes back as a single column.

    Raises
    ------
    ValueError, OSError
        In one sentence, with the path and the reason.
    """
    path = Path(path)
    named = dict(arrays) if isinstance(arrays, Mapping) else {"a": np.asarray(arrays)}
    require_writable(path, len(named))
    for key, array in named.items():
        if array.dtype.kind not in "biufc":
            raise ValueError(f"cannot write {path}: the dtype of {key!r} is {array.dtype}")
    with replacing(path) as unfinished:
        _format(path).write(unfinished, named)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path that takes the place of `path` if the block ends well.

    Its errors are one sentence that names the file.

    Examples
    --------
    >>> import tempfile
    >>> from hetero_la.io.files import Path, replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "report.txt") as unfinished:
    ...         _ = unfinished.write_text("all of it")
    ...     (Path(folder) / "report.txt").read_text()
    'all of it'
    """
    with _explained("write", path), atomic_replacement(path) as unfinished:
        yield unfinished


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, complete or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
