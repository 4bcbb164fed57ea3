"""Dense LU, Cholesky and QR as task graphs on CPUs and GPUs, run by Dask.

NumPy, CuPy and Dask arrays of float32, float64, complex64 and complex128 are accepted and
returned, and so are those of torch, JAX and others; names, arguments, results and errors are
SciPy's.

=================================  ============================================================
task                               functions
=================================  ============================================================
systems A X = B                    `solve`, `inv`; `solve_with_report`
P A = L U                          `lu_factor` (`LUFactors`), `lu_solve`, `lu`
A = L L^H or U^H U                 `cho_factor` (`CholeskyFactors`), `cho_solve`, `cholesky`
A = Q R                            `qr_factor` (`QRFactors`), `qr`, `qr_multiply`
least squares                      `lstsq`; `lstsq_with_report`
determinants                       `det`, `slogdet` (`SlogdetResult`)
matrices in files                  `factor_file` (`FileFactors`)
where it runs                      `Cluster`, and `available_presets` for it
predicted steps and time           `plan` (`Plan`)
what results are worth             `AccuracyReport`, by ``solve(..., report=True)``
recorded steps and time            `trace` (`Trace`); `Report` and `Timing` of a run
a bar while it runs                `progress`
code that calls SciPy's or NumPy's `patch_scipy`
=================================  ============================================================

All functions that factor take the fields of `Options` by keyword (``nb``, ``lookahead``,
``panel``, ...) and ``client``: a `Cluster` or the client of any Dask cluster.  Without one, small
problems run in the calling thread, and larger ones on a cluster in this process.

The command line is ``hetero-la``, or ``python -m hetero_la``; ``--help`` lists its commands.  The
documentation is in ``docs/`` of the source, from ``docs/index.md`` on, and each function's
docstring has an example.

Examples
--------
>>> import numpy as np
>>> import hetero_la
>>> a, b = np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0])
>>> hetero_la.solve(a, b)
array([1., 1.])
>>> hetero_la.lu_factor(a, nb=128, lookahead=1).plan.lookahead
1
"""

from hetero_la.cli import interrupt as _interrupt

_interrupt.install_before_imports()

import importlib
from types import ModuleType

from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.cholesky import CholeskyFactors
from hetero_la.api.lu import LUFactors
from hetero_la.api.qr_factors import QRFactors
from hetero_la.api.trace import Trace, trace
from hetero_la.checks.lazy import provide_lazy_functions
from hetero_la.configs import available_presets
from hetero_la.execution.progress import progress
from hetero_la.execution.report import Report, Timing
from hetero_la.in_files.factor_file import FileFactors, factor_file
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
from hetero_la.stand_ins.scipy_patch import patch_scipy
from hetero_la.tiles.arrays.displayed import provide_displays

__version__ = "0.1.0"


def _lazy_functions() -> ModuleType:
    """Return the package of the functions that take Dask arrays, importing it on first use."""
    return importlib.import_module("hetero_la.dask_arrays")


provide_lazy_functions(_lazy_functions)
provide_displays(lambda: importlib.import_module("hetero_la.displays"))


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


__all__ = [
    "AccuracyReport",
    "CholeskyFactors",
    "Cluster",
    "FileFactors",
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
    "factor_file",
    "inv",
    "lstsq",
    "lstsq_with_report",
    "lu",
    "lu_factor",
    "lu_solve",
    "patch_scipy",
    "plan",
    "progress",
    "qr",
    "qr_factor",
    "qr_multiply",
    "slogdet",
    "solve",
    "solve_with_report",
    "trace",
]
