"""Flexible GMRES for several right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, to_host


class Correction(NamedTuple):
    """What GMRES has found.

    Attributes
    ----------
    d : array, shape (n, nrhs)
        The solution.
    steps : int
        Steps taken.
    left : float
        The largest norm of a column's residual over that of its right-hand side.
    """

    d: Any
    steps: int
    left: float


def flexible_gmres(
    product: Callable[[Any], Any], precondition: Callable[[Any], Any], r: Any, *, most: int,
    patience: int, wanted: float,
) -> Correction:  # fmt: skip
    """Solve A D = R by flexible GMRES [1]_, in which the preconditioner may itself round.

    Each column has a Krylov space of its own; the products are done with all of them together.
    It ends after `most` steps, once all residuals are small enough, or when some steps have hardly
    made them smaller.

    Parameters
    ----------
    product : callable
        Returns A V.
    precondition : callable
        Returns about A^-1 V.
    r : array, shape (n, nrhs)
        Right-hand sides.
    most : int
        Most steps.
    patience : int
        Steps after which residuals have to be below half of the first ones.
    wanted : float
        Norm of a residual over that of its right-hand side that is enough.

    References
    ----------
    .. [1] Y. Saad, A flexible inner-outer preconditioned GMRES algorithm, SIAM J. Sci. Comput. 14,
       1993.

    Examples
    --------
    >>> a, r = np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([[3.0], [4.0]])
    >>> found = flexible_gmres(lambda v: a @ v, lambda v: v, r, most=2, patience=2, wanted=0.0)
    >>> found.d.ravel().round(12), found.steps
    (array([1., 1.]), 2)
    """
    xp = array_module(r)
    size = abs(r).max(axis=0)
    size = xp.where(size > 0, size, 1)  # squares of what is smaller could underflow
    r = r / size
    norms = _norms(r)
    basis, directions = [r / xp.where(norms > 0, norms, 1)], []
    small = np.zeros((r.shape[1], most + 1, most), r.dtype)
    given, y, left = to_host(norms), np.zeros((r.shape[1], 0), r.dtype), 1.0
    for step in range(most):
        directions.append(precondition(basis[step]))
        new, column = _orthogonalized(product(directions[step]), basis)
        small[:, : step + 2, step] = to_host(column).T
        basis.append(new)
        y, rests = _least_squares(small[:, : step + 2, : step + 1], given)
        left = float(np.where(given > 0, rests / np.where(given > 0, given, 1), 0).max())
        if not left > wanted or (step + 1 == patience and left > 0.5):
            break
    weights = xp.asarray(y)
    d = sum(z * weights[:, i] for i, z in enumerate(directions))
    return Correction(d * size, len(directions), left)


def _orthogonalized(w: Any, basis: list[Any]) -> tuple[Any, Any]:
    """Return a new vector of the basis for each column, and the coefficients, norm last."""
    xp, found = array_module(w), []
    for v in basis:
        found.append((v.conj() * w).sum(axis=0))
        w = w - v * found[-1]
    norms = _norms(w)
    found.append(norms.astype(w.dtype))
    return w / xp.where(norms > 0, norms, 1), xp.stack(found)


def _norms(a: Any) -> Any:
    return array_module(a).sqrt((abs(a) ** 2).sum(axis=0))


def _least_squares(h: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimize ||norm e_1 - H y|| for each column; return the y and the norms that are left."""
    if not np.isfinite(h).all():
        return np.zeros((len(h), h.shape[2]), h.dtype), np.full(len(h), np.inf)
    y = np.linalg.pinv(h)[:, :, 0] * norms[:, None]
    rest = -(h @ y[:, :, None])[:, :, 0]
    rest[:, 0] += norms
    return y, np.sqrt((np.abs(rest) ** 2).sum(axis=1))
