"""SciPy-shaped linear algebra on the tile runtime."""

from hetero_la._determinant import SlogdetResult, det, slogdet
from hetero_la._factor import lu, lu_factor, lu_solve
from hetero_la._solve import inv, solve, solve_with_report

__all__ = [
    "SlogdetResult",
    "det",
    "inv",
    "lu",
    "lu_factor",
    "lu_solve",
    "slogdet",
    "solve",
    "solve_with_report",
]
