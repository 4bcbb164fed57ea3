"""Matrices in files: NumPy, Matrix Market, HDF5 and Zarr.

What is written appears under its name only once it is complete: it is written
beside its place first, and then takes that place in one step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
import time
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_la._formats import FORMATS, NAMELESS, Arrays, Format, library, require_memory
from hetero_la.tiles.errors import InsufficientMemoryError

__all__ = [
    "read_matrix",
    "replacing",
    "require_memory",
    "require_place",
    "require_writable",
    "write_matrix",
    "write_text",
]

#: Temporary paths that a write has begun and not ended, and whose place they are to take.
_unfinished: dict[Path, Path] = {}

#: Seconds in which a library's threads may still write after Ctrl-C, and between two looks.
_STRAGGLERS, _LOOK = 2.0, 0.05


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
    >>> from hetero_la.files import read_matrix, write_matrix
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
        _require_replaceable(path)
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


def _require_replaceable(path: Path) -> None:
    """Raise if the file that is there must not be replaced: a pipe or a device would be lost."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError("it is not a regular file")


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
    """A path beside `path` that takes its place if the block ends well.

    Examples
    --------
    >>> import tempfile
    >>> from hetero_la.files import Path, replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "report.txt") as unfinished:
    ...         _ = unfinished.write_text("all of it")
    ...     (Path(folder) / "report.txt").read_text()
    'all of it'
    """
    target = path.resolve()  # a link stays, and what it points to is replaced
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    _unfinished[unfinished] = target
    try:
        with _explained("write", path):
            _require_replaceable(target)
            yield unfinished
            if target.is_dir() and not unfinished.is_dir():
                raise IsADirectoryError("it is a folder")
            if target.is_dir():  # cannot be replaced in one step while it has entries
                os.rename(target, _aside(unfinished))
                os.rename(unfinished, target)
                shutil.rmtree(_aside(unfinished))
            else:
                os.replace(unfinished, target)
    except BaseException:
        _discard(unfinished, target)
        raise
    finally:
        _unfinished.pop(unfinished, None)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, complete or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _aside(unfinished: Path) -> Path:
    """Where the folder that is replaced waits for the end."""
    return unfinished.with_name(unfinished.name + ".old")


def _discard(unfinished: Path, target: Path) -> None:
    """Remove what was begun, and put back what was to be replaced."""
    old = _aside(unfinished)
    if old.is_dir() and not target.exists():
        os.rename(old, target)
    _remove(old)
    _remove(unfinished)


def _remove(path: Path) -> None:
    """Remove a file, or a folder in which threads of a library may write for a while yet."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    deadline = time.monotonic() + _STRAGGLERS
    while path.is_dir() and time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(_LOOK)  # it may come back


def discard_unfinished() -> None:
    """Remove what running writes have begun: for a process that ends at once."""
    for unfinished, target in list(_unfinished.items()):
        _discard(unfinished, target)
