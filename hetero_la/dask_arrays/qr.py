"""QR factorization of Dask arrays."""

from __future__ import annotations

from typing import Any

from hetero_la._qr import require_lwork, require_mode
from hetero_la.dask_arrays.inputs import as_matrix
from hetero_la.dask_arrays.runs import LazyRun


def qr(
    a: Any, overwrite_a: bool = False, lwork: int | None = None, mode: str = "full",
    pivoting: bool = False, check_finite: bool = True, *, client: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`hetero_la.qr`, lazily."""
    require_mode(mode, pivoting)
    a = as_matrix(a)
    m, n = a.shape
    require_lwork(lwork, n)
    columns = {"full": m, "qr": m, "economic": min(m, n)}.get(mode, 0)
    routine = "explicit_q" if columns else "qr"
    run = LazyRun(routine, a, columns=columns, check_finite=check_finite, client=client, **options)
    r = run.triangle((m if mode in ("full", "qr", "r") else min(m, n), n), lower=False)
    if mode == "r":
        return (r,)
    if mode == "raw":
        return (run.factors, run.vector("tau")), r
    return run.beside, r
