"""Kernels on stacks of small matrices, which have a block for each matrix and a thread a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from hetero_la.tiles.kernels.gpu.batched import factors, solutions
from hetero_la.tiles.kernels.gpu.batched.arrays import MOST
from hetero_la.tiles.kernels.gpu.batched.factors import FactorKind
from tests.support import covering
from tests.tiles.kernels import DTYPES, LIMIT, eps, norm, random

pytestmark = pytest.mark.gpu
ORDERS = [1, 31, 32, 33, 64, 100]


def stack(n: int, dtype: Any, count: int = 3) -> np.ndarray:
    return random(np.random.default_rng(n), (count * n, n), dtype).reshape(count, n, n)


def well_conditioned(n: int, dtype: Any) -> np.ndarray:
    return (stack(n, dtype) + 4 * np.sqrt(n) * np.eye(n)).astype(dtype)


def simple_norm(a: np.ndarray) -> float:
    """1-norm with |re| + |im| for the modulus."""
    return float((np.abs(a.real) + np.abs(a.imag)).sum(axis=0).max())


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.parametrize(("n", "dtype"), [*covering(ORDERS, DTYPES), (MOST, np.float64)])
def test_lu_has_lapack_s_pivots(n: int, dtype: Any, cupy: Any) -> None:
    a = stack(n, dtype)
    packed, _, found = factors.lu(cupy.asarray(a), 0)
    ipiv = [scipy.linalg.lu_factor(one)[1] for one in a]
    assert np.array_equal(found["ipiv"].get(), ipiv)
    assert not found["info"].get().any()
    for one, lu, piv in zip(a, packed.get(), ipiv, strict=True):
        rows = np.arange(n)
        for i, p in enumerate(piv):
            rows[[i, p]] = rows[[p, i]]
        product = (np.tril(lu, -1) + np.eye(n)) @ np.triu(lu)
        assert norm(one[rows] - product) <= LIMIT * n * norm(one) * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_info_is_lapack_s(dtype: Any, cupy: Any) -> None:
    a = stack(40, dtype, 4)
    s = a @ a.conj().swapaxes(1, 2) + 40 * np.eye(40, dtype=dtype)
    a[0, :, 7] = a[1, :, 0] = 0
    a[2, 3, 39] = np.nan
    packed, _, found = factors.lu(cupy.asarray(a), 0)
    assert found["info"].get().tolist() == [8, 1, -1, 0]
    assert not packed[0, 8:, 7].get().any()
    s[0, 5, 5] = s[1, 0, 0] = -1
    s[2, 3, 39] = np.inf  # above the diagonal
    packed, _, found = factors.cholesky(cupy.asarray(s), 0)
    assert found["info"].get().tolist() == [6, 1, -1, 0]
    assert not np.triu(packed[3].get(), 1).any()


@pytest.mark.parametrize(
    ("n", "nrhs", "kind", "dtype"), covering(ORDERS, [1, 3, 16, 17], list(FactorKind), DTYPES)
)
def test_solves_of_every_kind(n: int, nrhs: int, kind: FactorKind, dtype: Any, cupy: Any) -> None:
    a = well_conditioned(n, dtype)
    if kind is FactorKind.CHOLESKY:
        a = a @ a.conj().swapaxes(1, 2)
        found = factors.factor_cholesky(cupy.asarray(a))
    else:
        found = factors.factor_lu(cupy.asarray(a))
    op = {FactorKind.TRANSPOSED: lambda x: x.T, FactorKind.ADJOINT: lambda x: x.conj().T}
    b = random(np.random.default_rng(1), (3 * n, nrhs), dtype).reshape(3, n, nrhs)
    sizes = cupy.empty((factors.parts_of(nrhs), 3))
    x = found.solve(cupy.asarray(b), kind, sizes=sizes.data.ptr).get()
    for one, right, solution in zip(a, b, x, strict=True):
        matrix = op.get(kind, lambda x: x)(one)
        left = np.abs(right - matrix @ solution).sum(axis=0)
        size = norm(matrix) * np.abs(solution).sum(axis=0)
        assert (left <= LIMIT * size * eps(dtype)).all()
    assert np.allclose(sizes.get().max(axis=0), [simple_norm(one) for one in x], rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solution_that_is_not_accurate_is_refined(dtype: Any, cupy: Any) -> None:
    """From the factors of matrices that are near."""
    n, near = 50, np.sqrt(np.finfo(dtype).eps)
    a = well_conditioned(n, dtype)
    b = np.ones((3, n, 2), dtype)
    given, norms = cupy.asarray(a), cupy.asarray([float(norm(one)) for one in a])
    refined = factors.Refinement(given, norms.data.ptr, 4 * float(eps(dtype)))
    other = factors.factor_lu(cupy.asarray((a * (1 + near)).astype(dtype)))
    for refinement, accurate in ((None, False), (refined, True)):
        x = other.solve(cupy.asarray(b), FactorKind.LU, refined=refinement).get()
        left = np.abs(b - a @ x).sum(axis=1)
        error = left / (np.abs(a).sum(axis=1).max(axis=1)[:, None] * np.abs(x).sum(axis=1))
        assert (error.max() <= LIMIT * eps(dtype)) == accurate


@pytest.mark.parametrize(("n", "dtype"), covering([1, 2, 33, 70], DTYPES))
def test_conditions_are_lapack_s(n: int, dtype: Any, cupy: Any) -> None:
    a = stack(n, dtype) * np.geomspace(1, 1e-4, n).astype(dtype)
    report = solutions._Report(3, 1)
    found = factors.factor_lu(cupy.asarray(a), norms=report.norms)
    b, estimation = cupy.ones((3, n, 1), dtype), report.estimation(np.dtype(dtype))
    found.solve(b, FactorKind.LU, sizes=report.sizes, estimation=estimation)
    norms, rconds, _ = report.read()
    assert np.allclose(norms, [simple_norm(one) for one in a], rtol=1e-5)
    inverses = np.linalg.inv(a.astype(np.complex128))
    exact = np.array(
        [1 / (simple_norm(one) * norm(inverse)) for one, inverse in zip(a, inverses, strict=True)]
    )
    assert (rconds > 0.9 * exact).all()
    assert (rconds < 10 * n * exact).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_of_other_functions_are_solved_with(dtype: Any, cupy: Any) -> None:
    a = stack(34, dtype)
    lu, piv = (np.stack(part) for part in zip(*map(scipy.linalg.lu_factor, a), strict=True))
    perm, orders = (part.get() for part in factors.permutations(cupy.asarray(piv), 34))
    assert np.array_equal(np.take_along_axis(orders, perm.astype(int), 1), [np.arange(34)] * 3)
    b = np.ones((3, 34, 1), dtype)
    x = solutions.lu_solve(cupy.asarray(lu), cupy.asarray(piv), cupy.asarray(b), 0).get()
    left, sizes = np.abs(b - a @ x).sum(axis=1), np.abs(x).sum(axis=1)
    assert (left[:, 0] <= LIMIT * sizes[:, 0] * [norm(one) for one in a] * eps(dtype)).all()
