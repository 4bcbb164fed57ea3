"""Traced runs as Gantt charts: one row for each queue of each worker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.charts.chrome import TASKS, messages
from hetero_la.pictures.charts.tracks_chart import TracksChart, draw_bounds
from hetero_la.pictures.graph.collapsed import ticks
from hetero_la.pictures.legend import Legend, heading, worker_mark
from hetero_la.pictures.palette import (
    FAINT,
    GRID,
    INK,
    LOADING,
    MUTED,
    OTHER,
    PAPER,
    family,
    text_on,
)
from hetero_la.pictures.runs.page_data import ROWS
from hetero_la.pictures.scene import Line, Rect, Scene, Text
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.trace import PARTS
from hetero_la.tiles.arrays.counted import in_seconds

_LEFT = 118.0
_BAR, _ROW = 16.0, 20.0
#: Workers that are drawn as finely as that in a notebook; of more, all are drawn more coarsely.
_FINE_WORKERS = 8
_MOST_ARROWS = 120
_PARTS = -1  # key of the row with the parts of a worker's time
#: Colours of the parts of a worker's time, which, except that of copies, no kernel has.
_PART_COLOURS = dict(
    zip(PARTS, ("#009E73", LOADING, OTHER.colour, "#E69F00", PAPER, INK, MUTED), strict=True)
)


class _Style(NamedTuple):
    """How charts are drawn: for what size of page, and in what detail."""

    width: float  #: of the longest run, in pixels
    finest: float  #: width in pixels below which adjacent boxes are merged
    tracks: bool  #: whether steps, tasks, memory and links are below the workers


_PAGE, _NOTEBOOK = _Style(1080.0, 0.4, tracks=True), _Style(720.0, 3.0, tracks=False)


class _Box(NamedTuple):
    left: float
    right: float
    colour: str
    tip: str

    def is_merged_with(self, other: _Box, finest: float) -> bool:
        """Return whether another box, to the right, cannot be distinguished from this one."""
        narrow = min(self.right - self.left, other.right - other.left) < finest
        return narrow and self.colour == other.colour and other.left - self.right < finest


def _dominant(boxes: list[_Box], width: float) -> list[_Box]:
    """Return a box for each stretch of `width` pixels, in the colour that has most of it.

    It is as long as all boxes there together, so that a row in which little happens stays light.

    Examples
    --------
    >>> calls = [_Box(0.0, 0.6, "#0072B2", ""), _Box(0.6, 1.0, "#D55E00", "")]
    >>> _dominant([*calls, _Box(1.0, 1.5, "#0072B2", "")], 1.0)
    [_Box(left=0.0, right=1.5, colour='#0072B2', tip='several calls')]
    """
    filled: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for box in boxes:
        for cell in range(int(box.left // width), math.ceil(box.right / width)):
            begin, end = max(box.left, cell * width), min(box.right, (cell + 1) * width)
            filled[cell][box.colour] = filled[cell].get(box.colour, 0.0) + end - begin
    found: list[_Box] = []
    for cell, colours in sorted(filled.items()):
        left, colour = cell * width, max(colours, key=colours.__getitem__)
        right = left + min(sum(colours.values()), width)
        if found and found[-1].colour == colour and left - found[-1].right < 1e-3 * width:
            found[-1] = found[-1]._replace(right=right)
        else:
            found.append(_Box(left, right, colour, "several calls"))
    return found


def draw_runs(runs: Sequence[TracedRun]) -> Scene:
    """Draw the charts of some runs, one below the other, with their bounds and tracks."""
    return _charts(runs, _PAGE)


def draw_small(runs: Sequence[TracedRun], width: float = _NOTEBOOK.width) -> Scene:
    """Draw the charts of some runs for a notebook, with few boxes and no tracks.

    A picture of 100,000 calls would be as large as all else in the notebook.  The longest run is
    `width` pixels long.
    """
    workers = sum(len(run.workers) for run in runs)
    finest = _NOTEBOOK.finest * max(workers / _FINE_WORKERS, 1.0)
    return _charts(runs, _NOTEBOOK._replace(width=width, finest=finest))


def _charts(runs: Sequence[TracedRun], style: _Style) -> Scene:
    scene, charts, y = Scene(), [], 0.0
    scene.title = ", ".join(run.plan.heading for run in runs)
    longest = max(run.seconds for run in runs)
    for run in runs:
        charts.append(_Chart(scene, run, y, run.seconds / longest, style))
        y = charts[-1].bottom + 24
    _legend(scene, runs, y, style.width, arrows=any(chart.arrows for chart in charts))
    scene.fit()
    return scene


def _legend(
    scene: Scene, runs: Sequence[TracedRun], y: float, wide: float, *, arrows: bool
) -> None:
    kinds = dict.fromkeys(
        call.kind for run in runs for p in run.plan.programs for call in p.select(CallKernel)
    )
    legend = Legend(scene, 16, y, wide + _LEFT - 16)
    legend.kinds(kinds)
    for part, colour in _PART_COLOURS.items():
        legend.swatch(part, colour)
    legend.end_row()
    legend.note(
        "Rows: a worker's queues, and the tasks in which its thread worked. Grey: loads, stores, "
        "messages." + (" Arrows: panels that travel." if arrows else "")
    )


class _Chart:
    """Chart of one run."""

    def __init__(
        self, scene: Scene, run: TracedRun, top: float, share: float, style: _Style
    ) -> None:
        self.scene, self.run, self.style = scene, run, style
        self.scale = share * style.width / max(run.seconds, 1e-9)
        self.row: dict[tuple[int, int], float] = {}
        spent = f"{in_seconds(run.seconds)} in all{', predicted' if run.predicted else ''}"
        at = heading(scene, 16, run.plan.heading, [spent], top)
        self.top, y = at, at + 6
        for worker in range(len(run.workers)):
            y = self._worker(worker, y)
        if style.tracks:
            y = TracksChart(scene, run.recording, _LEFT, self.scale, y).bottom + 4
        self.bottom = self._axis(y)
        if style.tracks:
            draw_bounds(scene, run.recording, _LEFT, self.scale, self.top, self.bottom)
            self.bottom += 28
        arrows = list(self._arrows())
        self.arrows = arrows if len(arrows) <= _MOST_ARROWS else []
        scene.add(*self.arrows)
        for worker, parts in enumerate(run.parts()):
            self._parts(parts, self.row[worker, _PARTS])

    def _x(self, moment: float) -> float:
        return _LEFT + (moment - self.run.began) * self.scale

    def _worker(self, worker: int, y: float) -> float:
        """Draw the rows of a worker; return the y coordinate of the next worker."""
        info, trace = self.run.plan.workers[worker], self.run.workers[worker]
        instructions = self.run.plan.programs[worker].instructions
        mark = worker_mark(worker, 16, y + 2, 15, 15)
        self.scene.add(*mark, Text(36, y + 14, info.name, bold=True))
        rows: dict[int, list[_Box]] = {}
        for i, span in zip(instructions, trace.spans, strict=True):
            box = self._box(span, i.label, family(i.name).colour)
            rows.setdefault(int(i.queue), []).append(box)
        for row, boxes in sorted(rows.items()):
            self._row(worker, row, y, _BAR, boxes)
            y += _ROW
        spans = enumerate(trace.windows)
        tasks = [self._box(span, f"task {number}", OTHER.colour) for number, span in spans]
        self._row(worker, TASKS, y, 8, tasks)
        loads = [self._box(span, "loading kernels", LOADING) for span in trace.loading]
        self._boxes(y, 8, loads)
        self.row[worker, _PARTS] = y + 15
        return y + 46

    def _box(self, span: np.ndarray, label: str, colour: str) -> _Box:
        start, stop = span.tolist()
        tip = f"{label}: {in_seconds(stop - start)}"
        return _Box(self._x(start), self._x(stop), colour, tip)

    def _row(self, worker: int, row: int, y: float, high: float, boxes: list[_Box]) -> None:
        """Draw a row with its name."""
        self.row[worker, row] = y
        self.scene.add(Text(_LEFT - 8, y + high / 2 + 4, ROWS[row], 10, "end", MUTED))
        self._boxes(y, high, boxes)

    def _boxes(self, y: float, high: float, boxes: list[_Box]) -> None:
        """Draw boxes side by side; one that is too narrow is merged with its neighbour."""
        merged, finest = list[_Box](), self.style.finest
        for box in sorted(boxes, key=lambda box: box.left):
            last = merged[-1] if merged else box
            if merged and last.is_merged_with(box, finest):
                right = max(last.right, box.right)
                merged[-1] = last._replace(right=right, tip="several calls")
            else:
                merged.append(box)
        if len(merged) > self.style.width / finest:
            merged = _dominant(merged, finest)
        for box in merged:
            wide = max(box.right - box.left, _PAGE.finest)
            self.scene.add(Rect(box.left, y, wide, high, box.colour, tip=box.tip))

    def _parts(self, parts: dict[str, float], y: float) -> None:
        """Draw the parts of a worker's time as a bar as long as the run."""
        x = _LEFT
        self.scene.add(Text(_LEFT - 8, y + 10, "in all", 10, "end", MUTED))
        for part, seconds in parts.items():
            wide = seconds * self.scale
            share = seconds / self.run.seconds if self.run.seconds else 0.0
            tip, fill = f"{part}: {in_seconds(seconds)}, {share:.1%}", _PART_COLOURS[part]
            self.scene.add(Rect(x, y, wide, 13, fill, MUTED, 0.5, tip=tip))
            if wide > 34:
                text = Text(x + wide / 2, y + 10, f"{share:.0%}", 9.5, "middle", text_on(fill))
                self.scene.add(text)
            x += wide

    def _axis(self, y: float) -> float:
        """Draw the time axis, with as many ticks as are legible."""
        unit = 1e-6 if self.run.seconds < 1e-2 else 1e-3 if self.run.seconds < 10 else 1.0
        name = {1e-6: "µs", 1e-3: "ms", 1.0: "s"}[unit]
        every = next(n for n in ticks() if n * unit * self.scale >= 60)
        right = _LEFT + self.run.seconds * self.scale
        lines = []
        for tick in range(0, int(self.run.seconds / unit) + 1, every):
            x = _LEFT + tick * unit * self.scale
            lines.append(Line(((x, self.top), (x, y)), GRID))
            self.scene.add(Text(x, y + 12, str(tick), 11, "middle", MUTED))
        self.scene.shapes[0:0] = lines  # behind everything
        self.scene.add(
            Line(((_LEFT, y), (right, y)), MUTED), Text(_LEFT - 20, y + 12, name, 11, "end", MUTED)
        )
        return y + 16

    def _arrows(self) -> Iterator[Line]:
        for source, sent, worker, taken in messages(self.run):
            programs = self.run.plan.programs
            ends = []
            for where, place, moment in ((source, sent, 1), (worker, taken, 0)):
                queue = int(programs[where].instructions[place].queue)
                x = self._x(float(self.run.workers[where].spans[place, moment]))
                ends.append((x, self.row[where, queue] + _BAR / 2))
            yield Line(tuple(ends), FAINT, 0.8, arrow=True)
