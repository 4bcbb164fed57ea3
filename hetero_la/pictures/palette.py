"""Colours of kernels, and marks of workers.

The colours are those of M. Okabe and K. Ito, which people with any common deficiency of colour
vision can distinguish.  There are fewer of them than kernels, so a colour stands for the role of a
kernel in a factorization, and the kernel's name is written beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hetero_la.tiles.kernels.spec import SPECS, Role


class Family(NamedTuple):
    """Kernels of a role, and their colour."""

    role: Role
    colour: str


_COLOURS = {
    Role.PANEL: "#D55E00", Role.INVERSE: "#F0E442", Role.EXCHANGE: "#CC79A7",
    Role.SOLVE: "#0072B2", Role.UPDATE: "#56B4E9", Role.COPY: "#BBBBBB",
}  # fmt: skip
FAMILIES = tuple(Family(role, colour) for role, colour in _COLOURS.items())
OTHER = FAMILIES[-1]

INK = "#1A1A1A"  #: text, and the critical path
BLACK = "#000000"  #: text on colours, which stays black where a dark page turns the ink white
MUTED = "#6B6B6B"  #: secondary text
FAINT = "#9A9A9A"  #: arrows
GRID = "#E3E3E3"
PAPER = "#FFFFFF"
LOADING = "#882255"  #: time in which kernels are loaded or compiled
READ, WRITTEN = "#56B4E9", "#D55E00"  #: tiles that a task reads and writes

#: Colours of lines in a plot.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)

#: Greys behind the numbers of workers, which help to distinguish these.
_GREYS = ("#FFFFFF", "#C8C8C8", "#8E8E8E", "#4A4A4A")


def family(kind: str) -> Family:
    """Return the family of a kernel; that of copies for what is none.

    Examples
    --------
    >>> family("gemm_nc").role.value, family("getrf").colour
    ('update', '#D55E00')
    """
    role = SPECS[kind].role if kind in SPECS else Role.COPY
    return next(family for family in FAMILIES if family.role is role)


def families(kinds: Iterable[str]) -> list[Family]:
    """Return the families of `kinds`, each once, in a fixed order."""
    present = {family(kind) for kind in kinds}
    return [f for f in FAMILIES if f in present]


def grey(worker: int) -> str:
    """Return the grey of a worker's mark."""
    return _GREYS[worker % len(_GREYS)]


def luminance(colour: str) -> float:
    """Compute the relative luminance of ``#RRGGBB``, between 0 and 1, by WCAG 2.

    Examples
    --------
    >>> luminance("#FFFFFF"), luminance("#000000")
    (1.0, 0.0)
    """
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """Compute WCAG's contrast ratio of two colours, between 1 and 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on `colour`."""
    return max((BLACK, PAPER), key=lambda ink: contrast(ink, colour))
