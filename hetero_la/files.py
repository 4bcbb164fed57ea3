"""Matrices in files: NumPy, Matrix Market, HDF5 and Zarr.

What is written appears under its name only once it is complete: it is written
beside its place first, and then takes that place in one step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_la._formats import FORMATS, Arrays, Format, library, require_memory
from hetero_la.tiles.errors import InsufficientMemoryError

__all__ = ["read_matrix", "require_memory", "require_writable", "write_matrix"]

#: Temporary paths that a write has begun and not ended.
_unfinished: set[Path] = set()


def _format(path: Path) -> Format:
    lower = path.name.lower()
    for suffix, found in FORMATS.items():
        if lower.endswith(suffix):
            return found
    raise ValueError(f"its suffix is none of {', '.join(FORMATS)}")


#: What the libraries raise for files that are damaged or not what their names say.
_UNREADABLE = (
    ValueError, TypeError, LookupError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def _explained(doing: str, path: Path) -> Iterator[None]:
    """Turn what libraries raise into one sentence that names the file."""
    try:
        yield
    except InsufficientMemoryError as error:
        raise InsufficientMemoryError(f"cannot {doing} {path}: {error}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0]
        raise type(error)(f"cannot {doing} {path}: {reason}") from error
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot {doing} {path}: {reason}") from error


def read_matrix(path: str | os.PathLike[str], name: str | None = None) -> NDArray[Any]:
    """Read one array from a file.

    Parameters
    ----------
    path : path-like
        ``.npy``, ``.npz``, ``.mtx`` or ``.mtx.gz`` (Matrix Market, array or
        coordinate), ``.h5`` or ``.hdf5`` (with h5py), ``.zarr`` (with zarr).
    name : str, optional
        Which array, where the file holds several.

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
    >>> from hetero_la.files import read_matrix, write_matrix
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_matrix(Path(folder) / "both.npz", {"a": np.eye(2), "b": np.ones(2)})
    ...     read_matrix(Path(folder) / "both.npz", name="b")
    array([1., 1.])
    """
    path = Path(path)
    with _explained("read", path):
        array = np.asarray(_format(path).read(path, name))
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
        folder = path.resolve().parent
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"the folder {folder} is not writable")
        # A folder is replaced only where it surely is a Zarr store, and nobody's data.
        if path.is_dir() and not any((path / f).exists() for f in ("zarr.json", ".zgroup")):
            raise IsADirectoryError("it is a folder")


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
    with _explained("write", path), _replacing(path) as unfinished:
        _format(path).write(unfinished, named)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` that takes its place if the block ends well."""
    target = path.resolve()  # a link stays, and what it points to is replaced
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    _unfinished.add(unfinished)
    try:
        yield unfinished
        if target.is_dir():  # a folder cannot be replaced in one step while it has entries
            old = target.with_name(unfinished.name + ".old")
            os.rename(target, old)
            os.rename(unfinished, target)
            shutil.rmtree(old)
        else:
            os.replace(unfinished, target)
    finally:
        _discard(unfinished)


def _discard(unfinished: Path) -> None:
    if unfinished.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        unfinished.unlink(missing_ok=True)
    _unfinished.discard(unfinished)


def discard_unfinished() -> None:
    """Remove what running writes have begun: for a process that ends at once."""
    for unfinished in list(_unfinished):
        _discard(unfinished)
