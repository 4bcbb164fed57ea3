"""Names that are none of those there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such name, and which is the closest, or which there are.

    Examples
    --------
    >>> unknown_name("kind ", "hilbert", ["hilb", "rand"])
    "there is no kind 'hilbert': did you mean 'hilb'?"
    >>> unknown_name("preset ", "cluster", ["laptop", "one-gpu"])
    "there is no preset 'cluster'; there are laptop, one-gpu"
    """
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    rest = f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
    return f"there is no {what}{name!r}{rest}"


def listed(names: Iterable[str]) -> str:
    """Join names as a sentence does.

    Examples
    --------
    >>> listed(["lu"]), listed(["lu", "qr", "solve"])
    ('lu', 'lu, qr and solve')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
