"""Test matrices with prescribed singular values or eigenvalues."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from hetero_la.testing.kinds import KindArguments, kind, scaled


@kind("svd-eps", "svd with cond = 1/eps: singular to working precision", cond=1.0)
@kind("svd", "random, singular values graded geometrically from 1 to 1/cond", cond=0.5)
def _svd(r: KindArguments) -> NDArray:
    k = min(r.m, r.n)
    if k == 0:
        return np.zeros((r.m, r.n))
    u = _orthonormal(r.draw("standard_normal", r.m, k))
    v = _orthonormal(r.draw("standard_normal", r.n, k))
    u *= _graded(r, k)
    return u @ v.conj().T


@kind("spd", "random, Hermitian positive definite, eigenvalues graded from 1 to 1/cond", cond=0.5)
def _spd(r: KindArguments) -> NDArray:
    order = max(r.m, r.n)
    if order == 0:
        return np.zeros((0, 0))
    q = _orthonormal(r.draw("standard_normal", order, order))
    # (Q S)(Q S)^H is Hermitian up to rounding; copying the lower triangle makes it exactly so.
    q *= np.sqrt(_graded(r, order))
    lower = np.tril(q @ q.conj().T)
    a = lower + np.tril(lower, -1).conj().T
    d = np.arange(order)
    a[d, d] = a[d, d].real
    return a[: r.m, : r.n]


def _graded(r: KindArguments, k: int) -> NDArray:
    """Return `k` values from 1 to 1/cond, in geometric progression."""
    exponents = np.linspace(0, 1, k) if k > 1 else np.zeros(1)
    return (r.cond**-exponents).astype(r.dtype)


def _orthonormal(a: NDArray) -> NDArray:
    return scipy.linalg.qr(a, mode="economic", overwrite_a=True, check_finite=False)[0]


kind("spd-underflow", "spd scaled to nearly underflow", cond=0.5)(scaled(_spd, 1))
kind("spd-overflow", "spd scaled to nearly overflow", cond=0.5)(scaled(_spd, -1))
