"""Lines that say what a command has done."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from numpy.typing import NDArray

from hetero_la.tiles.arrays.counted import in_bytes


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """What cannot be said on the standard error is not said: the exit status tells it, too."""
    try:
        yield
    except OSError:
        # The interpreter's own flush at exit must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def written(path: Path, what: str) -> str:
    """Say how large a file, or a folder of files, is, and what is in it."""
    parts = path.rglob("*") if path.is_dir() else [path]
    size = sum(part.stat().st_size for part in parts if part.is_file())
    return f"wrote {path}, {in_bytes(size)}: {what}"


def say_written(path: Path, what: str) -> None:
    """Say it on the standard error, beside a table on the standard output."""
    with unheard():
        print(written(path, what), file=sys.stderr, flush=True)


def arrays_text(arrays: Mapping[str, NDArray]) -> str:
    """Names, shapes and types.

    Examples
    --------
    >>> import numpy as np
    >>> arrays_text({"lu": np.eye(3), "piv": np.arange(3, dtype=np.int32)})
    'lu (3 x 3 float64), piv (3 int32)'
    """
    return ", ".join(
        f"{name} ({' x '.join(map(str, array.shape))} {array.dtype})"
        for name, array in arrays.items()
    )
