"""Scenes: pictures as lists of shapes, which the writers turn into files.

Coordinates are pixels at 96 dpi, from the upper left corner; y runs down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hetero_la.pictures.palette import INK

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
FONT = "DejaVu Sans, Verdana, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; `tip` is its tooltip, `link` names the tasks that it stands for."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    thickness: float = 1.0
    tip: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline, with or without an arrow head at its end."""

    points: tuple[Point, ...]
    stroke: str = INK
    thickness: float = 1.0
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; y is its baseline."""

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: Anchor = "start"
    fill: str = INK
    bold: bool = False


Shape = Rect | Line | Text


@dataclass
class Scene:
    """Shapes of a picture, in drawing order."""

    width: float = 0.0
    height: float = 0.0
    title: str = ""
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Draw shapes in front of the present ones."""
        self.shapes += shapes

    def fit(self, margin: float = 16.0) -> None:
        """Set the size of the picture to hold all shapes and a margin."""
        self.width = max((_right(shape) for shape in self.shapes), default=0.0) + margin
        self.height = max((_bottom(shape) for shape in self.shapes), default=0.0) + margin


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound of the width of a text: DejaVu Sans is one of the wider fonts."""
    return len(text) * size * (0.7 if bold else 0.6)


def arrow_head(points: Sequence[Point], size: float) -> tuple[Point, Point, Point]:
    """Return the triangle at the end of a polyline."""
    (x0, y0), (x, y) = points[-2:]
    length = max(((x - x0) ** 2 + (y - y0) ** 2) ** 0.5, 1e-9)
    dx, dy = (x - x0) / length * size, (y - y0) / length * size
    return (x, y), (x - dx + dy / 2, y - dy - dx / 2), (x - dx - dy / 2, y - dy + dx / 2)


def _right(shape: Shape) -> float:
    if isinstance(shape, Rect):
        return shape.x + shape.width
    if isinstance(shape, Line):
        return max(x for x, _ in shape.points)
    share = {"start": 1.0, "middle": 0.5, "end": 0.0}[shape.anchor]
    return shape.x + share * text_width(shape.text, shape.size, shape.bold)


def _bottom(shape: Shape) -> float:
    if isinstance(shape, Rect):
        return shape.y + shape.height
    if isinstance(shape, Line):
        return max(y for _, y in shape.points)
    return shape.y + shape.size / 4
