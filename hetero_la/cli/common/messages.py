"""Messages about written files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from numpy.typing import NDArray

from hetero_la.tiles.arrays.counted import in_bytes


@contextlib.contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Ignore errors of writing to stderr in the block: the exit status reports the result, too."""
    try:
        yield
    except OSError:
        # The interpreter's flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def written_message(path: Path, what: str) -> str:
    """Return a message with the size and the content of a file, or of a folder of files."""
    parts = path.rglob("*") if path.is_dir() else [path]
    size = sum(part.stat().st_size for part in parts if part.is_file())
    return f"wrote {path}, {in_bytes(size)}: {what}"


def report_written(path: Path, what: str) -> None:
    """Print the message of `written_message` to stderr, beside a table on stdout."""
    with ignore_closed_stderr():
        print(written_message(path, what), file=sys.stderr, flush=True)


def arrays_text(arrays: Mapping[str, NDArray]) -> str:
    """List names, shapes and dtypes of arrays.

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
