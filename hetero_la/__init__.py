"""Dense LU, Cholesky and QR factorizations, run as task graphs on CPUs and GPUs by Dask."""

from hetero_la.cli import interrupt as _interrupt

_interrupt.install_before_imports()

import importlib
from types import ModuleType

from hetero_la.api.cholesky import CholeskyFactors
from hetero_la.api.lu import LUFactors
from hetero_la.api.qr_factors import QRFactors
from hetero_la.api.trace import Trace, trace
from hetero_la.checks.lazy import provide_lazy_functions
from hetero_la.configs import available_presets
from hetero_la.execution.report import Report, Timing
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
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import plan
from hetero_la.scheduler.cluster.cluster import Cluster

__version__ = "0.1.0"


def _lazy_functions() -> ModuleType:
    """Return the package of the functions that take Dask arrays, importing it on first use."""
    return importlib.import_module("hetero_la.dask_arrays")


provide_lazy_functions(_lazy_functions)

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
