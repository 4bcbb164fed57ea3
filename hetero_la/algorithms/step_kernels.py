"""Kernels that each step of a factorization calls, for quick estimates.

Right-hand sides are updated with the trailing matrix; the last step has no product.
"""

from __future__ import annotations

from dataclasses import replace

from hetero_la.scheduler.predict.estimate import Calls, Step


def _gemm(rows: int, nb: int, width: int) -> Calls:
    return [("gemm", ((rows, nb), (nb, width), (rows, width)))] if rows else []


def _lu_panel(height: int, nb: int) -> Calls:
    order = min(height, nb)
    return [
        ("getrf", ((height, nb), (order,), (1,))),
        ("netperm", ((order,), (2, 2 * order))),
        ("trtri", ((order, nb), (order, order))),
    ]


def _lu_update(height: int, nb: int, width: int) -> Calls:
    order = min(height, nb)
    return [
        ("swap", ((order,), (2, 2 * order), (height, width))),
        ("trmm", ((order, nb), (order, order), (order, width))),
        *_gemm(height - order, nb, width),
    ]


def _lu_substitution(start: int, height: int, nb: int, width: int) -> Calls:
    return [("trsm", ((nb, nb), (nb, width))), *_gemm(start, nb, width)]


def _cholesky_update(height: int, nb: int, width: int) -> Calls:
    rows = height - nb
    return [("herk", ((rows, nb), (rows, min(width, rows))))] if rows else []


def _cholesky_beside(height: int, nb: int, width: int) -> Calls:
    solve = ("trmm_n", ((nb, nb), (nb, nb), (nb, width)))
    return [solve, *_gemm(height - nb, nb, width)]


def _cholesky_substitution(start: int, height: int, nb: int, width: int) -> Calls:
    rows = height - nb
    product = ("gemm_cn", ((rows, nb), (rows, width), (nb, width)))
    return [*([product] if rows else []), ("trsm_lc", ((nb, nb), (nb, width)))]


def _qr_panel(height: int, nb: int) -> Calls:
    order = min(height, nb)
    return [("geqrf", ((height, nb), (order,), (order, order), (order, order), (1,)))]


def _qr_update(height: int, nb: int, width: int) -> Calls:
    order = min(height, nb)
    return [("larfb_c", ((height, nb), (order, order), (height, width)))]


LU_STEP = Step(
    panel=_lu_panel,
    finish=lambda height, nb: [],
    update=_lu_update,
    travels=lambda height, nb: height * nb,
    closing=lambda height, nb: (
        [
            ("compose", ((nb,), (height - nb,), (height,))),
            ("laswp", ((height - nb,), (height - nb, nb))),
        ]
        if height > nb
        else []
    ),
)
CHOLESKY_STEP = Step(
    panel=lambda height, nb: [
        ("potrf", ((nb, nb), (1,))),
        ("trtri_n", ((nb, nb), (nb, nb))),
    ],
    finish=lambda height, nb: (
        [("trmm_rc", ((nb, nb), (nb, nb), (height - nb, nb)))] if height > nb else []
    ),
    update=_cholesky_update,
    travels=lambda height, nb: nb * nb,
    beside=_cholesky_beside,
)
SOLVE_STEP = replace(LU_STEP, substitution=_lu_substitution)
SOLVE_POSITIVE_STEP = replace(CHOLESKY_STEP, substitution=_cholesky_substitution)
QR_STEP = Step(
    panel=_qr_panel,
    finish=lambda height, nb: [],
    update=_qr_update,
    travels=lambda height, nb: height * nb,
    closing=lambda height, nb: [("lacpy", ((min(height, nb), nb), (min(height, nb), nb)))],
)
