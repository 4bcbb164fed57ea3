"""Tile sizes: one for all tiles or one for each, and their textual form."""

from __future__ import annotations

import itertools
import numbers
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

#: The size of all tiles; or of each one in turn, of which the last repeats.
TileSizes = int | tuple[int, ...]

#: Most tile sizes of a list: far more than a run has steps.
_MOST = 100_000
_TERM = re.compile(r"(?:([1-9][0-9]*)x)?([1-9][0-9]*)", re.ASCII)
#: Most digits of a number in text.
_DIGITS = 10


def tile_sizes(given: Any) -> TileSizes:
    """Convert tile sizes to their canonical form, without repeats of the last one.

    Parameters
    ----------
    given : int, sequence or array of int, or str
        One size for all tiles; or the size of each, of which the last repeats to the end of the
        matrix; or either as text: ``"12x1024+512"`` is twelve tiles of 1024, and then 512.

    Returns
    -------
    int or tuple of int

    Raises
    ------
    ValueError
        If `given` is none of these.

    Examples
    --------
    >>> tile_sizes("2x1024+512"), tile_sizes([64, 32, 32]), tile_sizes("256"), tile_sizes([8, 8])
    ((1024, 1024, 512), (64, 32), 256, 8)
    """
    listed = given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(listed, str):
        sizes = _read(listed)
    elif isinstance(listed, Sequence) and not isinstance(listed, bytes):
        sizes = list(listed)
    else:
        sizes = [listed]
    if not sizes or not all(map(_is_size, sizes)):
        raise ValueError(
            "nb must be a positive integer, a list of them, text as '12x1024+512', or None, "
            f"not {given!r}"
        )
    found = [int(size) for size in sizes]
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return found[0] if len(found) == 1 else tuple(found)


def _is_size(value: Any) -> bool:
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_number and int(value) > 0


def _read(text: str) -> list[int]:
    """Return the sizes that a text lists; none if it cannot be parsed."""
    terms = [_TERM.fullmatch(term.strip()) for term in text.split("+")]
    found = [term for term in terms if term]
    if len(found) < len(terms):
        return []
    if any(len(number or "") > _DIGITS for term in found for number in term.groups()):
        raise ValueError(f"the numbers in nb must be below {10**_DIGITS}, not {text[:40]!r}")
    runs = [(int(term[1] or 1), int(term[2])) for term in found]
    if sum(count for count, _ in runs) > _MOST:
        raise ValueError(f"nb must be at most {_MOST} tile sizes, not {text[:40]!r}")
    return [size for count, size in runs for _ in range(count)]


def sizes_text(sizes: TileSizes) -> str:
    """Return tile sizes as text that `tile_sizes` reads.

    Examples
    --------
    >>> sizes_text(256), sizes_text((1024, 1024, 512)), sizes_text((64, 32, 48))
    ('256', '2x1024+512', '64+32+48')
    """
    if isinstance(sizes, int):
        return str(sizes)
    runs = [(len(list(run)), size) for size, run in itertools.groupby(sizes)]
    return "+".join(f"{count}x{size}" if count > 1 else str(size) for count, size in runs)


def tiles_texts(nb: TileSizes, coarse: int | None, lookahead: int) -> tuple[str, str, str]:
    """Return tile sizes, two-level blocking, if any, and look-ahead as texts.

    Examples
    --------
    >>> tiles_texts((512, 256), 1024, 1)
    ('nb = 512+256', 'blocks of 1024', 'look-ahead 1')
    """
    blocks = f"blocks of {coarse}" if coarse else ""
    return f"nb = {sizes_text(nb)}", blocks, f"look-ahead {lookahead}"


def clipped(sizes: TileSizes, total: int) -> TileSizes:
    """Return the tile sizes that remain where `total` elements are to be cut.

    Examples
    --------
    >>> clipped(256, 100), clipped((64, 32, 16), 90), clipped((64, 512, 16), 100)
    (100, (64, 32), (64, 100))
    """
    if isinstance(sizes, int):
        return min(sizes, total)
    starts = itertools.accumulate(sizes, initial=0)
    kept = [min(size, total) for size, start in zip(sizes, starts, strict=False) if start < total]
    return tile_sizes(kept or [min(sizes[0], total)])


def sizes_of_cut(widths: Iterable[int]) -> TileSizes:
    """Return tile sizes that cut a matrix into these widths, of which the last may be ragged.

    Examples
    --------
    >>> sizes_of_cut([64, 64, 10]), sizes_of_cut([64, 32, 32, 5]), sizes_of_cut([64, 100])
    (64, (64, 32), (64, 100))
    """
    *first, last = widths
    return tile_sizes(first if first and last <= first[-1] else [*first, last])
