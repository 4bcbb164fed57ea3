"""Triangles and bands of arrays, whose blocks are mostly what is there already.

A block that a band covers is a view of the matrix's own, and one beyond it is a single zero
that NumPy repeats: only blocks that the band's edge crosses take new memory.
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

from hetero_la.dask_arrays.blocks import starts
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_column_major,
    is_device_array,
    on_device_of_arrays,
)
from hetero_la.tiles.storage.layout import tile_starts
from hetero_la.tiles.storage.tile_sizes import TileSizes

#: Rows and columns of a square block at least: less memory is not worth a task.
_LEAST_HEIGHT = 512
#: A band is copied in this many strips of rows, or in fewer of so many rows.
_STRIPS, _LEAST_STRIP = 8, 64


def row_chunks(rows: int, nb: TileSizes, most: int) -> tuple[int, ...]:
    """Rows of whole tiles, in `most` blocks or fewer.

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
    rows: Sequence[int] | None = None, copy: bool = False,
) -> da.Array:  # fmt: skip
    """A matrix of any chunks, with zeros beyond the diagonals number `below` and `above`.

    Parameters
    ----------
    a : dask.array.Array, shape (m, n)
        The matrix.
    below, above : int, optional
        How many diagonals are kept beside the main one; all by default.
    ones : bool, optional
        Whether the main diagonal becomes ones.
    rows : sequence of int, optional
        Row chunks of the result, by default those of `a`, each within one of them.
    copy : bool, optional
        Whether what is kept is copied, so that the memory of `a` can go.
    """
    rows = tuple(a.chunks[0] if rows is None else rows)
    name = f"band-{tokenize(a.name, below, above, ones, rows, copy)}"
    given, first, columns = starts(a.chunks[0]), starts(rows), starts(a.chunks[1])
    tasks = {}
    for i, j in np.ndindex(len(rows), a.numblocks[1]):
        block = min(bisect.bisect_right(given, first[i]), a.numblocks[0]) - 1
        span = first[i] - given[block], first[i] + rows[i] - given[block]
        tasks[name, i, j] = Task(
            (name, i, j), _band, TaskRef((a.name, block, j)), span, first[i] - columns[j],
            below, above, ones, copy,
        )  # fmt: skip
    graph = HighLevelGraph.from_collections(name, tasks, [a])
    return da.Array(graph, name, (rows, a.chunks[1]), meta=a._meta)


@on_device_of_arrays
def _band(
    block: Any, rows: tuple[int, int], offset: int, below: int | None, above: int | None,
    ones: bool, copy: bool,
) -> Any:  # fmt: skip
    """Some rows of a block; `offset` is the number of the first less that of its first column."""
    part = block[slice(*rows)]
    (m, n), xp = part.shape, array_module(block)
    least, largest = 1 - m - offset, n - 1 - offset  # numbers of its diagonals
    if (above is not None and least > above) or (below is not None and largest < -below):
        return xp.broadcast_to(xp.zeros((), part.dtype), part.shape)
    whole = (above is None or largest <= above) and (below is None or least >= -below)
    if whole and not (ones and least <= 0 <= largest):
        return part.copy(order="K") if copy else _shared(part)
    kept = between_diagonals(part, offset, below=below, above=above)
    if ones:
        place = xp.arange(max(0, -offset), min(m, n - offset))
        kept[place, place + offset] = 1
    return kept


def _shared(part: Any) -> Any:
    """A view of what other results show, too, through which nobody can change it."""
    if not is_device_array(part):  # CuPy's have no such flag
        part = part.view()
        part.flags.writeable = False
    return part


def between_diagonals(
    block: Any, offset: int, *, below: int | None = None, above: int | None = None
) -> Any:
    """A copy of a block with zeros beyond some diagonals of the matrix that it is a part of.

    Only what is not zero is written: memory that comes as zeros need not be touched.  It has
    the order of the block.

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
        # Now the corners that only some of these rows keep.
        if above is not None:
            beyond = offset + start + above + 1  # of the first row
            first = min(max(beyond, left), right)
            strip[:, first:right] = xp.tril(strip[:, first:right], beyond - first - 1)
        if below is not None:
            last = min(max(offset + stop - 1 - below, left), right)
            strip[:, left:last] = xp.triu(strip[:, left:last], offset + start - below - left)
    return kept
