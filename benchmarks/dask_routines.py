"""What `dask_array.py` computes, by ours and by theirs, of which matrices, and how far off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

import hetero_la

#: Columns from which residuals are found: those of a large matrix would take longer than the runs.
_COLUMNS = 256


class Routine(NamedTuple):
    """What is computed, by ours and by theirs, and how far off an answer is."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    error: Callable[[np.ndarray, Any, bool], float]
    chunks: Callable[[tuple[int, int], int], tuple[int, int]]
    tall: int = 1
    definite: bool = False


def _scaled(residual: np.ndarray, *factors: np.ndarray) -> float:
    """Residual over the norms of what it is made of, n and the machine's epsilon."""
    size = np.prod([np.linalg.norm(factor, 1) for factor in factors])
    return float(np.linalg.norm(residual, 1) / (size * len(residual) * np.finfo(float).eps))


def _some(a: np.ndarray) -> np.ndarray:
    """Numbers of columns, the same for all contenders."""
    count = min(_COLUMNS, a.shape[1])
    return np.random.default_rng(1).choice(a.shape[1], count, replace=False)


def _lu_error(a: np.ndarray, plu: Any, ours: bool) -> float:
    (p, lower, upper), some = plu, _some(a)
    return _scaled(p @ (lower @ upper[:, some]) - a[:, some], a)


def _lu_factor_error(a: np.ndarray, factors: Any, ours: bool) -> float:
    if not ours:
        return _lu_error(a, factors, ours)
    (packed, piv), some = factors, _some(a)
    product = np.triu(packed)[:, some]
    product += np.tril(packed, -1) @ product
    for i in range(len(piv) - 1, -1, -1):
        product[[i, piv[i]]] = product[[piv[i], i]]
    return _scaled(product - a[:, some], a)


def _cholesky_error(a: np.ndarray, upper: np.ndarray, ours: bool) -> float:
    some = _some(a)
    return _scaled(upper.T @ upper[:, some] - a[:, some], a)


def _qr_error(a: np.ndarray, qr: Any, ours: bool) -> float:
    (q, r), some = qr, _some(a)
    return _scaled(q @ r[:, some] - a[:, some], a)


def _solve_error(a: np.ndarray, x: np.ndarray, ours: bool) -> float:
    return _scaled((a @ x - 1)[:, None], a, x[:, None])


def _square(shape: tuple[int, int], parts: int) -> tuple[int, int]:
    return shape[0] // parts, shape[1] // parts


def _rows(shape: tuple[int, int], parts: int) -> tuple[int, int]:
    return shape[0] // parts, shape[1]


def _ones(x: da.Array) -> da.Array:
    return da.ones(x.shape[0], chunks=x.chunks[0][0])


def _qr(x: da.Array) -> Any:
    return hetero_la.qr(x, mode="economic")


ROUTINES = {
    "lu": Routine(hetero_la.lu, da.linalg.lu, _lu_error, _square),
    "lu_factor": Routine(hetero_la.lu_factor, da.linalg.lu, _lu_factor_error, _square),
    "cholesky": Routine(
        hetero_la.cholesky, da.linalg.cholesky, _cholesky_error, _square, definite=True
    ),
    "solve": Routine(
        lambda x: hetero_la.solve(x, _ones(x)),
        lambda x: da.linalg.solve(x, _ones(x)),
        _solve_error,
        _square,
    ),
    "qr": Routine(_qr, da.linalg.qr, _qr_error, _rows),
    "qr, tall": Routine(_qr, da.linalg.qr, _qr_error, _rows, tall=16),
}


def shape_of(routine: Routine, n: int) -> tuple[int, int]:
    """Shape of a matrix as large as one of order n."""
    height = int(n * routine.tall**0.5)
    return height, n * n // height


def random_matrix(routine: Routine, shape: tuple[int, int], chunks: tuple[int, int]) -> da.Array:
    """A random matrix that is made when it is asked for."""
    a = da.random.default_rng(0).standard_normal(shape, chunks=chunks)
    return (a + a.T) / 2 + shape[0] * da.eye(shape[0], chunks=chunks[0]) if routine.definite else a


def matrix(routine: Routine, n: int, leading: float) -> np.ndarray:
    """A random matrix with its leading block times `leading`."""
    a = np.random.default_rng(0).standard_normal(shape_of(routine, n))
    if routine.definite:
        return (a + a.T) / 2 + n * np.eye(n)
    block = n // 4
    a[:block, :block] *= leading
    return a
