"""Files of pictures, in the format of their suffix."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hetero_la.io.outputs import replacing_file, write_text
from hetero_la.pictures.gif import pillow
from hetero_la.pictures.png import matplotlib_agg, write_png
from hetero_la.pictures.scene import Scene
from hetero_la.pictures.svg import svg

Drawing = TypeVar("Drawing")

#: What imports the library that a format needs, or says that it is missing.
_NEEDED = {".png": matplotlib_agg, ".gif": pillow}
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


def drawing_for(
    path: str | os.PathLike[str], drawings: Mapping[str, Drawing], verb: str
) -> Drawing:
    """Return the function that draws for a path's suffix; raise ValueError for an unknown one."""
    suffix = Path(path).suffix.lower()
    if suffix not in drawings:
        known = ", ".join(drawings)
        raise ValueError(
            f"{str(path)!r} must end in one of {known}: the suffix says what to {verb}"
        )
    if suffix in _NEEDED:
        _NEEDED[suffix]()
    return drawings[suffix]


def write_picture(path: str | os.PathLike[str], picture: Scene | str | bytes) -> None:
    """Write a text, bytes, or a scene as SVG or PNG."""
    path = Path(path)
    if isinstance(picture, bytes):
        with replacing_file(path) as unfinished:
            unfinished.write_bytes(picture)
    elif isinstance(picture, str):
        write_text(path, picture)
    elif path.suffix.lower() == ".png":
        write_png(picture, path)
    else:
        write_text(path, svg(picture))
