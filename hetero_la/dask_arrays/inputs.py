"""What lazy functions may be given: all that can be said before there are numbers."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da

from hetero_la.inputs import (
    common_dtype,
    lapack_dtype,
    refuse_masked,
    require_dimensions,
    require_rows,
    require_square,
)
from hetero_la.tiles.finite import require_finite
from hetero_la.tiles.transfer import array_module, is_device_array


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
    require_dimensions(a, name, ndims)
    if any(math.isnan(size) for size in a.shape):
        raise ValueError(
            f"{name} has chunks of unknown sizes, {a.chunks}: "
            "its compute_chunk_sizes() finds them out"
        )
    if any(0 in sizes and len(sizes) > 1 for sizes in a.chunks):
        a = a.rechunk(tuple(tuple(filter(None, sizes)) or (0,) for sizes in a.chunks))
    return a


def finite(a: da.Array, name: str) -> da.Array:
    """`a`, or an error where it holds a NaN or an infinity.

    What a run loads, it looks at itself (see `LazyRun`): this is for what it does not see all of.
    """
    return da.map_blocks(_finite, a, name, dtype=a.dtype, meta=a._meta)


def _finite(block: Any, name: str) -> Any:
    require_finite(block, name)
    return block


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
    return b[:, None] if b.ndim == 1 else b


def on_gpu(a: da.Array) -> bool:
    """Whether the chunks of `a` are CuPy arrays."""
    return is_device_array(a._meta)


def empty_like(a: da.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array without values, of the kind of the chunks of `a`: what Dask calls a meta."""
    return array_module(a._meta).empty(shape, dtype)
