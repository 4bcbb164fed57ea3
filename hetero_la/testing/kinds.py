"""Builders of the test matrices of `hetero_la.testing.matrices`, one function per kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The growth of `gfpp` is at most this times the order: the error ratio is about growth over order.
GFPP_GROWTH = 4


@dataclass(frozen=True, slots=True)
class KindArguments:
    """Arguments of a builder."""

    m: int
    n: int
    dtype: np.dtype
    rng: np.random.Generator
    cond: float

    def draw(self, method: str, rows: int | None = None, columns: int | None = None) -> NDArray:
        """Return column-major random entries; complex ones have independent parts."""
        shape = (self.n if columns is None else columns, self.m if rows is None else rows)
        real = np.finfo(self.dtype).dtype
        sample = getattr(self.rng, method)
        out = np.empty(shape, self.dtype)
        if self.dtype.kind == "f":
            sample(out=out, dtype=real)
        else:
            out.real = sample(shape, dtype=real)
            out.imag = sample(shape, dtype=real)
        return out.T

    def indices(self) -> tuple[NDArray, NDArray]:
        """Return 1-based row and column numbers that broadcast against each other."""
        rows, columns = np.ogrid[1 : self.m + 1, 1 : self.n + 1]
        return rows, columns


Builder = Callable[[KindArguments], NDArray]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of test matrix."""

    description: str
    build: Builder
    turn: str = "none"  #: how a real matrix is made complex: "columns", "both" or "none"
    square: bool = False
    random: bool = True  #: whether a seed makes a difference
    cond: float | None = None  #: default condition number as a power of 1 / eps; None: fixed


KINDS: dict[str, Kind] = {}


def kind(name: str, description: str, **properties: Any) -> Callable[[Builder], Builder]:
    """Return a decorator that adds a builder to `KINDS`, with the properties of a `Kind`."""

    def register(build: Builder) -> Builder:
        KINDS[name] = Kind(description, build, **properties)
        return build

    return register


@kind("rand", "uniform on (0, 1)")
def _rand(r: KindArguments) -> NDArray:
    return r.draw("random")


@kind("rands", "uniform on (-1, 1)")
def _rands(r: KindArguments) -> NDArray:
    a = r.draw("random")
    a *= 2
    a -= 1 + 1j if r.dtype.kind == "c" else 1
    return a


@kind("randn", "normal, mean 0, variance 1")
def _randn(r: KindArguments) -> NDArray:
    return r.draw("standard_normal")


@kind("dominant", "rands with the order added to the diagonal: no pivoting needed")
def _dominant(r: KindArguments) -> NDArray:
    a = _rands(r)
    d = np.arange(min(r.m, r.n))
    a[d, d] += max(r.m, r.n)
    return a


@kind("identity", "ones on the diagonal", random=False)
def _identity(r: KindArguments) -> NDArray:
    return np.eye(r.m, r.n)


@kind("orthog", "orthogonal sine matrix: fails by orders of magnitude if pivots are missed",
       turn="columns", random=False)  # fmt: skip
def _orthog(r: KindArguments) -> NDArray:
    i, j = r.indices()
    order = max(r.m, r.n) + 1
    # The product is reduced modulo the period in integers: sin of a large number is inexact.
    return math.sqrt(2 / order) * np.sin((i * j % (2 * order)) * (math.pi / order))


@kind("gfpp", "growth 2^(n-1), at most 4 n, under partial pivoting", turn="columns",
      random=False)  # fmt: skip
def _gfpp(r: KindArguments) -> NDArray:
    order = max(min(r.m, r.n), 2)
    c = min(1.0, (GFPP_GROWTH * order) ** (1 / (order - 1)) - 1)
    a = np.eye(r.m, r.n) - np.tril(np.full((r.m, r.n), c), -1)
    a[:, -1:] = 1
    return a


@kind("shift", "cyclic shift: every leading block is singular, every step swaps", turn="columns",
      random=False)  # fmt: skip
def _shift(r: KindArguments) -> NDArray:
    a = np.zeros((r.m, r.n))
    if r.m:
        j = np.arange(r.n)
        a[(j + 1) % r.m, j] = 1
    return a


def _zero_column(r: KindArguments, column: int) -> NDArray:
    a = _rands(r)
    a[:, column : column + 1] = 0
    return a


@kind("zero-first", "rands with a first column of zeros: singular")
def _zero_first(r: KindArguments) -> NDArray:
    return _zero_column(r, 0)


@kind("zero-middle", "rands with a middle column of zeros: singular")
def _zero_middle(r: KindArguments) -> NDArray:
    return _zero_column(r, r.n // 2)


@kind("zero-last", "rands with a last column of zeros: singular")
def _zero_last(r: KindArguments) -> NDArray:
    return _zero_column(r, max(r.n - 1, 0))


@kind("kms", "Kac-Murdock-Szego Toeplitz matrix 0.5^|i-j|", turn="both", random=False)
def _kms(r: KindArguments) -> NDArray:
    i, j = r.indices()
    return 0.5 ** np.abs(i - j).astype(float)


@kind("moler", "Moler's matrix: positive definite, one tiny eigenvalue", turn="both", random=False)
def _moler(r: KindArguments) -> NDArray:
    i, j = r.indices()
    return np.where(i == j, i, np.minimum(i, j) - 2).astype(float)


@kind("hilb", "Hilbert's matrix 1/(i+j-1): extremely ill-conditioned", turn="both", random=False)
def _hilb(r: KindArguments) -> NDArray:
    i, j = r.indices()
    return 1 / (i + j - 1)


@kind("wilkinson", "Wilkinson's tridiagonal matrix W+", turn="both", square=True, random=False)
def _wilkinson(r: KindArguments) -> NDArray:
    ones = np.ones(max(r.n - 1, 0))
    diagonal = np.abs(np.arange(r.n) - (r.n - 1) / 2)
    return np.diag(diagonal) + np.diag(ones, 1)[: r.n, : r.n] + np.diag(ones, -1)[: r.n, : r.n]


def smallest_scale(dtype: np.dtype) -> float:
    """Return LAPACK's scale near underflow: a quarter of the safe minimum over eps."""
    info = np.finfo(dtype)
    return 0.25 * float(info.tiny) / (float(info.eps) / 2)


def scaled(build: Builder, power: int) -> Builder:
    """Return a builder that also multiplies by a power of `smallest_scale`."""

    def build_scaled(r: KindArguments) -> NDArray:
        a = build(r)
        return np.multiply(a, smallest_scale(r.dtype) ** power, out=a)

    return build_scaled


kind("near-underflow", "rands scaled to nearly underflow")(scaled(_rands, 1))
kind("near-overflow", "rands scaled to nearly overflow")(scaled(_rands, -1))


@kind("colscale", "rands with columns scaled from near underflow to near overflow")
def _colscale(r: KindArguments) -> NDArray:
    a = _rands(r)
    end = math.log10(smallest_scale(r.dtype))
    # The shuffle puts large columns beside small ones, and spreads pivots over the tiles.
    exponents = r.rng.permutation(np.linspace(end, -end, r.n))
    a *= (10.0**exponents).astype(r.dtype)
    return a


@kind("rankdef", "rands whose columns repeat: half of full rank")
def _rankdef(r: KindArguments) -> NDArray:
    a = _rands(r)
    rank = (min(r.m, r.n) + 1) // 2
    for start in range(rank, r.n, max(rank, 1)):
        stop = min(start + rank, r.n)
        a[:, start:stop] = a[:, : stop - start]
    return a


def with_complex_phases(a: NDArray, how: str) -> NDArray:
    """Multiply columns (and, conjugated, rows) by numbers of modulus one.

    Scaling columns changes neither magnitudes nor the order of candidate pivots; scaling rows and
    columns keeps a symmetric matrix Hermitian.
    """
    rows, columns = np.ogrid[1 : a.shape[0] + 1, 1 : a.shape[1] + 1]
    golden = math.pi * (3 - math.sqrt(5))
    if how == "columns":
        return a * np.exp(1j * golden * columns)
    if how == "both":
        return a * np.exp(1j * golden * (columns - rows))
    return a
