"""Products with the Q of packed QR factors, without forming it."""

from __future__ import annotations

from typing import Any

from scipy.linalg import get_lapack_funcs

from hetero_la.inputs import as_columns_for
from hetero_la.tiles.transfer import array_module, is_device_array, on_device_of_arrays


@on_device_of_arrays
def apply_q(qr: Any, tau: Any, c: Any, *, adjoint: bool) -> Any:
    """Q C or Q^H C, by LAPACK's ``xORMQR`` on the host and cuSOLVER's on a GPU.

    Parameters
    ----------
    qr : array, shape (m, n)
        Packed factors.
    tau : array, shape (k,)
        Scalars of the reflectors.
    c : array_like, shape (m,) or (m, p)
        What is multiplied; where `qr` is.
    adjoint : bool
        Whether by Q^H.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> apply_q(np.array([[5.0], [0.5]]), np.array([1.6]), np.array([-0.6, -0.8]), adjoint=True)
    array([1., 0.])
    """
    c = as_columns_for(qr, c, "factors", "c")
    xp = array_module(c)
    product = xp.array(c[:, None] if c.ndim == 1 else c, xp.result_type(qr, c), order="F")
    reflectors = xp.asfortranarray(qr[:, : len(tau)], product.dtype)
    tau = xp.asarray(tau, product.dtype)
    if product.size and len(tau):
        if is_device_array(c):
            from hetero_la.tiles.kernels.gpu_libraries import multiply_by_q

            multiply_by_q(reflectors, tau, product, adjoint=adjoint)
        else:
            product = _multiply(reflectors, tau, product, adjoint)
    return product.reshape(c.shape)


def _multiply(reflectors: Any, tau: Any, c: Any, adjoint: bool) -> Any:
    real = c.dtype.kind == "f"
    (ormqr,) = get_lapack_funcs(("ormqr" if real else "unmqr",), (c,))
    letter = ("T" if real else "C") if adjoint else "N"
    _, work, _ = ormqr("L", letter, reflectors, tau, c[:, :0], -1)
    size = max(int(work[0].real), 64 * max(c.shape))
    product, _, info = ormqr("L", letter, reflectors, tau, c, size, overwrite_c=True)
    if info:
        raise ValueError(f"illegal value in argument {-info} of LAPACK's ormqr")
    return product
