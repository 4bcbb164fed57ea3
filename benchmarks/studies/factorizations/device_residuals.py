"""How wrong factors are that lie on GPUs, from products with random vectors.

||(A - L U) x|| / ||x|| is at most the 2-norm of the residual, and for random x close to its
Frobenius norm over sqrt(n).  The ratios are scaled as the library's own, by n ||A||_1 eps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.scheduler.run.job import Outcome
from hetero_la.studies.factorizations.device_data import RandomStorage, random_columns
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.pivots import permutation

_VECTORS = 3


class _Check:
    """Random vectors, and A times them."""

    def __init__(self, storage: RandomStorage, *, hermitian: bool = False) -> None:
        self.storage = storage
        first = storage.blocks[0]
        self.dtype, self.m = first.dtype, len(first)
        self.n = sum(block.shape[1] for block in storage.blocks.values())
        self.x = np.random.default_rng(0).standard_normal((self.n, _VECTORS)).astype(self.dtype)
        self.ax, self.norm = self._product(hermitian)

    def blocks(self, *, backwards: bool = False) -> Iterator[tuple[int, slice, Any]]:
        """Where a block of factors begins, its columns, and itself, its GPU being current."""
        import cupy

        for start, block in sorted(self.storage.blocks.items(), reverse=backwards):
            with cupy.cuda.Device(block.device.id):
                cupy.cuda.Stream.null.use()
                yield start, slice(start, start + block.shape[1]), block

    def _product(self, hermitian: bool) -> tuple[np.ndarray, float]:
        import cupy

        ax, sums = np.zeros((self.m, _VECTORS), self.dtype), np.zeros(self.n)
        for start, columns, block in self.blocks():
            a = random_columns(start, block.shape, block.dtype, self.storage.diagonal)
            if hermitian:
                a = cupy.tril(a, -start)
                below = cupy.tril(a, -start - 1)
                ax[columns] += cupy.asnumpy(below.conj().T @ cupy.asarray(self.x))
                sums += cupy.asnumpy(cupy.abs(below).sum(axis=1))
            ax += cupy.asnumpy(a @ cupy.asarray(self.x[columns]))
            sums[columns] += cupy.asnumpy(cupy.abs(a).sum(axis=0))
        return ax, float(sums.max())

    def ratio(self, found: np.ndarray) -> float:
        """From the product of the factors with the vectors."""
        eps = np.finfo(self.dtype).eps / 2
        error = np.linalg.norm(self.ax - found, axis=0) / np.linalg.norm(self.x, axis=0)
        return float(error.max() / (self.n * self.norm * eps)) * np.sqrt(self.n)

    def upper_product(self) -> np.ndarray:
        """U x or R x, from the upper triangles of the blocks."""
        import cupy

        product = np.zeros((self.m, _VECTORS), self.dtype)
        for start, columns, block in self.blocks():
            product += cupy.asnumpy(cupy.triu(block, -start) @ cupy.asarray(self.x[columns]))
        return product


def lu_residual(storage: RandomStorage, outcome: Outcome, layout: TileLayout) -> float:
    """||P A - L U|| / (n ||A|| eps)."""
    import cupy

    check = _Check(storage)
    ux, found = check.upper_product(), np.zeros_like(check.ax)
    for start, columns, block in check.blocks():
        lower = cupy.tril(block, -start - 1)
        own = cupy.arange(block.shape[1])
        lower[start + own, own] = 1
        found += cupy.asnumpy(lower @ cupy.asarray(ux[columns]))
    piv = StepValues(outcome.values, layout, check.dtype).piv
    check.ax = check.ax[permutation(piv, check.m)]
    return check.ratio(found)


def cholesky_residual(storage: RandomStorage, outcome: Outcome, layout: TileLayout) -> float:
    """||A - L L^H|| / (n ||A|| eps)."""
    import cupy

    check = _Check(storage, hermitian=True)
    found = np.zeros_like(check.ax)
    for start, _, block in check.blocks():
        lower = cupy.tril(block, -start)
        found += cupy.asnumpy(lower @ (lower.conj().T @ cupy.asarray(check.x)))
    return check.ratio(found)


def qr_residual(storage: RandomStorage, outcome: Outcome, layout: TileLayout) -> float:
    """||A - Q R|| / (n ||A|| eps); a Q that is not unitary shows, too."""
    import cupy

    check = _Check(storage)
    found = check.upper_product()
    blocks = zip(check.blocks(backwards=True), reversed(range(layout.kt)), strict=True)
    for (start, _, block), k in blocks:
        own = cupy.arange(block.shape[1])
        v = cupy.tril(block[start:], -1)
        v[own, own] = 1
        t = cupy.triu(v.conj().T @ v, 1)
        t[own, own] = 1 / cupy.asarray(outcome.values["tau", k])
        y = cupy.asarray(found[start:])
        y -= v @ cupy.linalg.solve(t, v.conj().T @ y)
        found[start:] = cupy.asnumpy(y)
    return check.ratio(found)
