"""What lazy functions may be given: all that can be said before there are numbers."""

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
from hetero_la.tiles.arrays.finite import require_finite
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_device, to_host


def as_array(a: Any, name: str, ndims: tuple[int, ...]) -> da.Array:
    """`a` as a Dask array of a LAPACK type whose chunks are known.

    Raises
    ------
    ValueError
        If the dtype, the number of dimensions or the chunks do not do, or for masked arrays.
    NotImplementedError
        For the arrays of Dask's query planner.
    """
    a = _lazy(a, name, ndims)
    return a.astype(lapack_dtype(a.dtype, name))


def _lazy(a: Any, name: str, ndims: tuple[int, ...]) -> da.Array:
    """`a` as a Dask array of its own dtype."""
    if da.array_expr_enabled():
        raise NotImplementedError(
            "dask arrays need dask's configuration array.query-planning to be off, its default"
        )
    refuse_masked(a)  # before Dask makes an array of it
    a = a if isinstance(a, da.Array) else da.asarray(a)
    refuse_masked(a._meta)
    if not isinstance(a._meta, np.ndarray) and not is_device_array(a._meta):
        raise ValueError(
            f"{name} has chunks of type {type(a._meta).__name__}: they must be dense arrays"
        )
    require_dimensions(a, name, ndims)
    if any(math.isnan(size) for size in a.shape):
        raise ValueError(
            f"{name} has chunks of unknown sizes, {a.chunks}: "
            "its compute_chunk_sizes() finds them out"
        )
    if any(0 in sizes and len(sizes) > 1 for sizes in a.chunks):
        a = a.rechunk(tuple(tuple(filter(None, sizes)) or (0,) for sizes in a.chunks))
    return a


def checked(a: da.Array, name: str, check_finite: bool) -> da.Array:
    """Return `a` with chunks that raise ValueError unless they are what `a` declares, and finite.

    What a run loads, it checks itself (see `LazyRun`): this is for what it does not see all of.
    Chunks on the host among those on GPUs go to one, which Dask does not do by itself.
    """
    meta = a._meta
    return da.map_blocks(_checked, a, name, check_finite, on_gpu(a), dtype=a.dtype, meta=meta)


def transpose_of(a: da.Array, name: str) -> da.Array:
    """The transpose of `a`, whose chunks are looked at before they are turned."""
    return checked(a, name, False).T


def _checked(
    block: Any, name: str, check_finite: bool, onboard: bool, block_info: Any = None
) -> Any:
    _require_declared(block, name, block_info)
    if check_finite:
        require_finite(block, name)
    return to_device(block) if onboard else to_host(block)


def _require_declared(block: Any, name: str, block_info: Any) -> None:
    """Raise ValueError unless a block is what `map_blocks` says of it."""
    own = block_info[0]
    shape = tuple(stop - start for start, stop in own["array-location"])
    Declared(name, own["chunk-location"], shape).require(block, block_info[None]["dtype"])


def as_matrix(a: Any, name: str = "a", *, square: bool = False) -> da.Array:
    """`a` as a two-dimensional Dask array, square if so wanted."""
    a = as_array(a, name, (2,))
    if square:
        require_square(a, name)
    return a


def as_columns(a: da.Array, b: Any, what: str) -> da.Array:
    """`b` as a Dask array of one or two dimensions, with as many rows as `a`, which is `what`."""
    b = as_array(b, "b", (1, 2))
    _require_fit(a, b, what)
    return b


def _require_fit(a: da.Array, b: da.Array, what: str) -> None:
    require_rows(a, b, what, "b")
    if on_gpu(a) != on_gpu(b):
        raise TypeError("a and b must both have NumPy chunks or both have CuPy chunks")


def as_system(a: Any, b: Any, *, square: bool = False) -> tuple[da.Array, da.Array]:
    """Matrix and right-hand sides that fit, of one dtype."""
    a, b = _lazy(a, "a", (2,)), _lazy(b, "b", (1, 2))
    if square:
        require_square(a, "a")
    _require_fit(a, b, "a")
    dtype = common_dtype(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)


def as_two_dimensional(b: da.Array) -> da.Array:
    """A vector as a matrix of one column."""
    if b.ndim == 2:
        return b
    meta = empty_like(b, (0, 0), b.dtype)
    return da.map_blocks(_as_column, b, dtype=b.dtype, meta=meta, new_axis=1)


def _as_column(block: Any, block_info: Any = None) -> Any:
    _require_declared(block, "b", block_info)
    return block[:, None]


def on_gpu(a: da.Array) -> bool:
    """Whether the chunks of `a` are CuPy arrays."""
    return is_device_array(a._meta)


def empty_like(a: da.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array without values, of the kind of the chunks of `a`: what Dask calls a meta."""
    return array_module(a._meta).empty(shape, dtype)
