"""Structured matrices: `assume_a`, `lower` and `transposed` mean what they mean to SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from hetero_la import inv, solve
from hetero_la.api.structure import divide_by_diagonal, solve_triangle
from tests.support import (
    DTYPES,
    assert_close,
    covering,
    host,
    random,
    share_small_matrices,
)

NB = 8
N = 21
TRIANGLES = ["upper triangular", "lower triangular"]
SYMMETRIC = ["sym", "symmetric", "her", "hermitian", "pos", "positive definite"]
STRUCTURES = ["general", "gen", "diagonal", "tridiagonal", "banded", *TRIANGLES, *SYMMETRIC]
INVERTED = ["general", "gen", "diagonal", *TRIANGLES, "sym", "her", "pos"]
#: Of a full matrix, those read a part; what lies outside may be anything.
PARTIAL = ["diagonal", "tridiagonal", *TRIANGLES, *SYMMETRIC]


def matrix(dtype: str, n: int = N) -> NDArray:
    """A full matrix, of which every part is well-conditioned, and each triangle positive."""
    return random(n, dtype=dtype) + 2 * n * np.eye(n, dtype=dtype)


def limit(dtype: str) -> float:
    return 1e-4 if dtype in DTYPES[::2] else 1e-12


# --- solve


@pytest.mark.parametrize(
    ("structure", "lower", "dtype"), covering(STRUCTURES, [False, True], DTYPES)
)
def test_solve_is_scipy_s(structure: str, lower: bool, dtype: str) -> None:
    a = matrix(dtype)
    for shape in [(N,), (N, 3), (N, 0)]:
        b = random(N, 3, dtype, seed=1)[:, : shape[-1]] if len(shape) == 2 else np.ones(N)
        before = a.copy(), b.copy()
        expected = scipy.linalg.solve(a, b, lower, assume_a=structure)
        for options in ({"nb": NB}, {}):  # in tiles, or by LAPACK
            x = solve(a, b, lower, assume_a=structure, **options)
            assert_close(x, expected, limit=limit(dtype))
        assert np.array_equal(a, before[0])
        assert np.array_equal(b, before[1])


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_transposed_is_scipy_s(structure: str, lower: bool) -> None:
    a, b = matrix("float64"), random(N, 2, seed=1)
    options = {"lower": lower, "assume_a": structure, "transposed": True}
    assert_close(solve(a, b, nb=NB, **options), scipy.linalg.solve(a, b, **options))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("structure", PARTIAL)
def test_only_what_the_structure_names_is_read(structure: str, lower: bool, dtype: str) -> None:
    a = matrix(dtype)
    rows, columns = np.indices(a.shape)
    unread = {
        "diagonal": rows != columns,
        "tridiagonal": abs(rows - columns) > 1,
        "upper triangular": rows > columns,
        "lower triangular": rows < columns,
    }.get(structure, rows < columns if lower else rows > columns)
    spoilt = np.where(unread, np.nan, a)
    for options in ({"nb": NB}, {}):
        x = solve(spoilt, np.ones(N), lower, check_finite=False, assume_a=structure, **options)
        assert_close(x, scipy.linalg.solve(a, np.ones(N), lower, assume_a=structure))
    for function in (solve, scipy.linalg.solve):
        with pytest.raises(ValueError, match="infs or NaNs"):
            function(spoilt, np.ones(N), lower, assume_a=structure)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_small_systems_are_scipy_s(structure: str, n: int) -> None:
    for shape, dtype in [((n,), "float32"), ((n, 2), "int64"), ((n, 0), "complex64")]:
        a, b = matrix("float32", n), np.ones(shape, dtype)
        x = solve(a, b, assume_a=structure)
        assert_close(x, scipy.linalg.solve(a, b, assume_a=structure), limit=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("structure", "dtype"), covering(["sym", "her"], DTYPES))
def test_completing_large_entries_does_not_overflow(structure: str, dtype: str) -> None:
    a = 0.9 * np.finfo(dtype).max * np.eye(3, dtype=dtype)
    b = a[:, 0].copy()
    assert_close(solve(a, b, assume_a=structure), np.eye(3, dtype=dtype)[0])


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_singular_matrices_raise_and_ill_conditioned_ones_warn(structure: str, lower: bool) -> None:
    a, b = np.eye(6), np.ones(6)
    a[3, 3] = 0
    for function in (solve, scipy.linalg.solve):
        with pytest.raises(LinAlgError):
            function(a, b, lower, assume_a=structure)
    a[3, 3] = 1e-20
    for function in (solve, scipy.linalg.solve):
        with pytest.warns(LinAlgWarning, match=r"[Ii]ll-conditioned"):
            function(a, b, lower, assume_a=structure)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_stacks_are_scipy_s(structure: str) -> None:
    a = np.stack([matrix("float64"), matrix("float64").T])
    b = random(N, 2, seed=1)
    x = solve(a, b, assume_a=structure, nb=NB)
    assert_close(x, scipy.linalg.solve(a, b, assume_a=structure))
    assert_close(solve(a[:0], b, assume_a=structure), np.empty((0, N, 2)))


@pytest.mark.parametrize(
    ("structure", "lower", "order", "n", "dtype"),
    [
        case
        for case in covering(STRUCTURES[2:], [False, True], "CFT", [1, 2, 5, 30, 140], DTYPES)
        if case.values[3] > 2 or case.values[0] not in ("tridiagonal", "banded")
    ],
)
def test_stacks_are_solved_without_a_run_for_each(
    structure: str, lower: bool, order: str, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("one matrix after another")

    monkeypatch.setattr("hetero_la.api.solve.solve_simple", fail)
    monkeypatch.setattr("hetero_la.api.solve.execute_lu", fail)
    share_small_matrices(monkeypatch)
    a = np.stack([matrix(dtype, n) + i * np.eye(n, dtype=dtype) for i in range(40)])
    own = np.arange(n)
    a[:, own, own] = a[:, own, own].real  # SciPy takes a complex number for a Hermitian matrix
    if structure == "banded":
        a = np.triu(np.tril(a, 2), -1)
        a[7] = np.tril(a[7])
    given = {
        "C": np.ascontiguousarray(a), "F": np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2),
        "T": np.repeat(a, 2, axis=2)[:, :, ::2],
    }[order]  # fmt: skip
    before = given.copy()
    for b in (random(n, 3, dtype, seed=1), np.ones(n, dtype)):
        for transposed in (False, True)[: 1 + (dtype in DTYPES[:2])]:
            how: Any = {"assume_a": structure, "transposed": transposed}
            for one, found in zip(a, solve(given, b, lower, **how), strict=True):
                expected = scipy.linalg.solve(one, b, lower, **how)
                assert_close(found, expected, limit=limit(dtype))
    assert np.array_equal(given, before)


def test_a_stack_without_pivoting_is_not_pivoted() -> None:
    a = np.stack([np.eye(4)[::-1]] * 40)
    assert_close(solve(a, np.arange(4.0), assume_a="sym")[3], np.arange(4.0)[::-1])
    with pytest.raises(LinAlgError, match="pivot"):
        solve(a, np.arange(4.0), assume_a="sym", pivot="none")


@pytest.mark.parametrize("structure", STRUCTURES[2:])
def test_a_matrix_of_a_stack_that_is_singular_is_named(structure: Any) -> None:
    a, b = np.stack([(i + 1) * np.eye(30) for i in range(40)]), np.ones(30)
    ill = a.copy()
    ill[9, 3, 3] = 1e-20
    with pytest.warns(LinAlgWarning, match=r"[Ii]ll-conditioned") as caught:
        x = solve(ill, b, assume_a=structure)
    assert [w.filename for w in caught] == [__file__]
    assert_close(x[8], np.full(30, 1 / 9))
    assert_close(x[9, 3], np.float64(1e20))
    a[9, 3, 3] = 0
    with pytest.raises(LinAlgError) as error:
        solve(a, b, assume_a=structure)
    assert error.value.__notes__ == ["This concerns matrix (9,) of a stack of shape (40,)."]


# --- inv


@pytest.mark.parametrize(("structure", "lower", "dtype"), covering(INVERTED, [False, True], DTYPES))
def test_inv_is_scipy_s(structure: str, lower: bool, dtype: str) -> None:
    for n in (0, 1, N):
        a = matrix(dtype, n)
        if structure == "diagonal":  # SciPy leaves in its place what is off the diagonal
            a = np.diag(a.diagonal())
        expected = scipy.linalg.inv(a, assume_a=structure, lower=lower)
        found = inv(a, assume_a=structure, lower=lower, nb=NB)
        assert_close(found, expected, limit=limit(dtype))


def test_the_inverse_of_a_diagonal_has_zeros_beside_it() -> None:
    found = inv(np.array([[2.0, 1.0], [3.0, 4.0]]), assume_a="diagonal")
    assert np.array_equal(found, np.diag([0.5, 0.25]))


@pytest.mark.parametrize("structure", INVERTED)
def test_inv_of_a_singular_matrix_raises(structure: str) -> None:
    a = np.diag([1.0, 0.0, 2.0])
    for function in (inv, scipy.linalg.inv):
        with pytest.raises(LinAlgError):
            function(a, assume_a=structure)


# --- what a GPU does instead of SciPy, here with NumPy arrays


@pytest.mark.parametrize(("shape", "dtype"), covering([(N,), (N, 3)], DTYPES))
def test_division_by_the_diagonal_is_scipy_s(shape: tuple[int, ...], dtype: str) -> None:
    a, b = matrix(dtype), np.ones(shape, dtype)
    assert_close(divide_by_diagonal(a, b), scipy.linalg.solve(a, b, assume_a="diagonal"))


@pytest.mark.parametrize(
    ("lower", "shape", "dtype"), covering([False, True], [(N,), (N, 3)], DTYPES)
)
def test_solving_with_a_triangle_is_scipy_s(
    shape: tuple[int, ...], lower: bool, dtype: str
) -> None:
    a, b = matrix(dtype), np.ones(shape, dtype)
    for transposed in (False, True):
        expected = scipy.linalg.solve_triangular(a, b, trans=int(transposed), lower=lower)
        assert_close(solve_triangle(a, b, lower, transposed), expected)


@pytest.mark.parametrize("lower", [False, True])
def test_zeros_on_diagonals_raise_and_tiny_ones_warn(lower: bool) -> None:
    a = np.diag([1.0, 0.0, 2.0])
    with pytest.raises(LinAlgError, match="singular"):
        divide_by_diagonal(a, np.ones(3))
    with pytest.raises(LinAlgError, match="singular"):
        solve_triangle(a, np.ones(3), lower, False)
    a[1, 1] = 1e-20
    with pytest.warns(LinAlgWarning, match="rcond = 5e-21"):
        divide_by_diagonal(a, np.ones(3))
    with pytest.warns(LinAlgWarning, match="rcond = 5e-21"):
        solve_triangle(a, np.ones(3), lower, False)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("structure", "dtype"), covering(STRUCTURES, DTYPES))
def test_structures_on_a_gpu_mean_the_same(structure: str, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a = matrix(dtype)
    for lower in (False, True):
        for b in (random(N, 3, dtype, seed=1), np.ones(N, dtype), np.ones((N, 0), dtype)):
            x = solve(cupy.asarray(a), cupy.asarray(b), lower, assume_a=structure, nb=NB)
            assert type(x) is cupy.ndarray
            expected = scipy.linalg.solve(a, b, lower, assume_a=structure)
            assert_close(x, expected, limit=limit(dtype))
    singular = cupy.zeros((3, 3), dtype)
    with pytest.raises(LinAlgError):
        solve(singular, cupy.ones(3, dtype), assume_a=structure)
    if structure in INVERTED:
        found = host(inv(cupy.asarray(a), assume_a=structure, nb=NB))
        assert_close(found, inv(a, assume_a=structure, nb=NB), limit=limit(dtype))


@pytest.mark.parametrize("structure", ["tridiagonal", "banded", "upper triangular", "diagonal"])
def test_a_matrix_that_is_not_aligned_is_solved_with(structure: str) -> None:
    a = np.ndarray((3, 3), "f8", bytearray(80), offset=1)
    a[...] = 2 * np.eye(3)
    assert not a.flags.aligned
    assert np.array_equal(solve(a, [2.0, 4.0, 6.0], assume_a=structure), [1, 2, 3])
