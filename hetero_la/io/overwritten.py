"""Files that are overwritten through a map: a note beside each, until that has ended."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def mapped_file(a: Any) -> np.memmap | None:
    """Return the map of a file that an array is a part of.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     a = np.memmap(file, shape=(3, 3), dtype=float, mode="w+")
    ...     mapped_file(np.asarray(a)[1:]) is a, mapped_file(a + 1)
    (True, None)
    """
    while isinstance(a, np.ndarray):
        if isinstance(a, np.memmap) and isinstance(a.base, mmap.mmap):
            return a
        a = a.base
    return None


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".incomplete")


@contextlib.contextmanager
def overwriting(a: Any, title: str) -> Iterator[None]:
    """Leave a note beside the file that `a` is a map of, until the block ends without an error."""
    mapped = mapped_file(a)
    if mapped is None or mapped.mode == "c" or not mapped.filename:
        yield
        return
    path = Path(mapped.filename)
    with contextlib.suppress(OSError):  # nobody may write to the folder
        _note(path).write_text(
            f"{path.name} may hold neither its matrix nor the result: {title}, which overwrites "
            "it, has not ended\n", encoding="utf-8",
        )  # fmt: skip
    yield
    _note(path).unlink(missing_ok=True)


def require_complete(path: Path) -> None:
    """Raise ValueError if there is a note beside a file."""
    if _note(path).exists():
        told = _note(path).read_text(encoding="utf-8").strip()
        raise ValueError(f"{told}; delete {_note(path).name} to use it nevertheless")
