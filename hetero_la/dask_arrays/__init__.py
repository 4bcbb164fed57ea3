"""Public functions for Dask arrays, with the same names; they return Dask arrays, lazily.

Nothing runs before Dask computes the results, but in mixed precision: see
``docs/how_to/dask_arrays.md`` and ``docs/how_to/mixed_precision.md``.
"""

from hetero_la.dask_arrays.cholesky import (
    LazyCholeskyFactors,
    cho_factor,
    cho_solve,
    cho_solve_checking_b,
    cholesky,
)
from hetero_la.dask_arrays.lstsq import lstsq
from hetero_la.dask_arrays.lu import LazyLUFactors, det, lu, lu_factor, lu_solve, slogdet
from hetero_la.dask_arrays.qr import qr
from hetero_la.dask_arrays.solve import inv, solve

__all__ = [
    "LazyCholeskyFactors",
    "LazyLUFactors",
    "cho_factor",
    "cho_solve",
    "cho_solve_checking_b",
    "cholesky",
    "det",
    "inv",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "qr",
    "slogdet",
    "solve",
]
