"""cuSPARSE's solver of tridiagonal systems."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.spec import LETTER


def solve_tridiagonal(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    """Solve A X = B for a tridiagonal matrix with pivoting (cuSPARSE, ``gtsv2``).

    Parameters
    ----------
    lower, diagonal, upper : cupy.ndarray, shape (n,)
        Rows of LAPACK's band storage: entries (j + 1, j), (j, j) and (j - 1, j); n is at least 3.
    b : cupy.ndarray, shape (n, nrhs)
        Right-hand sides.

    Returns
    -------
    cupy.ndarray, shape (n, nrhs)
        X, column-major; of a singular matrix, anything.
    """
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    x = b.copy(order="F")
    # cuSPARSE numbers the entries beside the diagonal by rows: the first and the last are zero.
    below, above = cupy.zeros_like(diagonal), cupy.zeros_like(diagonal)
    below[1:], above[:-1] = lower[:-1], upper[1:]
    diagonal = cupy.ascontiguousarray(diagonal)
    name, (n, nrhs) = LETTER[x.dtype.char] + "gtsv2", x.shape
    pointers = [array.data.ptr for array in (below, diagonal, above, x)]
    arguments = (device.get_cusparse_handle(), n, nrhs, *pointers, n)
    size = getattr(cusparse, name + "_bufferSizeExt")(*arguments)
    work = cupy.empty(max(size, 1), np.uint8)
    getattr(cusparse, name)(*arguments, work.data.ptr)
    return x
