"""Writer of scenes as SVG."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from hetero_la.pictures.palette import PAPER
from hetero_la.pictures.scene import FONT, Line, Rect, Scene, Text, arrow_head


def svg(scene: Scene) -> str:
    """Return the scene as one ``<svg>`` element.

    Examples
    --------
    >>> print(svg(Scene(30, 20, "A", [Rect(1, 2, 3, 4, "#D55E00")])))
    <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20" width="30" height="20" ...
    <title>A</title>
    <rect width="100%" height="100%" fill="#FFFFFF"/>
    <rect x="1" y="2" width="3" height="4" fill="#D55E00"/>
    </svg>
    """
    size = f"{scene.width:.0f}", f"{scene.height:.0f}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
        f'width="{size[0]}" height="{size[1]}" role="img" font-family="{FONT}">'
    )
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    body = [_ELEMENTS[type(shape)](shape) for shape in scene.shapes]
    return "\n".join([head, f"<title>{escape(scene.title)}</title>", paper, *body, "</svg>"])


def _rect(r: Rect) -> str:
    attributes = (
        f'x="{r.x:.5g}" y="{r.y:.5g}" width="{r.width:.5g}" height="{r.height:.5g}" fill="{r.fill}"'
    )
    if r.stroke != "none":
        attributes += f' stroke="{r.stroke}" stroke-width="{r.thickness:g}"'
    if r.link:
        attributes += f' data-link="{escape(r.link)}"'
    if not r.tip:
        return f"<rect {attributes}/>"
    return f"<rect {attributes}><title>{escape(r.tip)}</title></rect>"


def _line(line: Line) -> str:
    points = " ".join(f"{x:.5g},{y:.5g}" for x, y in line.points)
    drawn = (
        f'<polyline points="{points}" fill="none" stroke="{line.stroke}" '
        f'stroke-width="{line.thickness:g}"/>'
    )
    if line.arrow:
        head = " ".join(f"{x:.5g},{y:.5g}" for x, y in arrow_head(line.points))
        drawn += f'<polygon points="{head}" fill="{line.stroke}"/>'
    return drawn


def _text(t: Text) -> str:
    anchor = "" if t.anchor == "start" else f' text-anchor="{t.anchor}"'
    weight = ' font-weight="bold"' if t.bold else ""
    # The pointer must reach the link of the shape behind the text.
    return (
        f'<text x="{t.x:.5g}" y="{t.y:.5g}" font-size="{t.size:g}" fill="{t.fill}"{anchor}{weight} '
        f'pointer-events="none">{escape(t.text)}</text>'
    )


_ELEMENTS: dict[type, Callable[[Any], str]] = {Rect: _rect, Line: _line, Text: _text}
