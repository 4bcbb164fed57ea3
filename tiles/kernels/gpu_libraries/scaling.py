"""Matrices on a GPU whose rows and columns are multiplied by powers of two."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import is_column_major
from hetero_la.tiles.kernels.device import Array


def scale(a: Array, rows: np.ndarray, columns: np.ndarray, out: Array) -> None:
    """Write a matrix times powers of two, of which there is one for each row and column, to `out`.

    Their exponents are given; the powers and the products may be out of range.  `out` is of the
    shape of the matrix, and of any precision.
    """
    if is_column_major(a):  # consecutive threads of CuPy have elements along the last axis
        a, out, rows, columns = a.T, out.T, columns, rows
    import cupy

    powers = cupy.asarray(rows, np.int32), cupy.asarray(columns, np.int32)
    _product(a.dtype.kind == "f")(a, *powers, a.shape[1], out)


@functools.cache
def _product(real: bool) -> Any:
    import cupy

    product = "ldexp(x, e)" if real else "U(ldexp(x.real(), e), ldexp(x.imag(), e))"
    return cupy.ElementwiseKernel(
        "T x, raw int32 rows, raw int32 columns, int64 n", "U y",
        f"int e = rows[i / n] + columns[i % n]; y = {product}", "times_powers_of_two",
    )  # fmt: skip
