"""What a run returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hetero_la.algorithms.checked_solves import ERRORS, INVERSE_NORM, NORM
from hetero_la.execution.report import Report
from hetero_la.execution.resident_factors import KeptFactors
from hetero_la.numerics.conditioning import reciprocal, reciprocal_condition
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.numerics.triangles import solve_with_cholesky
from hetero_la.tiles.arrays.transfer import array_module, is_device_array
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries.cusolver import lu_solve
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution
from hetero_la.tiles.storage.pivots import permutation


@dataclass
class Result(StepValues):
    """What a run returns: per-step vectors, the overwritten array, and how it went.

    Where the factors stay with the workers (`kept`), `array` may have the columns beside them
    only.  `growth` is that of LU without pivoting, and `checked` says whether the run has also done
    what follows (`Routine.checked_tasks`).
    """

    array: Any
    report: Report
    kept: KeptFactors | None = None
    absent: int = 0
    growth: float | None = None
    checked: bool = False
    _substitution: Substitution | None = None
    _wider: Result | None = None

    @property
    def factors(self) -> Any:
        """The overwritten matrix, where it has come home."""
        return self.array[:, : self.layout.n - self.absent]

    @property
    def beside(self) -> Any:
        """The overwritten right-hand sides."""
        return self.array[:, self.layout.n - self.absent :]

    @property
    def solution(self) -> Any:
        """The overwritten right-hand sides, in an array that does not also hold the factors."""
        return self.beside if self.absent else self.beside.copy(order="F")

    @property
    def refined(self) -> bool:
        """Whether no more steps would make the backward error smaller that a checked run left."""
        before, after = (float(self.values[name, 0][0]) for name in ERRORS)
        return not float(np.finfo(self.dtype).eps) < after < before / 2

    @property
    def rcond(self) -> float:
        """The reciprocal condition number that a checked run has found."""
        anorm, ainvnorm = (float(self.values[name, 0][0]) for name in (NORM, INVERSE_NORM))
        return reciprocal(anorm, ainvnorm)

    def substitution(self, form: str) -> Substitution:
        """Return what solves with the factors, on the GPU that has them; see `Substitution`."""
        if self._substitution is None:
            piv = self.piv if form == "lu" else None
            self._substitution = Substitution(self.factors, form, piv)
        return self._substitution

    def widened(self, dtype: Any) -> Result:
        """Return the result with its factors in a higher precision, in an array of their own."""
        if self._wider is None:
            wider = self.factors.astype(dtype, order="F")
            self._wider = replace(self, array=wider, dtype=dtype, _substitution=None)
        return self._wider

    def solve_lu(self, b: Any, trans: int = 0, *, stable: bool = False) -> Any:
        """Solve A X = B, or A^H X = B for `trans` = 2, with the factors of LU, wherever they are.

        On the caller's GPU that is fast, but backward stable only if `stable`.  Where they are not
        with workers, they are widened to the precision of B.
        """
        if b.dtype != self.dtype and not self.kept:
            return self.widened(b.dtype).solve_lu(b, trans, stable=stable)
        if self.kept:
            return self.kept.solve_lu(permutation(self.piv, len(b)), b, adjoint=trans == 2)
        if not is_device_array(b):
            return lapack.lu_solve(self.factors, self.piv, b, trans)
        if not stable:
            return self.substitution("lu").solve(b, adjoint=trans == 2)
        xp = array_module(b)
        x = xp.array(b, order="F")
        lu_solve(self.factors, xp.asarray(self.piv), x, adjoint=trans == 2)
        return x

    def lu_rcond(self, anorm: Any, like: Any, *, roughly: bool = False) -> float:
        """Estimate 1 / condition of A from its 1-norm and the factors of LU, wherever they are."""
        lu = None if self.kept else self.factors
        lu = self.substitution("lu") if is_device_array(lu) else lu
        return reciprocal_condition(anorm, lu, like, self.solve_lu, roughly=roughly)

    def cholesky_rcond(self, anorm: float, like: Any, *, roughly: bool = False) -> float:
        """Estimate 1 / condition of A from its 1-norm and the Cholesky factor, wherever it is."""
        factor, solve = None if self.kept else self.factors, None
        if is_device_array(factor):
            factor = self.substitution("cholesky")
        elif self.kept:
            solve = partial(_either_way, self.solve_cholesky)
        return reciprocal_condition(anorm, factor, like, solve, hermitian=True, roughly=roughly)

    def solve_cholesky(self, b: Any, *, stable: bool = False) -> Any:
        """Solve A X = B with the Cholesky factor, wherever it is, as `solve_lu` does."""
        if b.dtype != self.dtype and not self.kept:
            return self.widened(b.dtype).solve_cholesky(b, stable=stable)
        if self.kept:
            return self.kept.solve("cho_solve", b)
        if is_device_array(b) and not stable:
            return self.substitution("cholesky").solve(b)
        return solve_with_cholesky(self.factors, b, lower=True)


def _either_way(solve: Callable[[Any], Any], b: Any, trans: int) -> Any:
    """Solve with a Hermitian matrix, which is its own adjoint."""
    return solve(b)
