"""Writer of scenes as PNG, by Matplotlib."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero_la.io.outputs import replacing_file
from hetero_la.pictures.palette import PAPER
from hetero_la.pictures.scene import Line, Rect, Scene, Text, arrow_head

_DPI = 96.0
_SCALE = 2.0  #: pixels of the file per pixel of the scene, along a side
_LARGEST = 16384.0  #: maximum pixels of a side that viewers open
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def matplotlib_agg() -> Any:
    """Import Matplotlib's backend that draws in memory.

    Raises
    ------
    ValueError
        If Matplotlib is not installed; the message tells how to install it.
    """
    try:
        return importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise ValueError(
            "PNG and GIF need the matplotlib library (pip install 'hetero-la[viz]' brings it); "
            "SVG, DOT and HTML need nothing"
        ) from error


def write_png(scene: Scene, path: Path) -> None:
    """Write the scene at `_SCALE` times its size, or smaller if that is too large."""
    agg = matplotlib_agg()
    from matplotlib.figure import Figure

    scale = min(_SCALE, _LARGEST / max(scene.width, scene.height, 1.0))
    figure = Figure((scene.width / _DPI, scene.height / _DPI), facecolor=PAPER)
    agg.FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    axes.set_axis_off()
    _fill(axes, scene)
    with replacing_file(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=_DPI * scale)


def _fill(axes: Any, scene: Scene) -> None:
    """Draw runs of shapes of one type at once: drawing them singly takes ten times as long."""
    for order, (kind, run) in enumerate(itertools.groupby(scene.shapes, type)):
        _DRAW_BY_TYPE[kind](axes, list(run), order)


def _points(pixels: float) -> float:
    return pixels * 72 / _DPI


def _rects(axes: Any, run: list[Rect], order: int) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    patches = PatchCollection(
        [Rectangle((r.x, r.y), r.width, r.height) for r in run],
        facecolors=[r.fill for r in run], edgecolors=[r.stroke for r in run],
        linewidths=[_points(r.thickness) if r.stroke != "none" else 0.0 for r in run],
        zorder=order,
    )  # fmt: skip
    axes.add_collection(patches, autolim=False)


def _lines(axes: Any, run: list[Line], order: int) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    lines = LineCollection(
        [line.points for line in run], colors=[line.stroke for line in run],
        linewidths=[_points(line.thickness) for line in run], zorder=order,
    )  # fmt: skip
    axes.add_collection(lines, autolim=False)
    arrows = [line for line in run if line.arrow]
    heads = PolyCollection(
        [arrow_head(line.points) for line in arrows],
        facecolors=[line.stroke for line in arrows], linewidths=0.0, zorder=order,
    )  # fmt: skip
    axes.add_collection(heads, autolim=False)


def _texts(axes: Any, run: list[Text], order: int) -> None:
    for t in run:
        axes.text(
            t.x, t.y, t.text, fontsize=_points(t.size), color=t.fill, ha=_ALIGNED[t.anchor],
            va="baseline", fontweight="bold" if t.bold else "normal", zorder=order,
            parse_math=False,
        )  # fmt: skip


_DRAW_BY_TYPE: dict[type, Callable[[Any, Any, int], None]] = {
    Rect: _rects,
    Line: _lines,
    Text: _texts,
}
