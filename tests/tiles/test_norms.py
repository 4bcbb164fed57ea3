"""Norms of matrices on a GPU, residuals, backward errors, tests for NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hetero_la.numerics.triangles import complete_from_triangle
from hetero_la.tiles.kernels.gpu_libraries import norms
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite
from hetero_la.tiles.kernels.gpu_libraries.scaling import scale
from tests.support import DTYPES, random

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1), (1, 7), (9, 1), (33, 33), (300, 200), (200, 300), (1100, 1100)]


def arrays(a: np.ndarray) -> Iterator[Any]:
    """A matrix on the GPU in several layouts: by rows, by columns, parts, reversed."""
    import cupy

    there = cupy.asarray(a)
    yield there
    yield cupy.asfortranarray(there)
    frame = cupy.full((a.shape[0] + 3, a.shape[1] + 2), np.nan, a.dtype, order="F")
    frame[2:-1, 1:-1] = there
    yield frame[2:-1, 1:-1]
    frame = cupy.full((2 * a.shape[0], a.shape[1] + 5), np.nan, a.dtype)
    frame[::2, 4:-1] = there
    yield frame[::2, 4:-1]
    yield there[::-1, ::-1].copy()[::-1, ::-1]


def hermitian(a: np.ndarray) -> np.ndarray:
    """The Hermitian matrix whose lower triangle is that of `a`, but for imaginary diagonals."""
    below = np.tril(a, -1)
    return below + below.conj().T + np.diag(a.diagonal().real)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: str, shape: tuple[int, int]) -> None:
    a = random(*shape, dtype)
    expected = np.abs(a).sum(axis=0).max()
    whole = hermitian(a) if shape[0] == shape[1] else None
    for there in arrays(a):
        assert float(norms.norm1(there)) == pytest.approx(expected, rel=1e-5)
        assert float(norms.largest_modulus(there)) == pytest.approx(np.abs(a).max(), rel=1e-6)
        upper = float(norms.largest_of_upper(norms.by_columns(there)))
        assert upper == pytest.approx(np.abs(np.triu(a)).max(), rel=1e-6)
        if whole is not None:
            found = float(norms.hermitian_norm1(there))
            assert found == pytest.approx(np.abs(whole).sum(axis=0).max(), rel=1e-5)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("conjugate", [True, False])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_completed_triangles(dtype: str, n: int, conjugate: bool, lower: bool) -> None:
    import cupy

    a = random(n, n, dtype)
    half = a if lower else a.T
    expected = hermitian(half) if conjugate else np.tril(half) + np.tril(half, -1).T
    expected = expected if lower else expected.T
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    many = cupy.empty((2, 3, n, n + 1), dtype)[..., 1:]
    many[...] = cupy.asarray(a)
    for there in (*arrays(a), many, many[1].copy()):
        complete_from_triangle(there, lower=lower, conjugate=conjugate)
        assert np.array_equal(there.get(), np.broadcast_to(expected, there.shape))
    complete_from_triangle(cupy.empty((0, 0), dtype), lower=lower, conjugate=conjugate)
    stack = cupy.asarray(
        np.broadcast_to(a[:5, :5], (1500, *a[:5, :5].shape))
    )  # a grid's most: 1024
    complete_from_triangle(stack, lower=lower, conjugate=conjugate)
    assert (stack.get() == expected[:5, :5]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [*SHAPES, (5,), (3, 4, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_entry_that_is_not_finite(dtype: str, shape: tuple[int, ...], bad: float) -> None:
    import cupy

    a = np.full(shape, np.finfo(dtype).max, dtype)  # of which any two have an infinite sum
    given = arrays(a) if a.ndim == 2 else [cupy.asarray(a), cupy.asarray(a).T]
    for there in given:
        assert is_finite(there)
        places = {0, there.size // 2, there.size - 1}
        for place in places:
            index = np.unravel_index(place, there.shape)
            there[index] = complex(1, bad) if a.dtype.kind == "c" else bad
            assert not is_finite(there)
            there[index] = 1
    assert is_finite(cupy.ones(3, np.float16))
    assert not is_finite(cupy.array([1, np.nan], np.float16))
    assert is_finite(cupy.ones((2, 2), np.int8))
    assert is_finite(cupy.empty((0, 3)))


def test_norms_that_are_not_finite() -> None:
    import cupy

    a = cupy.ones((70, 50), order="F")
    a[3, 4] = np.inf
    assert float(norms.norm1(a)) == float(norms.norm1(a.T)) == np.inf
    a[60, 9] = np.nan
    assert np.isnan(float(norms.norm1(a)))
    assert np.isnan(float(norms.norm1(a.T)))
    assert np.isnan(float(norms.largest_modulus(a)))
    assert float(norms.largest_of_upper(a)) == np.inf  # of which the last rows are no part
    a[9, 9] = np.nan
    assert np.isnan(float(norms.largest_of_upper(a)))


@pytest.mark.parametrize("n", [1, 5, 33, 1000, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_residuals(dtype: str, n: int) -> None:
    import cupy

    a, limit = random(n, n, dtype), 20 * n * np.finfo(dtype).eps
    whole = hermitian(a)
    frame = cupy.zeros((n + 2, 11), dtype, order="F")
    for columns in (1, 5, 9):
        b, x = random(n, columns, dtype), random(n, columns, dtype)
        frame[1:-1, 1 : 1 + columns] = cupy.asarray(x)
        for there in arrays(a):
            for right in (
                cupy.asarray(x),
                cupy.asarray(x, order="F"),
                frame[1:-1, 1:][:, :columns],
            ):
                found = norms.residual(there, right, cupy.asarray(b)).get()
                assert np.abs(found - (b - a @ x)).max() < limit
                found = norms.hermitian_residual(there, right, cupy.asarray(b)).get()
                assert np.abs(found - (b - whole @ x)).max() < limit


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_residuals_with_what_their_rounding_is_measured_by(
    dtype: str, shape: tuple[int, int]
) -> None:
    import cupy

    a, (m, n), limit = random(*shape, dtype), shape, 20 * shape[1] * np.finfo(dtype).eps
    matrices = [(a, False)]
    if m == n:
        matrices.append((hermitian(a), True))
    for columns in (1, 2, 11):
        b, x = random(m, columns, dtype), random(n, columns, dtype, seed=1)
        right, given = cupy.asarray(x), cupy.asarray(b)
        for there in arrays(a):
            for matrix, half in matrices:
                left, moduli = norms.residual_and_moduli(there, right, given, hermitian=half)
                assert np.abs(left.get() - (b - matrix @ x)).max() < limit
                sizes = np.abs(matrix) @ np.abs(x) + np.abs(b)
                np.testing.assert_allclose(moduli.get(), sizes, rtol=limit)
                assert left.flags.f_contiguous
                assert (given == cupy.asarray(b)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_triangles(dtype: str, shape: tuple[int, int]) -> None:
    import cupy

    a, one = random(*shape, dtype), np.eye(*shape, dtype=dtype)
    for part, cut in (("whole", np.array), ("lower", np.tril), ("upper", np.triu)):
        half = cut(a)
        diagonals = {"as is": half * one, "real": (half * one).real, "ones": one, "zeros": 0 * one}
        for diagonal, there in diagonals.items():
            matrix = half - half * one + there
            for adjoint in (False, True):
                form, turned = norms.Form(part, diagonal, adjoint), matrix.conj().T  # type: ignore[arg-type]
                expected = turned if adjoint else matrix
                x = random(expected.shape[1], 4, dtype)
                for given in arrays(a):
                    found = norms.product(given, cupy.asarray(x), form).get()
                    limit = 20 * max(shape) * np.finfo(dtype).eps
                    assert np.abs(found - expected @ x).max() < limit


@pytest.mark.parametrize(("m", "n"), [(1, 1), (40, 40), (3000, 3000), (200, 600), (600, 200)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_errors(dtype: str, m: int, n: int) -> None:
    import cupy

    x, left = random(n, 4, dtype), random(m, 4, dtype)
    left[:, 2] *= 3
    x[:, 3] = left[:, 3] = 0  # has no error
    errors = np.abs(left).sum(axis=0) / np.maximum(np.abs(x).sum(axis=0), 1e-30) / 7
    there, residual = cupy.asarray(x), cupy.asarray(left, order="F")
    assert float(norms.backward_error(7.0, there, residual)) == pytest.approx(errors.max(), 1e-4)
    residual[m // 2, 1] = np.nan
    assert np.isnan(float(norms.backward_error(7.0, there, residual)))
    residual[m // 2, 1] = np.inf
    assert float(norms.backward_error(7.0, there, residual)) == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_have_random_signs(dtype: str) -> None:
    import cupy

    x = random(500, 500, dtype)
    found = norms.signed_weights(cupy.asarray(x, order="F")).get()[:, 0]
    np.testing.assert_allclose(np.abs(found), 1 / np.abs(x).sum(axis=0), rtol=1e-5)
    assert 180 < (found.real > 0).sum() < 320
    changes = (np.diff(np.sign(found.real)) != 0).sum()
    assert 180 < changes < 320


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1), (300, 700), (700, 300), (3000, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_moduli_of_rows_and_columns(dtype: str, shape: tuple[int, int], order: Any) -> None:
    import cupy

    a = np.array(random(*shape, dtype) * np.logspace(-20, 15, shape[1]), dtype, order=order)
    a[0] = 0
    moduli = np.maximum(abs(a.real), abs(a.imag))
    found = norms.largest_by_row_and_column(cupy.asarray(a))
    for axis, one in zip((1, 0), found, strict=True):
        np.testing.assert_allclose(one, moduli.max(axis=axis), rtol=1e-5)
    for bad in (np.nan, np.inf):
        a[-1, -1] = bad
        rows, columns = norms.largest_by_row_and_column(cupy.asarray(a))
        assert not np.isfinite(rows[-1])
        assert not np.isfinite(columns[-1])
        assert np.isfinite(rows[:-1]).all()
        assert np.isfinite(columns[:-1]).all()


@pytest.mark.parametrize("shape", [(1, 1), (300, 700), (700, 300), (3000, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_matrices_and_their_largest_moduli(dtype: str, shape: tuple[int, int]) -> None:
    import cupy

    a = random(*shape, dtype)
    rows, columns = (np.random.default_rng(n).integers(-20, 20, n) for n in shape)
    rows[0], columns[0] = 2000, -2000  # powers of two that are out of range
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        powers = rows[:, None] + columns
        expected = np.ldexp(a.real, powers).astype(a.dtype)
        if a.dtype.kind == "c":
            expected.imag = np.ldexp(a.imag, powers)
    lower = np.dtype({"d": "f", "D": "F"}.get(a.dtype.char, a.dtype.char))
    moduli = np.maximum(abs(expected.real), abs(expected.imag))
    for there in arrays(a):
        for out in (cupy.empty(shape, dtype), cupy.empty(shape, lower, order="F")):
            scale(there, rows, columns, out)
            with np.errstate(over="ignore", under="ignore"):
                np.testing.assert_array_equal(out.get(), expected.astype(out.dtype))
        found = norms.largest_by_row_and_column(there, (rows, columns))
        for axis, one in zip((1, 0), found, strict=True):
            largest = moduli.max(axis=axis)
            finite = np.isfinite(largest)
            np.testing.assert_allclose(one[finite], largest[finite], rtol=1e-5)
            assert not np.isfinite(one[~finite]).any()
