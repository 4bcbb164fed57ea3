"""Choice of a writer by the suffix of a file's name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hetero_la.pictures.png import matplotlib_agg

Writer = TypeVar("Writer")

#: Charts that Matplotlib draws.
CHARTS = (".svg", ".png", ".pdf")


def require_chart(path: str | os.PathLike[str]) -> None:
    """Raise now if Matplotlib cannot draw a chart to `path`.

    Raises
    ------
    ValueError
        If the suffix is not one of `CHARTS`, or Matplotlib is missing.

    Examples
    --------
    >>> require_chart("scaling.svg")
    """
    if Path(path).suffix not in CHARTS:
        raise ValueError(f"the chart's name must end in one of {', '.join(CHARTS)}, not {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "a chart needs the matplotlib library (pip install 'hetero-la[viz]' brings it)"
        )


def writer_for(path: str | os.PathLike[str], writers: Mapping[str, Writer], verb: str) -> Writer:
    """Return the writer of a path's suffix; raise ValueError for an unknown one."""
    suffix = Path(path).suffix.lower()
    if suffix not in writers:
        known = ", ".join(writers)
        raise ValueError(
            f"{str(path)!r} must end in one of {known}: the suffix says what to {verb}"
        )
    if suffix == ".png":
        matplotlib_agg()
    return writers[suffix]
