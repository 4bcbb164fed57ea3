"""Dense LU, Cholesky and QR as task graphs on CPUs and GPUs, run by Dask."""

from hetero_la.configs import available_presets
from hetero_la.factors import LUFactors, Report, Timing
from hetero_la.linalg import (
    SlogdetResult,
    det,
    inv,
    lu,
    lu_factor,
    lu_solve,
    slogdet,
    solve,
    solve_with_report,
)
from hetero_la.options import Options
from hetero_la.plan import Plan
from hetero_la.planner import plan
from hetero_la.scheduler.cluster import Cluster

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "LUFactors",
    "Options",
    "Plan",
    "Report",
    "SlogdetResult",
    "Timing",
    "available_presets",
    "det",
    "inv",
    "lu",
    "lu_factor",
    "lu_solve",
    "plan",
    "slogdet",
    "solve",
    "solve_with_report",
]
