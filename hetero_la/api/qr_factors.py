"""QR factors: products with Q without forming it, and least squares."""

from __future__ import annotations

from functools import partial
from typing import Any

from scipy.linalg import get_lapack_funcs

from hetero_la.accuracy.factored import QRFactored
from hetero_la.accuracy.judging import judge_factors
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.factors import Factors
from hetero_la.api.stacks import array_function, foreign_too
from hetero_la.checks.array_types import Numbers, Stored
from hetero_la.checks.inputs import as_columns_for, as_finite_array
from hetero_la.numerics.triangles import upper_triangle
from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_device_array,
    linalg_module,
    on_device_of_arrays,
)

#: Up to so many reflectors LAPACK may apply one by one (its largest block has 64).  It then writes
#: ones on their diagonal temporarily, which other threads must not see, so each call gets a copy.
_FEW = 64


@on_device_of_arrays
def apply_q(qr: Any, tau: Any, c: Any, *, adjoint: bool) -> Any:
    """Compute Q C or Q^H C, by LAPACK's ``xORMQR`` on the host and cuSOLVER's on a GPU.

    Parameters
    ----------
    qr : array, shape (m, n)
        Packed factors.
    tau : array, shape (k,)
        Scalars of the reflectors.
    c : array_like, shape (m,) or (m, p)
        The matrix to multiply, on the device of `qr`.
    adjoint : bool
        Whether to multiply by Q^H.

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
            from hetero_la.tiles.kernels.gpu_libraries.cusolver import multiply_by_q

            multiply_by_q(reflectors, tau, product, adjoint=adjoint)
        else:
            product = _multiply(reflectors, tau, product, adjoint)
    return product.reshape(c.shape)


def _multiply(reflectors: Any, tau: Any, c: Any, adjoint: bool) -> Any:
    if len(tau) <= _FEW:
        reflectors = reflectors.copy(order="F")
    real = c.dtype.kind == "f"
    (ormqr,) = get_lapack_funcs(("ormqr" if real else "unmqr",), (c,))
    letter = ("T" if real else "C") if adjoint else "N"
    _, work, _ = ormqr("L", letter, reflectors, tau, c[:, :0], -1)
    size = max(int(work[0].real), 64 * max(c.shape))
    product, _, info = ormqr("L", letter, reflectors, tau, c, size, overwrite_c=True)
    if info:
        raise ValueError(f"illegal value in argument {-info} of LAPACK's ormqr")
    return product


class QRFactors(Factors[Stored, Stored]):
    """QR factors, A = Q R; unpacks as SciPy's raw ``(qr, tau)``.

    Attributes
    ----------
    qr : array, shape (m, n)
        R in the upper triangle, the Householder vectors below the diagonal.
    tau : array, shape (min(m, n),)
        Scalars of the reflectors, as LAPACK's ``xGEQRF`` returns them.
    info : int
        0.
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> a = np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 2.0]])
    >>> factors = hetero_la.qr_factor(a)
    >>> abs(factors.r).round(3)
    array([[5.  , 2.2 ],
           [0.  , 2.04]])
    >>> factors.solve(a @ [1.0, 1.0]).round(12)  # least squares
    array([1., 1.])
    """

    @property
    def qr(self) -> Stored:
        """Packed R and Householder vectors."""
        return self[0]

    @property
    def tau(self) -> Stored:
        """Scalars of the Householder vectors."""
        return self[1]

    @property
    def panels(self) -> tuple[str, ...]:
        """Method of each panel: "householder" (column by column) or "cholesky"."""
        return self.timing.panels

    @property
    @foreign_too
    def r(self) -> Stored:
        """R, of shape (min(m, n), n)."""
        return on_device_of_arrays(upper_triangle)(self[0][: len(self[1])])

    @foreign_too
    def multiply(
        self, c: Stored | Numbers, adjoint: bool = False, check_finite: bool = True
    ) -> Stored:
        """Compute Q C or Q^H C without forming Q.

        Parameters
        ----------
        c : array, shape (m,) or (m, p)
            The matrix to multiply.
        adjoint : bool, optional
            Whether to multiply by Q^H.
        check_finite : bool, optional
            Whether to refuse NaNs and infinities in `c`.

        Returns
        -------
        array, shape of `c`
            The product.

        Notes
        -----
        LAPACK's ``xORMQR`` on the host, cuSOLVER's on a GPU; tile by tile on the GPUs that have
        kept the factors of a host matrix.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> a = np.array([[3.0, 1.0], [4.0, 2.0]])
        >>> factors = hetero_la.qr_factor(a)
        >>> np.allclose(factors.multiply(factors.r), a)
        True
        """
        c = as_finite_array(c, "c") if check_finite else c
        kept = self._kept_for(c)
        if kept is not None:
            routine = "qr_multiply_adjoint" if adjoint else "qr_multiply"
            product = kept.answer(c, partial(kept.solve, routine))
            if product is not None:
                return product
        return apply_q(self[0], self[1], c, adjoint=adjoint)

    @foreign_too
    @on_device_of_arrays
    def solve(self, b: Stored | Numbers) -> Stored:
        """Compute the least-squares solution of A X = B, for m >= n.

        Parameters
        ----------
        b : array, shape (m,) or (m, nrhs)
            Right-hand sides.

        Returns
        -------
        array, shape (n,) or (n, nrhs)
            X.

        Raises
        ------
        ValueError
            If `b` does not fit, or holds a NaN or an infinity.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> factors = hetero_la.qr_factor(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
        >>> np.round(factors.solve([1.0, 3.0, 5.0]), 12)
        array([1., 2.])
        """
        m, n = self.shape
        if m < n:
            raise ValueError(
                f"the QR factors of {a_matrix(m, n)} cannot solve a "
                "least-squares problem: use lstsq, which finds the minimum-norm solution"
            )
        b = as_columns_for(self.qr, as_finite_array(b, "b"), "factors")
        kept = self._kept_for(b)
        if kept is not None and self.qr.diagonal().all():  # if R is singular, the host raises
            x = kept.answer(b, partial(kept.solve, "qr_solve"))
            if x is not None:
                return x[:n]
        c = self.multiply(b, adjoint=True, check_finite=False)[:n]
        return linalg_module(c).solve_triangular(self.qr[:n], c, check_finite=False)

    @array_function(stacks=False)
    def report(
        self, a: Stored | Numbers | None = None, b: Stored | Numbers | None = None,
        x: Stored | Numbers | None = None,
    ) -> AccuracyReport:  # fmt: skip
        """Estimate what the factors, or a solution, are worth, as `LUFactors.report` does.

        Parameters
        ----------
        a : array, shape (m, n), optional
            The matrix.
        b, x : array, optional
            Right-hand sides and least-squares solution; by default what the factors solve.

        Returns
        -------
        AccuracyReport
            Errors, condition number of R, orthogonality of Q and others; see its attributes.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> report = hetero_la.qr_factor(np.array([[3.0, 1.0], [4.0, 2.0]])).report()
        >>> report.orthogonality < 1e-15, report.rank
        (True, 2)
        """

        def solve(b: Any, trans: int) -> Any:
            if trans == 0:
                return self.solve(b)
            y = linalg_module(b).solve_triangular(self.qr, b, trans=2, check_finite=False)
            return self.multiply(y, check_finite=False)

        factored = QRFactored(self.qr, self._report, partial(self.multiply, check_finite=False))
        return judge_factors(factored, a, b, x, solve)
