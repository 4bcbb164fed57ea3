"""The kernels of Cholesky and of its solves, on every device kind, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.kernels.device import KernelOptions
from tests.support import covering, spread
from tests.tiles.kernels import (
    DTYPES,
    LIMIT,
    View,
    eps,
    fetch,
    norm,
    random,
    run,
    vector,
)

ORDERS = [1, 5, 33, 61, 128, 129, 300, 512, 700, 1030]


def with_upper(low, fill=np.nan):
    """`low` with `fill` above the diagonal, where no kernel may look."""
    return np.where(np.tri(*low.shape, dtype=bool), low, fill).astype(low.dtype, order="F")


def positive(rng, order, dtype):
    a = random(rng, (order, order), dtype)
    a = a @ a.conj().T + order * np.eye(order)
    return np.asfortranarray(a, dtype)


def lower(rng, order, dtype):
    """A Cholesky factor."""
    return np.asfortranarray(np.linalg.cholesky(positive(rng, order, dtype)))


def spoil_imaginary(rng, a):
    """`a` with imaginary parts on its diagonal, which say nothing."""
    if a.dtype.kind == "c":
        a[np.diag_indices_from(a)] += 1j * rng.standard_normal(len(a))
    return a


def assert_upper_is_untouched(got, before):
    upper = ~np.tri(*got.shape, dtype=bool)
    np.testing.assert_array_equal(got[upper], before[upper])


@pytest.mark.parametrize(("order", "dtype"), covering(ORDERS, DTYPES))
def test_potrf_factors_the_lower_triangle_and_leaves_the_upper(device, rng, dtype, order):
    a = positive(rng, order, dtype)
    before = spoil_imaginary(rng, with_upper(a))
    view, info = View(device, before), vector(device, [99])
    run(device, "potrf", view, info)
    got = view.get()
    assert fetch(device, info)[0] == 0
    assert_upper_is_untouched(got, before)
    low = np.tril(got)
    assert (low.diagonal().imag == 0).all()
    assert norm(low @ low.conj().T - a) < LIMIT * order * norm(a) * eps(dtype)


@pytest.mark.parametrize(("order", "dtype"), covering([1, 40, 300, 700], DTYPES))
def test_potrf_of_what_is_not_positive_definite(device, rng, dtype, order):
    info = vector(device, [99])
    a = positive(rng, order, dtype)
    for minor in sorted({1, (order + 1) // 2, order}):
        negative, zero, unknown = (a.copy(order="F") for _ in range(3))
        i = minor - 1
        negative[i, i] -= 2 * a[i, i]
        zero[i], zero[:, i] = 0, 0
        unknown[i, i] = np.nan  # whatever comes of it, it must end
        for bad in (negative, zero, unknown):
            view = View(device, bad)
            run(device, "potrf", view, info)
            view.get()
            assert fetch(device, info)[0] == minor or bad is unknown
    run(device, "potrf", View(device, a), info)
    assert fetch(device, info)[0] == 0, "info is of the last call alone"


@pytest.mark.parametrize(("order", "dtype"), covering(ORDERS, DTYPES))
def test_trtri_n_inverts_the_lower_triangle_within_its_bound(device, rng, dtype, order):
    low = lower(rng, order, dtype)
    factor, inverse = View(device, with_upper(low)), View(device, np.full_like(low, 5))
    run(device, "trtri_n", factor, inverse)
    w = inverse.get()
    factor.get()
    assert norm(low @ w - np.eye(order)) < LIMIT * order * norm(low) * norm(w) * eps(dtype)
    np.testing.assert_array_equal(np.triu(w, 1), 0)

    size = float(norm(low)) * float(norm(w))
    for bound, useless in ((0.9 * size, True), (1.1 * size, False), (np.inf, False)):
        run(device, "trtri_n", factor, inverse, options=KernelOptions(inverse_bound=bound))
        assert np.isnan(inverse.get()[0, 0]) == useless


@pytest.mark.parametrize(("bad", "dtype"), covering([0, np.nan, np.inf], DTYPES))
def test_trtri_n_refuses_an_inverse_that_is_not_finite(device, rng, dtype, bad):
    low = lower(rng, 200, dtype)
    low[150, 150] = bad
    inverse = View(device, np.zeros_like(low))
    run(device, "trtri_n", View(device, low), inverse, options=KernelOptions(inverse_bound=np.inf))
    assert np.isnan(inverse.get()[0, 0])


SOLVES = [(1, 1), (5, 3), (3, 50), (61, 200), (300, 7), (257, 130), (512, 700), (700, 2000)]


@pytest.mark.parametrize(
    ("bound", "order", "others", "dtype"), spread(covering([1e4, 0.5], SOLVES, DTYPES))
)
def test_products_with_the_inverse(device, rng, dtype, order, others, bound):
    """Where the bound is 0.5 the inverse is useless, and substitution has to do it."""
    low = lower(rng, order, dtype)
    factor, inverse = View(device, with_upper(low)), View(device, np.zeros_like(low))
    run(device, "trtri_n", factor, inverse, options=KernelOptions(inverse_bound=bound))
    assert np.isnan(inverse.get()[0, 0]) == (bound < 1)

    b = random(rng, (order, others), dtype)
    right = View(device, b)
    run(device, "trmm_n", factor, inverse, right)
    x = right.get()
    assert norm(low @ x - b) < LIMIT * order * norm(low) * norm(x) * eps(dtype)

    b = random(rng, (others, order), dtype)
    left = View(device, b)
    run(device, "trmm_rc", factor, inverse, left)
    x = left.get()
    error = norm(x @ low.conj().T - b)
    assert error < LIMIT * order * norm(low.conj().T) * norm(x) * eps(dtype)
    factor.get()


@pytest.mark.parametrize("dtype", [pytest.param(np.float64, marks=pytest.mark.slow), np.complex128])
def test_trmm_rc_in_several_chunks_of_rows(device, rng, dtype):
    rows, order = 70_000 if device.kind == "gpu" else 7_000, 130  # on a CPU it is one call
    low, b = lower(rng, order, dtype), random(rng, (rows, order), dtype)
    factor, inverse = View(device, low), View(device, np.zeros_like(low))
    for bound in (1e4, 0.5):
        view = View(device, b)
        run(device, "trtri_n", factor, inverse, options=KernelOptions(inverse_bound=bound))
        run(device, "trmm_rc", factor, inverse, view)
        x = view.get()
        error = norm((x @ low.conj().T - b).T)
        assert error < LIMIT * order * norm(low.conj().T) * norm(x.T) * eps(dtype)


HERK = [
    (1, 1, 1), (5, 3, 2), (7, 7, 9), (64, 64, 0), (500, 33, 64), (900, 512, 128), (513, 513, 40),
    (1300, 1300, 100), (2000, 1500, 33), (3000, 2049, 20), (2816, 2816, 64),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), covering(HERK, DTYPES))
@pytest.mark.exhaustive
def test_herk_updates_the_lower_trapezoid_alone(device, rng, shape, dtype):
    rows, columns, k = shape
    p, c = random(rng, (rows, k), dtype), random(rng, (rows, columns), dtype)
    c[~np.tri(rows, columns, dtype=bool)] = np.nan
    view = View(device, c)
    run(device, "herk", View(device, p), view)
    got = view.get()
    assert_upper_is_untouched(got, c)
    right = p[:columns].conj().T
    expected = np.tril(c) - np.tril(p @ right)
    real = np.diag_indices(columns)  # herk may drop what is imaginary there
    got, expected = np.tril(got), np.tril(expected)
    got[real], expected[real] = got[real].real, expected[real].real
    limit = LIMIT * max(k, 1) * (norm(p) * norm(right) + norm(np.tril(c))) * eps(dtype)
    assert norm(got - expected) <= limit
    assert np.abs(got - expected).max() <= limit / 30


@pytest.mark.parametrize(
    ("shape", "dtype"), covering([(1, 1, 1), (5, 3, 4), (200, 90, 33), (700, 300, 128)], DTYPES)
)
def test_gemm_subtracts_products_with_transposes(device, rng, dtype, shape):
    m, n, k = shape
    a, b, c = (random(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    limit = LIMIT * k * (norm(a) * norm(b) + norm(c)) * eps(dtype)
    view = View(device, c)
    run(device, "gemm_nc", View(device, a), View(device, b.conj().T), view)
    assert norm(view.get() - (c - a @ b)) < limit
    beyond = random(rng, (4, n), dtype)
    view = View(device, np.vstack([c, beyond]))
    run(device, "gemm_cn", View(device, a.conj().T), View(device, b), view)
    assert norm(view.get()[:m] - (c - a @ b)) < limit
    np.testing.assert_array_equal(view.get()[m:], beyond)


@pytest.mark.parametrize(
    ("order", "columns", "dtype"), spread(covering([(1, 1), (5, 3), (61, 200), (300, 7)], DTYPES))
)
def test_trsm_solves_with_transposes_and_unit_diagonals(device, rng, dtype, order, columns):
    low, b = lower(rng, order, dtype), random(rng, (order, columns), dtype)
    up = np.asfortranarray(low.conj().T)
    beyond, zeros = random(rng, (4, columns), dtype), np.zeros((4, order), dtype)
    limit = LIMIT * order * norm(low) * norm(up) * eps(dtype)

    def solved(kernel, tile):
        """From B with rows beyond, and tiles with rows, and columns, beyond."""
        found = []
        for wider in (tile, np.vstack([tile, zeros]), np.hstack([tile, zeros.T])):
            view = View(device, np.asfortranarray(np.vstack([b, beyond])))
            run(device, kernel, View(device, np.asfortranarray(wider)), view)
            found.append(view.get()[:order])
            np.testing.assert_array_equal(view.get()[order:], beyond)
            np.testing.assert_array_equal(found[-1], found[0])
        return found[0]

    x = solved("trsm_lc", with_upper(low))
    assert norm(up @ x - b) < limit * norm(x)
    for kernel, tile in (("trsm_uc", with_upper(low).conj().T), ("trsm_l", with_upper(low))):
        x = solved(kernel, tile)
        assert norm(low @ x - b) < limit * norm(x)
    # Ones on the diagonal: what the tile holds there does not count.
    unit = low / low.diagonal()
    for kernel, triangle in (("trsm_l1", unit), ("trsm_lc1", unit.conj().T)):
        x = solved(kernel, with_upper(unit) + 5 * np.eye(order, dtype=dtype))
        assert norm(triangle @ x - b) < limit * norm(x) * norm(unit)


@pytest.mark.parametrize(("shape", "dtype"), covering([(1, 1), (5, 3), (3, 5), (700, 300)], DTYPES))
def test_laset(device, rng, dtype, shape):
    view = View(device, random(rng, shape, dtype))
    run(device, "laset_1", view)
    np.testing.assert_array_equal(view.get(), np.eye(*shape))
    run(device, "laset_0", view)
    np.testing.assert_array_equal(view.get(), np.zeros(shape))


EMPTY = {
    "trmm_n": [(6, 6), (6, 6), (6, 0)],
    "trmm_rc": [(6, 6), (6, 6), (0, 6)],
    "laset_0": [(0, 4)],
    "laset_1": [(0, 4)],
    "herk": [(6, 0), (6, 5)],
    "gemm_nc": [(6, 0), (5, 0), (6, 5)],
    "gemm_cn": [(0, 6), (0, 5), (6, 5)],
    "trsm_uc": [(6, 6), (6, 0)],
    "trsm_lc": [(6, 6), (6, 0)],
}


@pytest.mark.parametrize("kernel", EMPTY)
def test_kernels_leave_empty_arrays_alone(device, kernel):
    views = [View(device, np.full(s, 3.0)) for s in EMPTY[kernel]]
    run(device, kernel, *views)
    device.synchronize()
    for view in views:
        np.testing.assert_array_equal(view.get(), np.full(view.shape, 3.0))
