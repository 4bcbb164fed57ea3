"""Export of traced runs to a file, in the format of its suffix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hetero_la.execution.timeline import TracedRun
from hetero_la.io.outputs import write_text
from hetero_la.pictures.charts.chrome import chrome_events
from hetero_la.pictures.charts.gantt import draw_runs, draw_timeline
from hetero_la.pictures.graph.files import draw_graph
from hetero_la.pictures.graph.page import page
from hetero_la.pictures.png import write_png
from hetero_la.pictures.suffix import writer_for
from hetero_la.pictures.svg import svg

Writer = Callable[[Sequence[TracedRun], Path], None]


def require_suffix(path: str | os.PathLike[str]) -> Writer:
    """Return the writer of timelines for this path; raise ValueError if there is none."""
    return writer_for(path, _WRITERS, "write")


def _write_json(runs: Sequence[TracedRun], path: Path) -> None:
    text = json.dumps({"traceEvents": chrome_events(runs), "displayTimeUnit": "ms"})
    write_text(path, text)


def _write_svg(runs: Sequence[TracedRun], path: Path) -> None:
    write_text(path, svg(draw_runs(runs)))


def _write_png(runs: Sequence[TracedRun], path: Path) -> None:
    write_png(draw_runs(runs), path)


def _write_page(runs: Sequence[TracedRun], path: Path) -> None:
    placed = max(runs, key=lambda run: run.seconds).plan.graph.placed()
    write_text(path, page(placed, draw_graph(placed), draw_timeline(runs)))


_WRITERS: dict[str, Writer] = {
    ".json": _write_json, ".svg": _write_svg, ".png": _write_png, ".html": _write_page,
}  # fmt: skip
