"""Triangles and bands of Dask arrays, which share most of their memory with the array.

A block that lies inside the band is a view of the matrix's block, and one outside it is a single
zero, broadcast: only blocks that the edge of the band crosses take new memory.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import cached_cumsum

from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_column_major,
    is_device_array,
    on_device_of_arrays,
)
from hetero_la.tiles.storage.layout import tile_starts
from hetero_la.tiles.storage.tile_sizes import TileSizes

#: Minimum rows and columns of a block: smaller ones are not worth a task.
_LEAST_HEIGHT = 512
#: A band is copied in at most this many strips of rows, each of at least so many rows.
_STRIPS, _LEAST_STRIP = 8, 64


def row_chunks(rows: int, nb: TileSizes, most: int) -> tuple[int, ...]:
    """Return row chunks of whole tiles, at most `most` of them.

    Examples
    --------
    >>> row_chunks(4000, 256, 8), row_chunks(300, 64, 8)
    ((512, 512, 512, 512, 512, 512, 512, 416), (300,))
    >>> row_chunks(2000, (300, 200, 500), 3)
    (1000, 1000)
    """
    least, cuts = max(-(-rows // most), _LEAST_HEIGHT), [0]
    for start in tile_starts(rows, nb)[1:]:
        if start - cuts[-1] >= least or start == rows:
            cuts.append(start)
    return tuple(stop - start for start, stop in itertools.pairwise(cuts)) or (0,)


def band(
    a: da.Array, *, below: int | None = None, above: int | None = None, ones: bool = False,
    rows: Sequence[int] | None = None, copy: bool = False, turned: bool = False,
) -> da.Array:  # fmt: skip
    """Return the band of a matrix, with zeros beyond diagonals `below` and `above`.

    Parameters
    ----------
    a : dask.array.Array, shape (m, n)
        The matrix.
    below, above : int, optional
        Number of diagonals kept below and above the main one; all by default.
    ones : bool, optional
        Whether to set the main diagonal to ones.
    rows : sequence of int, optional
        Row chunks of the result, each within one chunk of `a`; by default the chunks of `a`.
    copy : bool, optional
        Whether to copy the band, so that the memory of `a` can be freed.
    turned : bool, optional
        Whether to return the transpose of the band, for which Dask would need as many tasks again.
    """
    rows = tuple(a.chunks[0] if rows is None else rows)
    name = f"band-{tokenize(a.name, below, above, ones, rows, copy, turned)}"
    sizes = a.chunks[0], rows, a.chunks[1]
    given, first, columns = (cached_cumsum(chunks, initial_zero=True) for chunks in sizes)
    tasks = {}
    for i, j in np.ndindex(len(rows), a.numblocks[1]):
        block = min(bisect.bisect_right(given, first[i]), a.numblocks[0]) - 1
        span = first[i] - given[block], first[i] + rows[i] - given[block]
        key = (name, j, i) if turned else (name, i, j)
        tasks[key] = Task(
            key, _turned_band if turned else _band, TaskRef((a.name, block, j)), span,
            first[i] - columns[j], below, above, ones, copy,
        )  # fmt: skip
    graph = HighLevelGraph.from_collections(name, tasks, [a])
    chunks = (a.chunks[1], rows) if turned else (rows, a.chunks[1])
    return da.Array(graph, name, chunks, meta=a._meta)


def from_triangle(a: da.Array, lower: bool, *, conjugate: bool) -> da.Array:
    """Return the whole of a Hermitian (`conjugate`) or symmetric matrix, from one triangle."""
    inner = band(a, above=-1) if lower else band(a, below=-1)
    middle = band(a, below=0, above=0)
    if conjugate:
        return inner + inner.conj().T + middle.real
    return inner + inner.T + middle


@on_device_of_arrays
def _band(
    block: Any, rows: tuple[int, int], offset: int, below: int | None, above: int | None,
    ones: bool, copy: bool,
) -> Any:  # fmt: skip
    """Return the band of some rows of a block; `offset` is its first row less its first column."""
    part = block[slice(*rows)]
    (m, n), xp = part.shape, array_module(block)
    least, largest = 1 - m - offset, n - 1 - offset  # numbers of the diagonals in the block
    if (above is not None and least > above) or (below is not None and largest < -below):
        return xp.broadcast_to(xp.zeros((), part.dtype), part.shape)
    whole = (above is None or largest <= above) and (below is None or least >= -below)
    if whole and not (ones and least <= 0 <= largest):
        return part.copy(order="K") if copy else _read_only_view(part)
    kept = between_diagonals(part, offset, below=below, above=above)
    if ones:
        place = xp.arange(max(0, -offset), min(m, n - offset))
        kept[place, place + offset] = 1
    return kept


def _turned_band(*args: Any) -> Any:
    """Return the transpose of `_band`."""
    return _band(*args).T


def _read_only_view(part: Any) -> Any:
    """Return a read-only view of memory that other results share."""
    if not is_device_array(part):  # CuPy arrays have no such flag
        part = part.view()
        part.flags.writeable = False
    return part


def between_diagonals(
    block: Any, offset: int, *, below: int | None = None, above: int | None = None
) -> Any:
    """Copy a block of a matrix, with zeros beyond some diagonals of the matrix.

    Only nonzero blocks are written, so zeroed memory pages stay untouched.  The copy has the
    memory order of the block.

    Parameters
    ----------
    block : array, shape (m, n)
        The block.
    offset : int
        Number of its first row less that of its first column.
    below, above : int, optional
        As in `band`.
    """
    if not block.flags.c_contiguous and is_column_major(block):
        return between_diagonals(block.T, -offset, below=above, above=below).T
    xp, (m, n) = array_module(block), block.shape
    kept = xp.zeros(block.shape, block.dtype)
    height = max(-(-m // _STRIPS), _LEAST_STRIP)
    for start in range(0, m, height):
        stop = min(start + height, m)
        left = 0 if below is None else max(offset + start - below, 0)
        right = n if above is None else min(offset + stop + above, n)
        if left >= right:
            continue
        strip = kept[start:stop]
        strip[:, left:right] = block[start:stop, left:right]
        # Clear the corners, which are outside the band in some of these rows.
        if above is not None:
            beyond = offset + start + above + 1  # of the first row
            first = min(max(beyond, left), right)
            strip[:, first:right] = xp.tril(strip[:, first:right], beyond - first - 1)
        if below is not None:
            last = min(max(offset + stop - 1 - below, left), right)
            strip[:, left:last] = xp.triu(strip[:, left:last], offset + start - below - left)
    return kept
