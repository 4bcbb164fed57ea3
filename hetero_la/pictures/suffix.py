"""Which of several writers a file's name asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hetero_la.pictures.png import matplotlib_agg

Writer = TypeVar("Writer")


def writer_for(path: str | os.PathLike[str], writers: Mapping[str, Writer], verb: str) -> Writer:
    """The writer of a path's suffix; raise ValueError if there is none, or no Matplotlib."""
    suffix = Path(path).suffix.lower()
    if suffix not in writers:
        known = ", ".join(writers)
        raise ValueError(
            f"{str(path)!r} must end in one of {known}: the suffix says what to {verb}"
        )
    if suffix == ".png":
        matplotlib_agg()
    return writers[suffix]
