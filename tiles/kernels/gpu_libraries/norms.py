"""Norms of matrices on a GPU, each by one kernel without a temporary."""

from __future__ import annotations

import functools
from typing import Any

from hetero_la.tiles.kernels.device import Array

_ADD, _MAX = ("a + b", "y = a", "0"), ("max(a, b)", "y = a", "0")


@functools.cache
def _reduction(name: str) -> Any:
    """Return a kernel that combines the moduli of a matrix, in double precision."""
    import cupy

    inputs, term, rest = {
        "sum": ("T x", "abs(x)", _ADD),
        "hermitian_sum": ("T x, T t, int64 i, int64 j", "i < j ? abs(t) : abs(x)", _ADD),
        "largest": ("T x", "abs(x)", _MAX),
    }[name]
    return cupy.ReductionKernel(inputs, "float64 y", term, *rest, f"{name}_of_moduli")


def column_sums(a: Array) -> Array:
    """Return the sums of the moduli of each column, in double precision."""
    return _reduction("sum")(a, axis=0)


def norm1(a: Array) -> Array:
    """Return the 1-norm, in double precision, as an array of no dimension."""
    return column_sums(a).max()


def hermitian_norm1(a: Array) -> Array:
    """Return the 1-norm of a Hermitian matrix, whose lower triangle is read."""
    import cupy

    rows = cupy.arange(len(a))
    return _reduction("hermitian_sum")(a, a.T, rows[:, None], rows[None, :], axis=0).max()


def largest_modulus(a: Array) -> Array:
    """Return the largest modulus, as an array of no dimension."""
    return _reduction("largest")(a)


@functools.cache
def start_vectors() -> Any:
    """Return a kernel that fills a 2 x n matrix with the first vectors of a norm's estimate."""
    import cupy

    return cupy.ElementwiseKernel(
        "int64 n", "T x",
        "long long row = i % n; double slope = n > 1 ? 1 + (double)row / (n - 1) : 1;"
        "x = i >= n ? (row % 2 ? -slope : slope) * 2 / (3.0 * n) : 1.0 / n",
        "norm_estimate_start",
    )  # fmt: skip


@functools.cache
def signs(real: bool) -> Any:
    """Return a kernel for x / |x|, and 1 for zeros."""
    import cupy

    sign = "y < 0 ? -1 : 1" if real else "abs(y) == 0 ? T(1) : y / abs(y)"
    return cupy.ElementwiseKernel("T y", "T s", f"s = {sign}", "signs_of_entries")
