"""LU, Cholesky and QR as they are measured: their matrices, and the libraries that do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.run.job import Outcome
from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.device_data import RandomStorage, random_columns
from hetero_la.studies.factorizations.device_residuals import (
    cholesky_residual,
    lu_residual,
    qr_residual,
)
from hetero_la.testing.residuals import cholesky_ratio, lu_ratio, qr_factors_ratio
from hetero_la.tiles.storage.layout import TileLayout

#: Columns that are made at a time on a GPU.
_AT_ONCE = 2048


@dataclass(frozen=True)
class Factorization:
    """One factorization and its peers.

    Parameters
    ----------
    routine : str
        What `hetero_la.plan` calls it.
    factor : callable
        The library's function.
    ratio : callable
        Error ratio of a matrix and its factors, on the host.
    residual : callable
        The same for factors on GPUs: storage, outcome, layout.
    scipy : callable
        SciPy's function.
    cusolver : callable
        Seconds of cuSOLVER on a CuPy array, in place.
    dask : callable, optional
        Seconds of dask.array's function of a matrix, in chunks, with so many BLAS threads.
    multi : str, optional
        cuSOLVERMg's name of it.
    definite : bool, optional
        Whether the matrix must be positive definite.
    """

    routine: str
    factor: Callable[..., Any]
    ratio: Callable[[np.ndarray, Any], float]
    residual: Callable[[RandomStorage, Outcome, TileLayout], float]
    scipy: Callable[..., Any]
    cusolver: Callable[[Any], float]
    dask: Callable[[np.ndarray, int, int], float] | None = None
    multi: str = ""
    definite: bool = False

    def flops(self, n: int) -> float:
        """Return the real operations for real matrices of order n, as LAPACK counts them.

        Examples
        --------
        >>> CHOLESKY.flops(300)
        9000000.0
        """
        return ROUTINES[self.routine].flops(n, n, 0)

    def diagonal(self, n: int) -> float:
        """Return what is added to the diagonal of a random matrix."""
        return float(n) if self.definite else 0.0

    def host_matrix(self, n: int, dtype: str = "float64") -> np.ndarray:
        """Make a random matrix that suits the factorization, column-major.

        Examples
        --------
        >>> a = CHOLESKY.host_matrix(10)
        >>> bool((a == a.T).all())
        True
        """
        a = np.random.default_rng(0).standard_normal((n, n)).astype(dtype, copy=False)
        if self.definite:
            a = (a + a.T) / 2
            a.flat[:: n + 1] += self.diagonal(n)
        return a.T  # which is column-major

    def fill(self, a: Any) -> None:
        """Make such a matrix in a CuPy array."""
        import cupy

        n = len(a)
        for start in range(0, n, _AT_ONCE):
            stop = min(start + _AT_ONCE, n)
            a[:, start:stop] = random_columns(
                start, (n, stop - start), a.dtype, self.diagonal(n)
            )  # fmt: skip
        cupy.cuda.Device().synchronize()


LU = Factorization(
    "lu", hetero_la.lu_factor, lambda a, factors: lu_ratio(a, *factors), lu_residual,
    scipy.linalg.lu_factor, peers.cusolver_getrf, peers.dask_lu, "Getrf",
)  # fmt: skip
CHOLESKY = Factorization(
    "cholesky", hetero_la.cho_factor,
    lambda a, factors: cholesky_ratio(a, factors.c, factors.lower), cholesky_residual,
    scipy.linalg.cho_factor, peers.cusolver_potrf, peers.dask_cholesky, "Potrf", definite=True,
)  # fmt: skip
QR = Factorization(
    "qr", hetero_la.qr_factor, lambda a, factors: qr_factors_ratio(a, *factors), qr_residual,
    lambda a: scipy.linalg.qr(a, mode="raw"), peers.cusolver_geqrf,
)  # fmt: skip
#: By the names of their routines.
FACTORIZATIONS = {one.routine: one for one in (LU, CHOLESKY, QR)}
