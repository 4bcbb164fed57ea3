"""Dask arrays computed block by block, with names derived from their inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from hetero_la.dask_arrays.inputs import empty_like
from hetero_la.numerics.range_scaling import largest_entry
from hetero_la.pictures.html import html
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.transfer import is_device_array, to_host
from hetero_la.tiles.storage.tile_sizes import sizes_text


def blocks_text(a: da.Array) -> str:
    """Return in words what a Dask array of two dimensions is, and in how many blocks."""
    m, n = a.shape
    kind = "CuPy" if is_device_array(a._meta) else "NumPy"
    return f"{m} x {n} {a.dtype.name} in {counted(a.npartitions, 'block')} of {kind} arrays"


def lazy_html(factors: tuple[Any, ...]) -> str:
    """Return what a notebook shows of lazy factors: their blocks, and how they are computed."""
    name, packed = type(factors).__name__, factors[0]
    rows, columns = map(sizes_text, packed.chunks)
    facts = {
        "factors": blocks_text(packed), "rows of blocks": rows, "columns of blocks": columns,
        "computed": "when they are needed; persist() keeps them on the workers",
    }  # fmt: skip
    return html(name, facts)


def map_column_blocks(
    function: Callable[..., Any],
    a: da.Array,
    *arguments: Any,
    shape: tuple[int, int] | None = None,
) -> da.Array:
    """Apply ``function(block, start, stop, *arguments)`` to each block of columns of `a`.

    Parameters
    ----------
    function : callable
        Takes a block of all rows, its first column and the column past its last.
    a : dask.array.Array, shape (m, n)
        A matrix; it is rechunked if it has more than one block of rows.
    *arguments
        Further arguments; Dask arrays among them have one block.
    shape : tuple of int, optional
        Shape of the result, by default that of `a`; columns beyond it are left out.
    """
    rows, width = shape or a.shape
    a = a[:, :width].rechunk({0: -1})
    return da.map_blocks(
        _on_columns, a, *arguments, function=function, token=function.__name__.strip("_"),
        chunks=((rows,), a.chunks[1]), dtype=a.dtype, meta=empty_like(a, (0, 0), a.dtype),
    )  # fmt: skip


def _on_columns(block: Any, *arguments: Any, function: Any, block_info: Any = None) -> Any:
    return function(block, *block_info[0]["array-location"][1], *arguments)


def after(a: da.Array, verdict: da.Array) -> da.Array:
    """Return `a`, whose blocks are there once `verdict`, an array of one block, is computed."""
    return da.map_blocks(_first, a, verdict, dtype=a.dtype, meta=a._meta)


def _first(block: Any, verdict: Any) -> Any:
    return block


def apply_to_whole(
    function: Callable[..., Any], arrays: Sequence[da.Array], meta: Any, *arguments: Any,
    **options: Any,
) -> da.Array:  # fmt: skip
    """Apply ``function(*arrays, *arguments, **options)`` in one task; the result is one block.

    Parameters
    ----------
    function : callable
        Takes each array as a whole.
    arrays : sequence of dask.array.Array
        Small arrays.
    meta : array
        An array like the result, of its shape.
    *arguments, **options
        Further arguments.
    """
    whole = [array.rechunk(-1) for array in arrays]
    names = [array.name for array in whole]
    name = f"{function.__name__.strip('_')}-{tokenize(function, names, arguments, options)}"
    key = (name, *[0] * meta.ndim)
    given = [TaskRef((array.name, *[0] * array.ndim)) for array in whole]
    task = Task(key, function, *given, *arguments, **options)
    graph = HighLevelGraph.from_collections(name, {key: task}, whole)
    return da.Array(graph, name, tuple((size,) for size in meta.shape), meta=meta)


def tuple_entry(whole: da.Array, i: int, meta: Any) -> da.Array:
    """Return entry `i`, an array like `meta`, of the tuple in the only block of `whole`."""
    return apply_to_whole(operator.getitem, [whole], meta, i)


def host_diagonal(a: da.Array) -> da.Array:
    """Return the diagonal of a matrix, on the host."""
    return da.diagonal(a).map_blocks(to_host, dtype=a.dtype, meta=np.empty(0, a.dtype))


def largest_of(a: da.Array) -> da.Array:
    """Return the largest entry of a matrix, as an array of one number."""
    return da.map_blocks(
        _largest, a, chunks=tuple((1,) * count for count in a.numblocks), dtype=np.float64,
        meta=np.empty((0, 0)),
    ).max()  # fmt: skip


def _largest(block: Any) -> np.ndarray:
    return np.array([[largest_entry(block)]])
