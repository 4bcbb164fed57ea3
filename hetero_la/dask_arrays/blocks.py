"""Dask arrays computed block by block, with names derived from their inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from hetero_la.dask_arrays.inputs import empty_like
from hetero_la.numerics.range_scaling import largest_entry
from hetero_la.tiles.arrays.transfer import on_device_of_arrays


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
    a = a.rechunk({0: -1})
    rows, width = shape or a.shape
    spans = [
        (start, min(start + size, width))
        for start, size in zip(starts(a.chunks[1]), a.chunks[1], strict=False)
        if start < width
    ] or [(0, 0)]
    meta = empty_like(a, (0, 0), a.dtype)
    name = f"{function.__name__.strip('_')}-{tokenize(function, a.name, arguments, spans, rows)}"
    given = [one_block(argument) for argument in arguments]
    tasks = {
        (name, 0, j): Task((name, 0, j), function, TaskRef((a.name, 0, j)), start, stop, *given)
        for j, (start, stop) in enumerate(spans)
    }
    inputs = [a, *(argument for argument in arguments if isinstance(argument, da.Array))]
    graph = HighLevelGraph.from_collections(name, tasks, inputs)
    return da.Array(graph, name, ((rows,), tuple(stop - start for start, stop in spans)), meta=meta)


def apply_to_blocks(
    function: Callable[..., Any], arrays: Sequence[da.Array], meta: Any, *arguments: Any
) -> da.Array:
    """Apply ``function(blocks of each array, *arguments)`` in one task; the result is one block.

    Parameters
    ----------
    function : callable
        Takes a list of blocks for each array.
    arrays : sequence of dask.array.Array
        Small arrays, of at most one dimension or of one block.
    meta : array
        An array like the result, of its shape.
    *arguments
        Further arguments.
    """
    names = [array.name for array in arrays]
    name = f"{function.__name__.strip('_')}-{tokenize(function, names, arguments)}"
    key = (name, *[0] * meta.ndim)
    blocks = [
        List(
            *[TaskRef((array.name, *at)) for at in itertools.product(*map(range, array.numblocks))]
        )
        for array in arrays
    ]
    graph = HighLevelGraph.from_collections(
        name, {key: Task(key, function, *blocks, *arguments)}, arrays
    )
    return da.Array(graph, name, tuple((size,) for size in meta.shape), meta=meta)


def tuple_entry(whole: da.Array, i: int, meta: Any) -> da.Array:
    """Return entry `i`, an array like `meta`, of the tuple in the only block of `whole`."""
    return apply_to_blocks(_tuple_entry, [whole], meta, i)


def _tuple_entry(blocks: Sequence[Any], i: int) -> Any:
    return blocks[0][i]


def largest_of(a: da.Array) -> da.Array:
    """Return the largest entry of a matrix, as an array of one number."""
    each = da.map_blocks(
        _largest, a, chunks=tuple((1,) * count for count in a.numblocks), dtype=np.float64,
        meta=np.empty((0, 0)),
    )  # fmt: skip
    return apply_to_blocks(_largest_of_all, [each], np.empty(()))


def _largest(block: Any) -> np.ndarray:
    return np.array([[largest_entry(block)]])


def _largest_of_all(blocks: Sequence[Any]) -> np.ndarray:
    return np.max(blocks)


def one_block(argument: Any) -> Any:
    """Return a reference to the only block of a Dask array; return other arguments unchanged."""
    if not isinstance(argument, da.Array):
        return argument
    return TaskRef((argument.name, *[0] * argument.ndim))


def starts(sizes: Sequence[int]) -> list[int]:
    """Return the first index of each chunk, followed by the total size."""
    return list(itertools.accumulate(sizes, initial=0))


def diagonal(a: da.Array) -> da.Array:
    """Return the diagonal of a matrix in blocks of columns."""
    packed = map_column_blocks(_diagonal, a, shape=(1, min(a.shape)))
    return packed[0]


@on_device_of_arrays
def _diagonal(block: Any, start: int, stop: int) -> Any:
    return block[:, : stop - start].diagonal(-start)[None]
