"""Linear algebra functions with SciPy's names and signatures."""

from hetero_la.api.cholesky import cho_factor, cho_solve, cholesky
from hetero_la.api.determinant import SlogdetResult, det, slogdet
from hetero_la.api.lstsq import lstsq, lstsq_with_report
from hetero_la.api.lu import lu, lu_factor, lu_solve
from hetero_la.api.qr import qr, qr_factor, qr_multiply
from hetero_la.api.solve import inv, solve, solve_with_report

__all__ = [
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "det",
    "inv",
    "lstsq",
    "lstsq_with_report",
    "lu",
    "lu_factor",
    "lu_solve",
    "qr",
    "qr_factor",
    "qr_multiply",
    "slogdet",
    "solve",
    "solve_with_report",
]
