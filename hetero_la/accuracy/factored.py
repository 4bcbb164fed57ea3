"""Packed factors, and what they alone tell of the matrix: products, condition, pivots."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_la.accuracy.products import lower_times, matrix_times, probed_norm, probes, upper_times
from hetero_la.accuracy.residuals import largest_modulus
from hetero_la.execution.report import Report, UnplannedReport
from hetero_la.numerics.conditioning import (
    estimate_norm1,
    hermitian_norm1,
    norm1,
    reciprocal_condition,
    reciprocal_condition_upper,
)
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu.blas import invert_lower
from hetero_la.tiles.kernels.gpu_libraries import norms
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution
from hetero_la.tiles.storage.pivots import permutation

#: Columns whose upper triangle is copied at once.
_BLOCK = 128


@dataclass(frozen=True)
class FactoredMatrix(abc.ABC):
    """Packed factors of a matrix A, and the run that has computed them.

    Attributes
    ----------
    packed : array, shape (m, n)
        The factors.
    run : Report
        Plan and timing of the factorization.
    solver : Substitution or None
        What solves with the factors of a square matrix on a GPU, if that is there already.
    """

    packed: Any
    run: Report
    solver: Substitution | None = field(default=None, kw_only=True)

    #: Whether A is Hermitian, and given by its lower triangle.
    hermitian = False

    #: What the factors are for a `Substitution`, if it is made for them.
    form = ""
    #: Their row interchanges, if there are any.
    piv = None

    @functools.cached_property
    def substitution(self) -> Substitution | None:
        """What solves with the factors, if they are on a GPU and of a square matrix."""
        if self.solver is None and self.form and self.square and is_device_array(self.packed):
            return Substitution(self.packed, self.form, self.piv)
        return self.solver

    @property
    def square(self) -> bool:
        """Whether A is square."""
        m, n = self.packed.shape
        return bool(m == n)

    @abc.abstractmethod
    def times(self, v: Any, *, adjoint: bool = False) -> Any:
        """Multiply columns by the product of the factors, or by its adjoint."""

    @abc.abstractmethod
    def rcond(self, a: Any) -> float | None:
        """Estimate the reciprocal condition number in the 1-norm; A's norm as `norm1` does."""

    def matrix_times(self, a: Any, v: Any) -> Any:
        """Multiply columns by the matrix that was factored."""
        return matrix_times(a, v)

    def norm1(self, a: Any) -> float:
        """Return the 1-norm of A; estimate it as that of the factors' product if `a` is None."""
        if a is not None:
            return hermitian_norm1(a) if self.hermitian else norm1(a)
        like = self.packed[:, :1]
        return estimate_norm1(like, self.times, lambda v: self.times(v, adjoint=True))

    def backward_error(self, a: Any) -> float:
        """Estimate ||A - F|| / ||A|| for the product F of the factors, in the Frobenius norm."""
        with np.errstate(all="ignore"):  # overflow shows in the result
            v = probes(a.shape[1], a)
            given = self.matrix_times(a, v)
            error, size = probed_norm(given - self.times(v)), probed_norm(given)
        return error / size if error else 0.0

    def pivots(self) -> np.ndarray:
        """Return the moduli of the pivots, on the host."""
        return np.abs(to_host(self.packed.diagonal())).astype(np.float64)

    def growth(self, a: Any) -> float | None:
        """Return the growth factor for a matrix, or for None what the run has seen of it."""
        return None

    def orthogonality(self) -> float | None:
        """Estimate ||Q^H Q - I|| in the Frobenius norm; None if there is no Q."""
        return None

    def rank(self) -> int | None:
        """Return the rank that the factors show; None if they do not."""
        return None

    def inverses(self) -> tuple[int, int] | None:
        """Return how many diagonal tiles were inverted, and how many of these inverses not used.

        None for factors that are computed without inverses.
        """
        return None


@dataclass(frozen=True)
class LUFactored(FactoredMatrix):
    """P A = L U; `growth_seen` is what a run without pivoting has measured."""

    piv: Any = None
    growth_seen: float | None = None
    form = "lu"

    def times(self, v: Any, *, adjoint: bool = False) -> Any:
        """Multiply by P^T L U, or by U^H L^H P."""
        xp, rows = array_module(v), permutation(to_host(self.piv), len(self.packed))
        if adjoint:
            w = lower_times(self.packed, v[xp.asarray(rows)], unit=True, adjoint=True)
            return upper_times(self.packed, w, adjoint=True)
        found = lower_times(self.packed, upper_times(self.packed, v), unit=True)
        return found[xp.asarray(np.argsort(rows))]

    def rcond(self, a: Any) -> float | None:
        """Estimate as ``xGECON`` does, if A is square."""
        if not self.square:
            return None
        lu, anorm = self.packed, self.norm1(a)
        return reciprocal_condition(anorm, self.substitution or lu, lu, None)

    def growth(self, a: Any) -> float | None:
        """Return max |U| / max |A|; without pivoting, max |L| max |U| / max |A| of the run."""
        if self.growth_seen is not None or a is None:
            return self.growth_seen
        largest = largest_modulus(a)
        return _largest_of_upper(self.packed) / largest if largest else 1.0

    def inverses(self) -> tuple[int, int] | None:
        """Count inverses of tiles of L, which the kernels judge by their 1-norms."""
        return _inverses(self, unit=True)


@dataclass(frozen=True)
class CholeskyFactored(FactoredMatrix):
    """A = L L^H, from the lower triangle of `packed`."""

    hermitian = True
    form = "cholesky"

    def times(self, v: Any, *, adjoint: bool = False) -> Any:
        """Multiply by L L^H."""
        return lower_times(
            self.packed, lower_times(self.packed, v, unit=False, adjoint=True), unit=False
        )

    def matrix_times(self, a: Any, v: Any) -> Any:
        """Multiply by A, of which the lower triangle is read."""
        both = (lower_times(a, v, unit=False, adjoint=turned) for turned in (False, True))
        return sum(both) - a.diagonal().conj()[:, None] * v

    def rcond(self, a: Any) -> float | None:
        """Estimate as ``xPOCON`` does."""
        c, anorm = self.packed, self.norm1(a)
        return reciprocal_condition(anorm, self.substitution or c, c, None, hermitian=True)

    def pivots(self) -> np.ndarray:
        """Return the pivots: the squares of L's diagonal."""
        return super().pivots() ** 2

    def inverses(self) -> tuple[int, int] | None:
        """Count inverses of tiles of L, which the kernels judge by their condition numbers."""
        return _inverses(self, unit=False)


@dataclass(frozen=True)
class QRFactored(FactoredMatrix):
    """A = Q R; `apply_q` multiplies columns of length m by Q, or with `adjoint` by Q^H."""

    apply_q: Callable[..., Any] | None = None

    def _q(self, w: Any, *, adjoint: bool) -> Any:
        """Multiply by the first k columns of Q, or by their adjoint."""
        assert self.apply_q is not None
        k = min(self.packed.shape)
        if adjoint:
            return self.apply_q(w, adjoint=True)[:k]
        padded = array_module(w).zeros((len(self.packed), w.shape[1]), w.dtype, order="F")
        padded[:k] = w
        return self.apply_q(padded, adjoint=False)

    def times(self, v: Any, *, adjoint: bool = False) -> Any:
        """Multiply by Q R, or by R^H Q^H."""
        if adjoint:
            return upper_times(self.packed, self._q(v, adjoint=True), adjoint=True)
        return self._q(upper_times(self.packed, v), adjoint=False)

    def rcond(self, a: Any) -> float | None:
        """Estimate that of R as ``xTRCON`` does."""
        k = min(self.packed.shape)
        return reciprocal_condition_upper(self.packed[:k, :k])

    def rank(self) -> int | None:
        """Count the entries of R's diagonal above eps times the largest."""
        sizes = self.pivots()
        least = float(np.finfo(self.packed.dtype).eps) * float(sizes.max(initial=0))
        return int((sizes > least).sum())

    def orthogonality(self) -> float | None:
        """Estimate ||Q^H Q - I|| from products with random columns."""
        v = probes(min(self.packed.shape), self.packed)
        return probed_norm(self._q(self._q(v, adjoint=False), adjoint=True) - v)


def _largest_of_upper(packed: Any) -> float:
    """Return the largest modulus of an upper trapezoid."""
    if is_device_array(packed):
        return float(norms.largest_of_upper(packed))
    most = 0.0
    for start in range(0, packed.shape[1], _BLOCK):
        part = packed[: start + _BLOCK, start : start + _BLOCK]
        most = max(most, largest_modulus(part[:start]), largest_modulus(np.triu(part[start:])))
    return most


def _inverses(factored: FactoredMatrix, *, unit: bool) -> tuple[int, int]:
    """Count the tiles of L that the steps have inverted, and the inverses that were not used.

    The kernels use an inverse if its 1-norm, or without unit diagonals the tile's condition number,
    is at most the option `inverse_bound`.  Here both are computed again from the same tiles.
    """
    if isinstance(factored.run, UnplannedReport):  # one call of a library
        return 0, 0
    layout, bound = factored.run.plan.layout, factored.run.plan.options.inverse_bound
    steps = max(layout.kt if layout.nt + layout.rt > layout.kt else layout.kt - 1, 0)
    sizes = []
    for k in range(steps):
        start = layout.row(k)
        stop = min(start + layout.column_widths[k], layout.m)
        sizes.append(_size_of_inverse(factored, start, stop, unit=unit))
    lost = sum(not to_host(size) <= bound for size in sizes)  # each is enqueued before one is read
    return steps, lost


def _size_of_inverse(factored: FactoredMatrix, start: int, stop: int, *, unit: bool) -> Any:
    """Return the 1-norm of a lower triangle's inverse, without unit diagonal times its own."""
    tile, solver = factored.packed[start:stop, start:stop], factored.substitution
    if not is_device_array(tile):
        tile = np.asfortranarray(np.tril(tile))
        if unit:
            np.fill_diagonal(tile, 1)
        size = 1.0 if unit else norm1(tile)
        invert_lower(tile, b"LU" if unit else b"LN")
        with np.errstate(all="ignore"):
            return size * norm1(tile)
    inverse = solver.inverse_of_tile("l", start, stop) if solver else None
    if inverse is None:
        inverse = norms.inverse_of_lower(tile, unit=unit)
    found = norms.norm1(inverse)
    return found if unit else found * norms.norm1(array_module(tile).tril(tile))
