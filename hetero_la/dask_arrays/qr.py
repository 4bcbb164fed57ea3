"""QR factorization of Dask arrays."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from hetero_la.api import qr as _qr
from hetero_la.dask_arrays.blocks import apply_to_whole, tuple_entry
from hetero_la.dask_arrays.inputs import as_matrix, empty_like, with_checked_chunks
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.execution.executor_choice import require_options


def qr(
    a: Any, overwrite_a: bool = False, lwork: Any = _qr.NOT_GIVEN, mode: str = "full",
    pivoting: bool = False, check_finite: bool = True, *, client: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Compute `hetero_la.qr` lazily; with `pivoting` in one task, which holds the whole matrix."""
    mode = _qr.canonical_mode(mode)
    a = as_matrix(a)
    m, n = a.shape
    _qr.check_lwork(lwork, m)
    if pivoting:
        require_options(options, client)
        return _pivoted(with_checked_chunks(a, "a", check_finite), mode)
    columns = {"full": m, "economic": min(m, n)}.get(mode, 0)
    routine = "explicit_q" if columns else "qr"
    run = LazyRun(routine, a, columns=columns, check_finite=check_finite, client=client, **options)
    r = run.triangle((m if mode in ("full", "r") else min(m, n), n), lower=False)
    if mode == "r":
        return (r,)
    if mode == "raw":
        return (run.factors, run.vector("tau")), r
    return run.beside, r


def _pivoted(a: da.Array, mode: _qr.Mode) -> Any:
    m, n = a.shape
    k = min(m, n)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "full": [(m, m), (m, n)], "economic": [(m, k), (k, n)], "r": [(m, n)],
        "raw": [(m, n), (k,), (k, n)],
    }  # fmt: skip
    whole = apply_to_whole(_factor_block, [a], np.empty((), object), mode)
    like = [empty_like(a, shape, a.dtype) for shape in shapes[mode]]
    found = [tuple_entry(whole, i, x) for i, x in enumerate([*like, empty_like(a, (n,), np.int32)])]
    return ((found[0], found[1]), *found[2:]) if mode == "raw" else tuple(found)


def _factor_block(block: Any, mode: _qr.Mode) -> tuple[Any, ...]:
    found = _qr.qr(block, mode=mode, pivoting=True, check_finite=False)
    return (*found[0], *found[1:]) if mode == "raw" else found
