"""Output files, which appear under their names only when they are complete.

Errors are raised as one sentence that names the file, if possible before a long run.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from hetero_la.scheduler.machine.atomic_files import atomic_replacement, require_replaceable
from hetero_la.tiles.arrays.errors import InsufficientMemoryError

#: Errors that the libraries raise for files that are damaged or of another format.
_UNREADABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RuntimeError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def errors_naming_file(doing: str, path: Path) -> Iterator[None]:
    """Turn the errors of libraries into one sentence that names the file."""
    try:
        yield
    except MemoryError as error:
        told = error if isinstance(error, InsufficientMemoryError) else "memory is exhausted"
        raise InsufficientMemoryError(f"cannot {doing} {path}: {told}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0]
        raise type(error)(f"cannot {doing} {path}: {reason}") from error
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot {doing} {path}: {reason}") from error


def require_writable_path(path: Path, *, folder: bool = False) -> None:
    """Raise now if nothing can be written at `path`; `folder` allows to replace a folder."""
    with errors_naming_file("write", path):
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


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a path whose file replaces `path` if the block succeeds.

    Errors are raised with one sentence that names the file.

    Examples
    --------
    >>> import tempfile
    >>> from hetero_la.io.outputs import Path, replacing_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing_file(Path(folder) / "report.txt") as unfinished:
    ...         _ = unfinished.write_text("all of it")
    ...     (Path(folder) / "report.txt").read_text()
    'all of it'
    """
    with errors_naming_file("write", path), atomic_replacement(path) as unfinished:
        yield unfinished


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; the file is complete or does not change."""
    with replacing_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
