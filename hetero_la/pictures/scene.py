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

    @property
    def corner(self) -> Point:
        """Lower right corner."""
        return self.x + self.width, self.y + self.height


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline, with or without an arrow head at its end."""

    points: tuple[Point, ...]
    stroke: str = INK
    thickness: float = 1.0
    arrow: bool = False

    @property
    def corner(self) -> Point:
        """Lower right corner of the smallest rectangle around it."""
        return max(x for x, _ in self.points), max(y for _, y in self.points)


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

    @property
    def corner(self) -> Point:
        """Lower right corner of the text, at most."""
        share = {"start": 1.0, "middle": 0.5, "end": 0.0}[self.anchor]
        return self.x + share * text_width(self.text, self.size, self.bold), self.y + self.size / 4


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
        right, bottom = zip((0.0, 0.0), *(shape.corner for shape in self.shapes), strict=True)
        self.width, self.height = max(right) + margin, max(bottom) + margin


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound of the width of a text: DejaVu Sans is one of the wider fonts."""
    return len(text) * size * (0.7 if bold else 0.6)


def arrow_head(points: Sequence[Point], size: float = 6.0) -> tuple[Point, Point, Point]:
    """Return the triangle at the end of a polyline."""
    (x0, y0), (x, y) = points[-2:]
    length = max(((x - x0) ** 2 + (y - y0) ** 2) ** 0.5, 1e-9)
    dx, dy = (x - x0) / length * size, (y - y0) / length * size
    return (x, y), (x - dx + dy / 2, y - dy - dx / 2), (x - dx - dy / 2, y - dy + dx / 2)
