"""Refinement of what factors in the lower precision solve, to the accuracy of the higher one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hetero_la.mixed.fallback import LowerPrecisionError
from hetero_la.mixed.gmres import flexible_gmres

#: Most steps, most steps of GMRES within one, and those after which it has to have helped.
_STEPS, _INNER, _PATIENCE = 12, 10, 4
#: How many more of each it takes for a tiny singular value, whose direction it has to find.
_INNER_TINY, _PATIENCE_TINY = 4, 2
#: Reduction of the error by a step from which on plain refinement is too slow.
_SLOW = 0.25
#: Reduction of a residual at which GMRES stops: less would take more residuals.
_INNER_REDUCTION = 1e-4
#: Backward error that is aimed at, and the one that is enough once steps no longer make it smaller,
#: over eps: the error ratio is twice that.
_AIM, _ENOUGH = 0.5, 1.0


@dataclass(frozen=True)
class RefinedSystem:
    """A system, as its refinement sees it.

    Attributes
    ----------
    residual : callable
        Takes X and the right-hand sides, and returns the residual, in the precision of X.
    product : callable
        Takes what corrections are made of, and returns what they take from the residual.
    correct : callable
        Takes a residual, and returns what takes it away, from factors in the lower precision.
    error : callable
        Takes X and its residual, and returns the largest backward error of a column.
    precondition : callable, optional
        Does what `correct` does for GMRES, more precisely; by default that itself.
    lift : callable, optional
        Takes what `correct` returns, and returns what is added to X; by default that itself.
    """

    residual: Callable[[Any, Any], Any]
    product: Callable[[Any], Any]
    correct: Callable[[Any], Any]
    error: Callable[[Any, Any], float]
    precondition: Callable[[Any], Any] | None = None
    lift: Callable[[Any], Any] = lambda d: d


class Refined(NamedTuple):
    """The end of a refinement.

    Attributes
    ----------
    x : array
        The solution.
    steps, inner_steps : int
        Steps, and those of GMRES within them.
    """

    x: Any
    steps: int
    inner_steps: int


def refine_to_full(
    system: RefinedSystem, b: Any, x: Any, eps: float, *, enough: float = _ENOUGH,
    slow: bool = False, tiny: int = 0,
) -> Refined:  # fmt: skip
    """Refine X, in the precision of B, until its backward error is at the level of rounding.

    A step is a residual of all columns together, and a correction from the factors [1]_, as in
    LAPACK's ``DSGESV``; where that converges slowly, one by GMRES with the factors as its
    preconditioner [2]_, which for ill-conditioned matrices have to be applied in the higher
    precision.

    Parameters
    ----------
    system : RefinedSystem
        The system.
    b : array, shape (n, nrhs)
        Right-hand sides.
    x : array, shape (n, nrhs)
        What the factors have found; it is overwritten.
    eps : float
        That of the higher precision.
    enough : float, optional
        Backward error, in eps, with which X is accepted once steps no longer make it smaller.
    slow : bool, optional
        Whether it is known before that plain refinement would converge slowly.
    tiny : int, optional
        How many singular values are so small that the factors cannot tell them from rounding.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        When steps no longer help.

    References
    ----------
    .. [1] A. Buttari, J. Dongarra, J. Langou, J. Langou, P. Luszczek and J. Kurzak, Mixed precision
       iterative refinement techniques for the solution of dense linear systems, Int. J. High
       Perform. Comput. Appl. 21, 2007.
    .. [2] E. Carson and N. J. Higham, A new analysis of iterative refinement and its application to
       accurate solution of ill-conditioned sparse linear systems, SIAM J. Sci. Comput. 39, 2017;
       Accelerating the solution of linear systems by iterative refinement in three precisions,
       SIAM J. Sci. Comput. 40, 2018.

    Examples
    --------
    >>> half = RefinedSystem(
    ...     lambda x, b: b - 2 * x, lambda d: 2 * d, lambda r: 0.4999 * r,
    ...     lambda x, r: float(abs(r / (2 * x)).max()))
    >>> b = np.array([[3.0]])
    >>> refined = refine_to_full(half, b, half.correct(b), 2**-52)
    >>> refined.x, refined.steps
    (array([[1.5]]), 4)
    """
    previous, inner = np.inf, 0
    for step in range(_STEPS):
        with np.errstate(all="ignore"):  # what is not finite shows in the error
            left = system.residual(x, b)
            error = system.error(x, left)
        if error <= _AIM * eps:
            return Refined(x, step, inner)
        stuck = not error < previous / 2
        if stuck and error <= enough * eps:
            return Refined(x, step, inner)
        if not np.isfinite(error) or (stuck and slow):
            break
        slow = slow or error > _SLOW * previous
        previous = error
        with np.errstate(all="ignore"):
            if not slow:
                d = system.correct(left)
            else:
                found = flexible_gmres(
                    system.product, system.precondition or system.correct, left,
                    most=_INNER + _INNER_TINY * tiny, patience=_PATIENCE + _PATIENCE_TINY * tiny,
                    wanted=_INNER_REDUCTION,
                )  # fmt: skip
                d, inner = found.d, inner + found.steps
            x += system.lift(d)
    raise LowerPrecisionError("refinement does not converge", step, inner)
