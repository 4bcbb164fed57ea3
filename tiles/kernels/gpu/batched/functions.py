"""Table of what is done with stacks on a GPU, by the names of the same for LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_la.tiles.kernels.gpu.batched import factors, least_squares, qr, solutions
from hetero_la.tiles.kernels.gpu.batched.arrays import MOST

#: Take a stack and a number of columns; return factors, columns beside them, and vectors.
FACTORS: dict[str, Callable[[Any, int], tuple[Any, Any, dict[str, Any]]]] = {
    "lu": factors.lu,
    "cholesky": factors.cholesky,
    "qr": qr.qr,
    "qr_and_q": qr.qr_and_q,
}
#: Return solutions, some of them with what tells whether they are uncertain.
SOLVES: dict[str, Callable[..., Any]] = {
    "lu_and_solve": solutions.solve,
    "lu_and_invert": solutions.inverse,
    "lu_and_determinant": solutions.determinants,
    "cholesky_and_solve": solutions.solve_positive,
    "lu_solve": solutions.lu_solve,
    "cho_solve": solutions.cho_solve,
    "qr_and_lstsq": least_squares.lstsq,
}


def takes(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a stack of this shape is factored together: its matrices are small.

    Examples
    --------
    >>> takes("lu", (9, 4, 4)), takes("lu", (9, 4, 3)), takes("qr", (9, 4, 3))
    (True, False, True)
    """
    _, m, n = shape
    return 0 < max(m, n) <= MOST and min(m, n) > 0 and (m == n or name.startswith("qr"))


def out_of_memory() -> type[Exception]:
    """Return CuPy's error for a GPU that has no memory left."""
    from cupy.cuda.memory import OutOfMemoryError

    found: type[Exception] = OutOfMemoryError
    return found
