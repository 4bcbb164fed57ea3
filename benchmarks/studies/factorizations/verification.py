"""Whether packed factors are those of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module

#: Errors of products with random vectors, in ulps for each row, that rounding does not explain.
_FAR = 100


def verify(who: str, routine: str, a: Any, packed: Any) -> None:
    """Raise AssertionError unless packed factors of a matrix give its products with a vector.

    Products are A x for Cholesky, of which the lower triangle counts, and A^T A x for the others,
    which needs neither pivots nor Q.
    """
    xp = array_module(a)
    x = xp.asarray(np.random.default_rng(0).standard_normal(len(a)))
    if routine == "cholesky":
        lower, true = xp.tril(packed), xp.tril(a) @ x + xp.tril(a, -1).T @ x
        found = lower @ (lower.T @ x)
    else:
        upper, true = xp.triu(packed), a.T @ (a @ x)
        product = upper @ x
        if routine == "lu":
            lower = xp.tril(packed, -1)  # and a diagonal of ones
            product = product + lower @ product
            product = product + lower.T @ product
        found = upper.T @ product
    error = float(xp.linalg.norm(found - true) / xp.linalg.norm(true))
    far = _FAR * len(a) * np.finfo(np.float64).eps
    assert error <= far, f"{routine}, {who}: products with the factors are off by {error:.1e}"
