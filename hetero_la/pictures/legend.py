"""Titles and legends of pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from hetero_la.pictures.palette import INK, MUTED, PAPER, families, family, grey, text_on
from hetero_la.pictures.scene import Rect, Scene, Text, text_width

_LINE = 18.0
_SWATCH = 13.0


def heading(scene: Scene, x: float, title: str, lines: Sequence[str], top: float = 0.0) -> float:
    """Write a title with some lines under it; return the y coordinate below them."""
    scene.title = scene.title or title
    scene.add(Text(x, top + 26, title, 14, bold=True))
    for number, line in enumerate(lines):
        scene.add(Text(x, top + 44 + 15 * number, line, 11, fill=MUTED))
    return top + 44 + 15 * len(lines)


class Legend:
    """Legend entries in rows, which are broken at the right edge of the picture."""

    def __init__(self, scene: Scene, x: float, y: float, width: float) -> None:
        self._scene, self._left, self._x, self.y = scene, x, x, y
        self._right = x + max(width, 420.0)

    def _entry(self, text: str) -> float:
        """Place `text` with space for a swatch; return the x coordinate of the swatch."""
        needed = _SWATCH + 5 + text_width(text, 11) + 14
        if self._x > self._left and self._x + needed > self._right:
            self.end_row()
        x = self._x
        self._x += needed
        self._scene.add(Text(x + _SWATCH + 5, self.y + 11, text, 11))
        return x

    def end_row(self) -> None:
        """Begin the next row."""
        self._x = self._left
        self.y += _LINE

    def kinds(self, kinds: Iterable[str]) -> None:
        """Add a row with the colour of each family of kernels."""
        kinds = list(kinds)
        for shared in families(kinds):
            members = ", ".join(kind for kind in kinds if family(kind) is shared)
            self.swatch(f"{shared.role.value}: {members}", shared.colour)
        self.end_row()

    def swatch(self, text: str, colour: str) -> None:
        """Add a colour with its meaning."""
        x = self._entry(text)
        self._scene.add(Rect(x, self.y + 1, _SWATCH, _SWATCH, colour, MUTED, 0.5))

    def workers(self, names: Sequence[str]) -> None:
        """Add the number of each worker, on its grey."""
        for worker, name in enumerate(names):
            x = self._entry(name)
            self._scene.add(*worker_mark(worker, x, self.y + 1, _SWATCH, _SWATCH))

    def outline(self, text: str) -> None:
        """Add the meaning of a thick black outline."""
        x = self._entry(text)
        self._scene.add(Rect(x + 1, self.y + 2, _SWATCH - 2, _SWATCH - 2, PAPER, INK, 2.5))

    def note(self, text: str) -> None:
        """Add text without a swatch, in rows of its own."""
        if self._x > self._left:
            self.end_row()
        letters = int((self._right - self._left) / text_width("m", 11))
        for line in textwrap.wrap(text, letters):
            self._scene.add(Text(self._left, self.y + 11, line, 11, fill=MUTED))
            self.end_row()


def worker_mark(worker: int, x: float, y: float, width: float, height: float) -> tuple[Rect, Text]:
    """Return a worker's number on its grey."""
    fill = grey(worker)
    size = min(9.5, height - 3)
    return (
        Rect(x, y, width, height, fill, MUTED, 0.5),
        Text(x + width / 2, y + height / 2 + 0.36 * size, str(worker), size, "middle",
             text_on(fill)),
    )  # fmt: skip
