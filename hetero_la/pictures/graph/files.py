"""Export of graphs to a file, in the format of its suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hetero_la.io.outputs import write_text
from hetero_la.pictures.graph.collapsed import draw_collapsed
from hetero_la.pictures.graph.dot import dot
from hetero_la.pictures.graph.every_task import draw_every_task
from hetero_la.pictures.graph.page import page
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.png import write_png
from hetero_la.pictures.scene import Scene
from hetero_la.pictures.suffix import writer_for
from hetero_la.pictures.svg import svg

Writer = Callable[[PlacedGraph, Path, bool | None], None]

#: Maximum number of tasks of a graph that is drawn task by task.
READABLE = 250


def draw(
    placed: PlacedGraph, path: str | os.PathLike[str], *, collapse: bool | None = None
) -> None:
    """Draw a graph to a file.

    Parameters
    ----------
    placed : PlacedGraph
        The graph.
    path : path
        File to write, in the format of its suffix: ``.svg``, ``.png`` (with the extra `viz`),
        ``.dot`` or ``.html``, a page that zooms and needs no network.
    collapse : bool, optional
        Whether to draw all tasks of one step, kind and worker as one mark; by default this is
        done for graphs that are too large to be read task by task.

    Raises
    ------
    ValueError
        For another suffix, and for ``.png`` where Matplotlib is missing.

    Examples
    --------
    >>> import tempfile
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> placed = PlacedGraph.unplaced(lu_tasks(TileLayout(8, 8, 2), "tile"), "LU, tile by tile")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(placed, Path(folder) / "lu.html")
    """
    write = require_suffix(path)
    write(placed, Path(path), collapse)


def require_suffix(path: str | os.PathLike[str]) -> Writer:
    """Return the writer of graphs for this path; raise ValueError if there is none."""
    return writer_for(path, _WRITERS, "draw")


def is_collapsed(placed: PlacedGraph, collapse: bool | None) -> bool:
    """Return `collapse`, or by default whether the graph is large."""
    return len(placed.graph) > READABLE if collapse is None else collapse


def draw_graph(placed: PlacedGraph, collapse: bool | None = None) -> Scene:
    """Draw a graph as a scene, collapsed if it is large."""
    return (draw_collapsed if is_collapsed(placed, collapse) else draw_every_task)(placed)


def _write_svg(placed: PlacedGraph, path: Path, collapse: bool | None) -> None:
    write_text(path, svg(draw_graph(placed, collapse)))


def _write_png(placed: PlacedGraph, path: Path, collapse: bool | None) -> None:
    write_png(draw_graph(placed, collapse), path)


def _write_dot(placed: PlacedGraph, path: Path, collapse: bool | None) -> None:
    write_text(path, dot(placed, collapsed=is_collapsed(placed, collapse)))


def _write_page(placed: PlacedGraph, path: Path, collapse: bool | None) -> None:
    write_text(path, page(placed, draw_graph(placed, collapse)))


_WRITERS = {".svg": _write_svg, ".png": _write_png, ".dot": _write_dot, ".html": _write_page}
