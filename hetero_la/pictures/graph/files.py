"""Export of graphs to a file, in the format of its suffix."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hetero_la.pictures.graph.collapsed import draw_collapsed
from hetero_la.pictures.graph.dot import dot
from hetero_la.pictures.graph.every_task import draw_every_task
from hetero_la.pictures.graph.page import page
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.runs.animation import animation
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.scene import Scene
from hetero_la.pictures.suffix import drawing_for, write_picture

#: Makes the runs that pictures play, where they do.
Runs = Callable[[], Sequence[Recording]]
Drawing = Callable[[PlacedGraph, bool | None, Runs], Scene | str | bytes]

#: Maximum number of tasks of a graph that is drawn task by task.
READABLE = 250


def draw(
    placed: PlacedGraph, path: str | os.PathLike[str], *, collapse: bool | None = None,
    runs: Runs = tuple,
) -> None:  # fmt: skip
    """Draw a graph to a file.

    Parameters
    ----------
    placed : PlacedGraph
        The graph.
    path : path
        File to write, in the format of its suffix: ``.svg``, ``.png`` (with the extra `viz`),
        ``.dot``, ``.html``, a page that plays the run, zooms and needs no network, or ``.gif``
        (with the extra `viz`), an animation of the run.
    collapse : bool, optional
        Whether to draw all tasks of one step, kind and worker as one mark; by default this is
        done for graphs that are too large to be read task by task.
    runs : callable, optional
        Returns the runs that a page or an animation plays.

    Raises
    ------
    ValueError
        For another suffix, for ``.png`` and ``.gif`` where Matplotlib is missing, and for ``.gif``
        without runs.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import hetero_la
    >>> placed = hetero_la.plan("lu", (8, 8), nb=2).graph.placed("tile")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(placed, Path(folder) / "lu.html")
    """
    write_picture(path, require_suffix(path)(placed, collapse, runs))


def require_suffix(path: str | os.PathLike[str]) -> Drawing:
    """Return the function that draws graphs for this path; raise ValueError if none does."""
    return drawing_for(path, _DRAWINGS, "draw")


def is_collapsed(placed: PlacedGraph, collapse: bool | None) -> bool:
    """Return `collapse`, or by default whether the graph is large."""
    return len(placed.graph) > READABLE if collapse is None else collapse


def draw_graph(placed: PlacedGraph, collapse: bool | None = None) -> Scene:
    """Draw a graph as a scene, collapsed if it is large."""
    return (draw_collapsed if is_collapsed(placed, collapse) else draw_every_task)(placed)


def _scene(placed: PlacedGraph, collapse: bool | None, runs: Runs) -> Scene:
    return draw_graph(placed, collapse)


def _dot(placed: PlacedGraph, collapse: bool | None, runs: Runs) -> str:
    return dot(placed, collapsed=is_collapsed(placed, collapse))


def _page(placed: PlacedGraph, collapse: bool | None, runs: Runs) -> str:
    return page(placed, draw_graph(placed, collapse), runs())


def _animation(placed: PlacedGraph, collapse: bool | None, runs: Runs) -> bytes:
    played = runs()
    if not played:
        raise ValueError(
            "an animation shows the run of a plan: there is none without tasks, of a graph alone, "
            "or of a graph tile by tile"
        )
    return animation(played[0])


_DRAWINGS: dict[str, Drawing] = {
    ".svg": _scene, ".png": _scene, ".dot": _dot, ".html": _page,
    ".gif": _animation,
}  # fmt: skip
