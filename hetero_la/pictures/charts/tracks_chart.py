"""What a timeline's picture shows under its rows: bounds, steps, tasks, memory and links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.pictures.palette import GRID, INK, MUTED, SERIES
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.runs.tracks import (
    StepFunction,
    bounds,
    link_use,
    memory,
    ready_tasks,
    running_tasks,
    step_spans,
)
from hetero_la.pictures.scene import Line, Point, Rect, Scene, Text, text_width
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds

_HIGH, _BETWEEN = 40.0, 14.0
_READY, _WORKING, _WORKERS, _HOST = SERIES[4], SERIES[0], SERIES[3], SERIES[2]


class Curve(NamedTuple):
    """A value over time, its name and its colour."""

    name: str
    colour: str
    values: StepFunction


class TracksChart:
    """Tracks of a run in a picture, from `y` down.

    Parameters
    ----------
    scene : Scene
        The picture, to which they are added.
    run : Recording
        The run.
    left, scale : float
        Place of its begin, and pixels in a second.
    y : float
        Upper edge.

    Attributes
    ----------
    bottom : float
        Lower edge.
    """

    def __init__(self, scene: Scene, run: Recording, left: float, scale: float, y: float) -> None:
        self._scene, self._run, self._left, self._scale = scene, run, left, scale
        self.bottom = y
        self._steps()
        self._tasks()
        self._memory()
        self._links()

    def _x(self, time: float) -> float:
        return self._left + time * self._scale

    def _begin(self, name: str, most: str) -> float:
        """Begin a track; return its upper edge."""
        top = self.bottom + _BETWEEN
        self.bottom = top + _HIGH
        right = self._x(self._run.seconds)
        self._scene.add(
            Line(((self._left, self.bottom), (right, self.bottom)), GRID),
            Text(16, top + 9, name, 11),
            Text(right + 4, top + 4, most, 9, fill=MUTED),
        )
        return top

    def _steps(self) -> None:
        """Draw each step from its first call to its last: those side by side are look-ahead."""
        top, spans = self._begin("steps", ""), step_spans(self._run)
        each = _HIGH / max(len(spans), 1)
        for step, (begin, end) in enumerate(spans.tolist()):
            if end >= begin:
                colour = SERIES[5 if step % 2 else 0]
                wide = max((end - begin) * self._scale, 0.5)
                tip = f"step {step}: {in_seconds(end - begin)}"
                box = Rect(self._x(begin), top + step * each, wide, max(each, 0.5), colour, tip=tip)
                self._scene.add(box)

    def _tasks(self) -> None:
        ready, working = ready_tasks(self._run), running_tasks(self._run)
        most = float(max(ready.values.max(), working.values.max()))
        curves = [Curve("ready", _READY, ready), Curve("at work", _WORKING, working)]
        self._curves("tasks", curves, most, f"{most:.0f}")

    def _memory(self) -> None:
        """Draw a curve for each worker, against the most that one of them can need."""
        most = max(self._run.peak_bytes, default=0)
        used = (memory(self._run, worker) for worker in range(len(self._run.workers)))
        curves = [Curve("", SERIES[w % len(SERIES)], values) for w, values in enumerate(used)]
        self._curves("memory", curves, most, in_bytes(most))

    def _links(self) -> None:
        use = link_use(self._run)
        each = self._run.seconds / len(use.between)
        times = np.arange(len(use.between)) * each
        between, host = (StepFunction(times, values) for values in use)
        most = float(max(between.values.max(), host.values.max()))
        rate = f"{in_bytes(most / max(each, 1e-30))}/s" if most else ""
        curves = [Curve("workers", _WORKERS, between), Curve("host", _HOST, host)]
        self._curves("links", curves, most, rate)

    def _curves(self, name: str, curves: Sequence[Curve], tallest: float, most: str) -> None:
        """Draw curves below `tallest`, and what their colours mean."""
        top = self._begin(name, most)
        for number, curve in enumerate(curves):
            points = self._points(curve.values, top, max(tallest, 1e-30))
            self._scene.add(Line(points, curve.colour, 1.2))
            if curve.name:
                y = top + 21 + 12 * number
                self._scene.add(
                    Rect(16, y - 7, 8, 8, curve.colour), Text(28, y, curve.name, 9, fill=MUTED)
                )

    def _points(self, values: StepFunction, top: float, most: float) -> tuple[Point, ...]:
        """Return the corners of a step function, the largest value of each pixel."""
        pixels = np.floor(values.times * self._scale).astype(int)
        firsts = np.flatnonzero(np.diff(pixels, prepend=-1))
        largest = np.maximum.reduceat(values.values, firsts)
        heights = (top + _HIGH * (1 - largest / most)).tolist()
        lefts = [self._x(time) for time in values.times[firsts].tolist()]
        rights = [*lefts[1:], self._x(self._run.seconds)]
        return tuple(
            corner
            for left, right, y in zip(lefts, rights, heights, strict=True)
            for corner in ((left, y), (right, y))
        )


def draw_bounds(
    scene: Scene, run: Recording, left: float, scale: float, top: float, bottom: float
) -> None:
    """Draw the times that no order of the tasks could have beaten, as lines from `top` down."""
    limits = bounds(run)
    for row, (name, time) in enumerate(
        (("work / workers", limits.work), ("critical path", limits.path))
    ):
        x, y = left + time * scale, bottom + 11 + 12 * row
        text = f"{name} {in_seconds(time)}"
        fits = x - 4 > text_width(text, 9)
        place = Text(x - 4, y, text, 9, "end") if fits else Text(x + 4, y, text, 9)
        scene.add(Line(((x, top), (x, y)), INK, 0.8), place)
