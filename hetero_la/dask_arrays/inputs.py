"""Checks of the arguments of lazy functions, as far as possible before anything is computed."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np

from hetero_la.checks.inputs import (
    common_dtype,
    lapack_dtype,
    refuse_masked,
    require_dimensions,
    require_rows,
    require_square,
)
from hetero_la.scheduler.on_dask.inputs import Declared
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_current_gpu, to_host


def _as_dask_array(a: Any, name: str, ndims: tuple[int, ...]) -> da.Array:
    """Convert `a` to a Dask array of any dtype whose chunk sizes are known.

    Raises
    ------
    ValueError
        If the number of dimensions or the chunks are not supported, or the array is masked.
    NotImplementedError
        For arrays of Dask's query planner.
    """
    if da.array_expr_enabled():
        raise NotImplementedError(
            "dask arrays need dask's configuration array.query-planning to be off, its default"
        )
    refuse_masked(a)  # before Dask converts it
    a = a if isinstance(a, da.Array) else da.asarray(a)
    refuse_masked(a._meta)
    if not isinstance(a._meta, np.ndarray) and not is_device_array(a._meta):
        raise ValueError(
            f"{name} has chunks of type {type(a._meta).__name__}: they must be dense arrays"
        )
    require_dimensions(a, name, ndims)
    if any(math.isnan(size) for size in a.shape):
        raise ValueError(
            f"{name} has chunks of unknown sizes, {a.chunks}: call its compute_chunk_sizes() first"
        )
    if any(0 in sizes and len(sizes) > 1 for sizes in a.chunks):
        a = a.rechunk(tuple(tuple(filter(None, sizes)) or (0,) for sizes in a.chunks))
    return a


def with_checked_chunks(a: da.Array, name: str = "a", check_finite: bool = False) -> da.Array:
    """Return `a` with chunks that raise ValueError unless they match `a`, and are finite.

    A run checks the chunks that it loads itself (see `LazyRun`): this is for arrays of which it
    loads only a part, or the transpose.  Chunks on the host, or on another GPU than their
    worker's, among chunks on GPUs are copied to its GPU, which Dask does not do by itself.
    """
    meta = a._meta
    return da.map_blocks(_check_chunk, a, name, check_finite, on_gpu(a), dtype=a.dtype, meta=meta)


def _check_chunk(
    block: Any, name: str, check_finite: bool, gpu: bool, block_info: Any = None
) -> Any:
    own = block_info[0]
    shape = tuple(stop - start for start, stop in own["array-location"])
    declared = Declared(name, own["chunk-location"], shape, check_finite)
    declared.require(block, block_info[None]["dtype"])
    return to_current_gpu(block) if gpu else to_host(block)


def as_matrix(a: Any, name: str = "a", *, square: bool = False) -> da.Array:
    """Convert `a` to a Dask matrix of a LAPACK type; check that it is square if that is set."""
    a = _as_dask_array(a, name, (2,))
    a = a.astype(lapack_dtype(a.dtype, name))
    if square:
        require_square(a, name)
    return a


def as_columns(a: da.Array, b: Any, what: str) -> da.Array:
    """Convert `b` to a Dask array of one or two dimensions with as many rows as `a` (`what`)."""
    b = _as_dask_array(b, "b", (1, 2))
    b = b.astype(lapack_dtype(b.dtype, "b"))
    _require_fit(a, b, what)
    return b


def _require_fit(a: da.Array, b: da.Array, what: str) -> None:
    require_rows(a, b, what, "b")
    if on_gpu(a) != on_gpu(b):
        raise TypeError("a and b must both have NumPy chunks or both have CuPy chunks")


def as_system(a: Any, b: Any, *, square: bool = False) -> tuple[da.Array, da.Array]:
    """Convert matrix and right-hand sides to one dtype, and check that they fit."""
    a, b = _as_dask_array(a, "a", (2,)), _as_dask_array(b, "b", (1, 2))
    if square:
        require_square(a, "a")
    _require_fit(a, b, "a")
    dtype = common_dtype(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)


def as_two_dimensional(b: da.Array) -> da.Array:
    """Return a vector as a matrix of one column."""
    if b.ndim == 2:
        return b
    return with_checked_chunks(b, "b")[:, None]


def on_gpu(a: da.Array) -> bool:
    """Return whether the chunks of `a` are CuPy arrays."""
    return is_device_array(a._meta)


def empty_like(a: da.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of the kind of the chunks of `a`, to be used as Dask's meta."""
    return array_module(a._meta).empty(shape, dtype)


def refuse_report(report: bool) -> None:
    """Raise TypeError for a report of what is not computed yet."""
    if report:
        raise TypeError("report=True is not for dask arrays, whose solution is not computed yet")
