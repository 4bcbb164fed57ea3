"""The contenders: each function as SciPy, CuPy, torch and hetero_la call it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la

Call = Callable[[], Any]
NRHS = 16  #: right-hand sides
#: How a library for arrays on the host calls each function: `m` the matrix, `b` the right-hand
#: sides.
FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "lu_factor": lambda la, m, b: la.lu_factor(m),
    "cho_factor": lambda la, m, b: la.cho_factor(m, lower=True),
    "qr": lambda la, m, b: la.qr(m, mode="economic"),
    "solve": lambda la, m, b: la.solve(m, b, **({} if la is hetero_la else {"assume_a": "gen"})),
    "solve positive": lambda la, m, b: la.solve(m, b, assume_a="pos"),
    "lstsq": lambda la, m, b: la.lstsq(m, b),
    "lstsq full rank": lambda la, m, b: la.lstsq(
        m, b, lapack_driver="gels" if la is hetero_la else "gelsy"
    ),
    "inv": lambda la, m, b: la.inv(m),
}
#: Functions of positive definite matrices.
POSITIVE = ("cho_factor", "solve positive")


def random_problem(
    function: str, n: int, *, positive: bool | None = None, dtype: str = "float64"
) -> tuple[np.ndarray, np.ndarray]:
    """Make a random matrix of n columns that suits a function, and right-hand sides.

    `positive` says whether the matrix is positive definite, for functions not in `FUNCTIONS`.

    Examples
    --------
    >>> m, b = random_problem("lstsq", 10)
    >>> m.shape, b.shape
    ((20, 10), (20, 16))
    """
    rng = np.random.default_rng(n)
    rows = 2 * n if function.startswith("lstsq") else n
    m = rng.standard_normal((n, rows)).astype(dtype, copy=False).T
    if function in POSITIVE if positive is None else positive:
        m = np.asfortranarray(m + m.T) / 2
        m.flat[:: n + 1] += 2 * n
    return m, rng.standard_normal((NRHS, rows)).astype(dtype, copy=False).T


def installed_versions(gpu: bool) -> dict[str, str]:
    """Return the versions of the contenders' libraries: those for GPUs only with a GPU.

    Examples
    --------
    >>> list(installed_versions(gpu=False))
    ['hetero_la', 'SciPy']
    """
    found = {"hetero_la": hetero_la.__version__, "SciPy": scipy.__version__}
    if gpu:
        import cupy

        found["CuPy"] = cupy.__version__
        if importlib.util.find_spec("torch"):
            found["torch"] = importlib.metadata.version("torch")
    return found


def cupy_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """Return CuPy's functions, on its arrays."""
    import cupy
    import cupyx.scipy.linalg

    def solve_positive(m: Any, b: Any) -> Any:
        lower = cupy.linalg.cholesky(m)
        y = cupyx.scipy.linalg.solve_triangular(lower, b, lower=True)
        return cupyx.scipy.linalg.solve_triangular(lower, y, lower=True, trans="C")

    return {
        "lu_factor": lambda m, b: cupyx.scipy.linalg.lu_factor(m),
        "cho_factor": lambda m, b: cupy.linalg.cholesky(m),
        "qr": lambda m, b: cupy.linalg.qr(m, mode="reduced"),
        "solve": lambda m, b: cupy.linalg.solve(m, b),
        "solve positive": solve_positive,
        "lstsq": lambda m, b: cupy.linalg.lstsq(m, b, rcond=None),
        "lstsq full rank": lambda m, b: cupy.linalg.lstsq(m, b, rcond=None),
        "inv": lambda m, b: cupy.linalg.inv(m),
    }


def _torch_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """Return torch's functions, on its tensors; on a GPU its `lstsq` finds no rank."""
    import torch

    la = torch.linalg
    return {
        "lu_factor": lambda m, b: la.lu_factor(m),
        "cho_factor": lambda m, b: la.cholesky(m),
        "qr": lambda m, b: la.qr(m),
        "solve": lambda m, b: la.solve(m, b),
        "solve positive": lambda m, b: torch.cholesky_solve(b, la.cholesky(m)),
        "lstsq full rank": lambda m, b: la.lstsq(m, b),
        "inv": lambda m, b: la.inv(m),
    }


def on_host(function: str, m: Any, b: Any, gpu: bool) -> dict[str, Call]:
    """Return the contenders with NumPy arrays in and out: those on a GPU copy both ways."""
    call = FUNCTIONS[function]
    found: dict[str, Call] = {
        "SciPy": lambda: call(scipy.linalg, m, b), "hetero_la": lambda: call(hetero_la, m, b),
    }  # fmt: skip
    if gpu:
        import cupy

        theirs = cupy_calls()[function]

        def back(found: Any) -> Any:
            return [x.get() for x in (found if isinstance(found, tuple) else (found,))]

        found["CuPy with copies"] = lambda: back(theirs(cupy.asarray(m), cupy.asarray(b)))
    if gpu and importlib.util.find_spec("torch") and function in _torch_calls():
        import torch

        tensors = _torch_calls()[function]

        def cpu(found: Any) -> Any:
            return [x.cpu() for x in ([found] if isinstance(found, torch.Tensor) else found)]

        found["torch with copies"] = lambda: cpu(
            tensors(torch.from_numpy(m).cuda(), torch.from_numpy(b).cuda())
        )
    return found


def complete_call(run: Call) -> Call:
    """Return a call that ends when the GPU is done, and returns its result."""
    import cupy

    def timed() -> Any:
        result = run()
        cupy.cuda.Device().synchronize()
        return result

    return timed


def on_device(function: str, m: Any, b: Any) -> dict[str, Call]:
    """Return the contenders with arrays on a GPU in and out."""
    import cupy

    call, theirs = FUNCTIONS[function], cupy_calls()[function]
    m, b = cupy.asarray(m, order="F"), cupy.asarray(b, order="F")
    found = {
        "CuPy": complete_call(lambda: theirs(m, b)),
        "hetero_la": complete_call(lambda: call(hetero_la, m, b)),
    }
    if importlib.util.find_spec("torch") and function in _torch_calls():
        import torch

        tensors = _torch_calls()[function]
        tm, tb = torch.from_dlpack(m), torch.from_dlpack(b)

        def torch_run() -> None:
            tensors(tm, tb)
            torch.cuda.synchronize()

        found["torch"] = torch_run
    return found
