"""Dense LU, Cholesky and QR as task graphs on CPUs and GPUs, run by Dask."""

from hetero_la.commands import interrupt as _interrupt

_interrupt.provide_before_imports()

from hetero_la.configs import available_presets
from hetero_la.factors import CholeskyFactors, LUFactors
from hetero_la.linalg import (
    SlogdetResult,
    cho_factor,
    cho_solve,
    cholesky,
    det,
    inv,
    lstsq,
    lstsq_with_report,
    lu,
    lu_factor,
    lu_solve,
    qr,
    qr_factor,
    qr_multiply,
    slogdet,
    solve,
    solve_with_report,
)
from hetero_la.options import Options
from hetero_la.orthogonal import QRFactors
from hetero_la.plan import Plan
from hetero_la.planner import plan
from hetero_la.report import Report, Timing
from hetero_la.scheduler.cluster import Cluster
from hetero_la.tracing import Trace, trace

__version__ = "0.1.0"

__all__ = [
    "CholeskyFactors",
    "Cluster",
    "LUFactors",
    "Options",
    "Plan",
    "QRFactors",
    "Report",
    "SlogdetResult",
    "Timing",
    "Trace",
    "available_presets",
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
    "plan",
    "qr",
    "qr_factor",
    "qr_multiply",
    "slogdet",
    "solve",
    "solve_with_report",
    "trace",
]
