"""Whole matrices on a GPU: solves by inverses of diagonal blocks, cuSOLVER's routines."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from hetero_la.tiles.kernels.gpu_libraries import cusolver
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution
from tests.support import DTYPES, random

pytestmark = pytest.mark.gpu

#: Around a leaf (128), a block (1024), and where blocks are joined, or are not whole.
ORDERS = [1, 2, 5, 128, 129, 257, 700, 1024, 1025, 1800, 2100]
FORMS = {
    "lu": lambda f: (np.tril(f, -1) + np.eye(len(f))) @ np.triu(f),
    "cholesky": lambda f: np.tril(f) @ np.tril(f).conj().T,
    "r": np.triu,
}


def dominant(n: int, dtype: str) -> NDArray:
    """Packed triangles that are well conditioned."""
    return (random(n, n, dtype) / n + np.diag(1 + np.arange(n) % 3)).astype(dtype)


@pytest.mark.parametrize("order", [256, 1024])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_solves_and_the_norm_of_the_inverse(dtype: str, n: int, form: str, order: int) -> None:
    import cupy

    packed = dominant(n, dtype)
    whole = FORMS[form](packed.astype("complex128" if packed.dtype.kind == "c" else "float64"))
    frame = cupy.zeros((n + 3, n + 2), dtype, order="F")
    frame[2:-1, 1:-1] = cupy.asarray(packed)
    solves = Substitution(frame[2:-1, 1:-1], form, order=order)
    b, limit = random(n, 3, dtype), 100 * n * np.finfo(dtype).eps
    for adjoint, matrix in ((False, whole), (True, whole.conj().T)):
        x = solves.solve(cupy.asarray(b), adjoint=adjoint).get()
        assert np.abs(matrix @ x - b).max() < limit * max(np.abs(x).max(), 1)
    norm = np.abs(np.linalg.inv(whole)).sum(axis=0).max()
    assert 0.7 * norm < float(solves.inverse_norm) < norm * (1 + limit)


@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inverse_and_the_interchanges(dtype: str, n: int) -> None:
    import cupy

    a = random(n, n, dtype) + n * np.eye(n, dtype=dtype)[::-1]
    packed = cupy.asarray(a, order="F")
    vectors = cusolver.lu(packed, packed[:, :0])
    expected = scipy.linalg.lu_factor(a)
    piv = vectors["ipiv", 0]
    assert np.array_equal(piv.get(), expected[1])
    np.testing.assert_allclose(packed.get(), expected[0], atol=1e3 * np.finfo(dtype).eps * n)
    inverse = Substitution(packed, "lu", piv).inverse().get()
    assert np.abs(inverse @ a - np.eye(n)).max() < 100 * n * np.finfo(dtype).eps
    b = random(n, 2, dtype)
    on_host = Substitution(packed, "lu", piv.get())
    for solves in (Substitution(packed, "lu", piv), on_host):
        for adjoint, matrix in ((False, a), (True, a.conj().T)):
            x = solves.solve(cupy.asarray(b), adjoint=adjoint).get()
            assert np.abs(matrix @ x - b).max() < 100 * n * np.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (300, 200), (200, 300)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reflectors(dtype: str, shape: tuple[int, int]) -> None:
    import cupy

    a = random(*shape, dtype)
    m, k = shape[0], min(shape)
    packed, q = cupy.asarray(a, order="F"), cupy.zeros((m, k), dtype, order="F")
    tau = cusolver.qr_and_q(packed, q)["tau", 0]
    assert tau.shape == (k,)
    limit = 100 * max(shape) * np.finfo(dtype).eps
    assert np.abs(q.get() @ np.triu(packed.get())[:k] - a).max() < limit
    again, c = cupy.asarray(a, order="F"), cupy.asarray(a, order="F")
    cusolver.qr(again, c)
    assert np.abs(np.tril(c.get(), -1)).max(initial=0) < limit
