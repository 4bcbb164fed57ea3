"""Export of traced runs to a file, in the format of its suffix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.charts.chrome import chrome_events
from hetero_la.pictures.charts.gantt import draw_runs
from hetero_la.pictures.graph.files import draw_graph
from hetero_la.pictures.graph.page import page
from hetero_la.pictures.runs.animation import animation
from hetero_la.pictures.scene import Scene
from hetero_la.pictures.suffix import drawing_for, write_picture

Drawing = Callable[[Sequence[TracedRun]], Scene | str | bytes]


def write_runs(runs: Sequence[TracedRun], path: str | os.PathLike[str]) -> None:
    """Write the timeline of some runs."""
    write_picture(path, require_suffix(path)(runs))


def require_suffix(path: str | os.PathLike[str]) -> Drawing:
    """Return the function that draws timelines for this path; raise ValueError if none does."""
    return drawing_for(path, _DRAWINGS, "write")


def _json(runs: Sequence[TracedRun]) -> str:
    return json.dumps({"traceEvents": chrome_events(runs), "displayTimeUnit": "ms"})


def _page(runs: Sequence[TracedRun]) -> str:
    """Return the page of the longest run, its prediction, and all other runs."""
    longest = max(runs, key=lambda run: run.seconds)
    predicted = [] if longest.predicted else longest.plan.played()
    others = [run.recording for run in runs if run is not longest]
    placed = longest.plan.graph.placed()
    return page(placed, draw_graph(placed), [longest.recording, *predicted, *others])


def _animation(runs: Sequence[TracedRun]) -> bytes:
    return animation(max(runs, key=lambda run: run.seconds).recording)


_DRAWINGS: dict[str, Drawing] = {
    ".json": _json, ".svg": draw_runs, ".png": draw_runs, ".html": _page, ".gif": _animation,
}  # fmt: skip
