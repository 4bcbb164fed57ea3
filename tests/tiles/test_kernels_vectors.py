"""The kernels on few vectors that follow a factorization, on every device kind, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import VECTOR_FORMS
from tests.support import covering
from tests.tiles.kernels import DTYPES, LIMIT, View, eps, fetch, norm, random, run, vector


def array(device, values):
    """A column-major copy on the device."""
    there = device.empty(values.shape, values.dtype)
    device.copy(there, np.asfortranarray(values), Queue.PANEL)
    device.synchronize()
    return there


def empty(device, shape, dtype):
    return array(device, np.full(shape, 77, dtype))


def solve_by_columns(device, kernel, a, v, nb):
    """Solve with the triangle of `a` that the kernel reads, column by column of tiles."""
    form, n = VECTOR_FORMS[kernel], len(a)
    starts = list(range(0, n, nb))
    if (form.triangle == "l") == (form.trans == "c"):
        starts.reverse()
    there = array(device, v)
    for start in starts:
        stop = min(start + nb, n)
        rows = slice(start, n) if form.triangle == "l" else slice(0, stop)
        part, after = View(device, a[rows, start:stop]), empty(device, v.shape, v.dtype)
        run(device, kernel, part, there, after)
        there = after
        part.get()
    return fetch(device, there)


@pytest.mark.parametrize("kernel", VECTOR_FORMS)
@pytest.mark.parametrize(("n", "nrhs", "dtype"), covering([1, 24, 70], [1, 3], DTYPES))
def test_columns_solve_with_a_triangle(device, rng, kernel, n, nrhs, dtype):
    form = VECTOR_FORMS[kernel]
    a = random(rng, (n, n), dtype) / n + 2 * np.eye(n, dtype=dtype)
    t = np.tril(a) if form.triangle == "l" else np.triu(a)
    if form.unit:
        np.fill_diagonal(t, 1)
    t = t.conj().T if form.trans == "c" else t
    v = random(rng, (n, nrhs), dtype)
    x = solve_by_columns(device, kernel, a, v, 24)
    assert norm(t @ x - v) < LIMIT * n * eps(dtype) * norm(t) * norm(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros(device, rng, dtype):
    a, v = random(rng, (30, 10), dtype), np.zeros((30, 2), dtype)
    x = empty(device, v.shape, dtype)
    run(device, "trsv_l", View(device, a), array(device, v), x)
    assert not fetch(device, x).any()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (700, 120)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_moduli_and_their_largest(device, rng, shape, dtype):
    a = random(rng, shape, dtype)
    columns, both = empty(device, shape[1:], float), empty(device, shape[:1], float)
    largest = empty(device, (1,), float)
    run(device, "sums", View(device, a), columns)
    run(device, "sums_h", View(device, a), both)
    run(device, "largest", columns, array(device, np.array([0.5])), largest)
    moduli = np.abs(a).astype(float)
    found = fetch(device, columns)
    np.testing.assert_allclose(found, moduli.sum(axis=0), rtol=1e-6)
    assert fetch(device, largest)[0] == max(found.max(), 0.5)
    expected = np.tril(moduli, -1).sum(axis=1)
    expected[: shape[1]] += np.tril(moduli).sum(axis=0)
    np.testing.assert_allclose(fetch(device, both), expected, rtol=1e-6)
    run(device, "largest_h", both, found_h := array(device, np.arange(3.0)), largest)
    expected[-3:] += fetch(device, found_h)[-len(expected) :]
    assert fetch(device, largest)[0] == pytest.approx(expected.max(), rel=1e-6)


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_a_hermitian_matrix(device, rng, n, dtype):
    given, x = random(rng, (n, n), dtype), random(rng, (n, 3), dtype)
    a = np.tril(given, -1)
    a = a + a.conj().T + np.diag(given.diagonal().real)
    given[np.triu_indices(n, 1)] = np.nan
    parts = []
    for start in range(0, n, 16):
        stop = min(start + 16, n)
        p = empty(device, x[start:].shape, dtype)
        run(
            device, "product_h", View(device, given[start:, start:stop]), View(device, x[start:]), p
        )
        parts.append(p)
    error, r = empty(device, (1,), float), empty(device, x.shape, dtype)
    b, size = array(device, a @ x + 0.25), array(device, np.array([norm(a)]))
    run(device, "residual", *parts, b, View(device, x), size, r, error)
    np.testing.assert_allclose(fetch(device, r), np.full(x.shape, 0.25), rtol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_gathered_taken_and_added(device, rng, dtype):
    b, n = random(rng, (40, 3), dtype), 40
    perm, v, plain = rng.permutation(n), empty(device, (n, 5), dtype), empty(device, (n, 3), dtype)
    run(device, "gather", View(device, b), vector(device, perm), v)
    run(device, "gather", View(device, b), plain)
    found = fetch(device, v)
    np.testing.assert_array_equal(found[:, :3], b[perm])
    np.testing.assert_array_equal(fetch(device, plain), b)
    row = np.arange(n)
    growing = (-1.0) ** row * (1 + row / (n - 1)) * 2 / (3 * n)
    np.testing.assert_allclose(found[:, 3:], np.stack([np.full(n, 1 / n), growing], 1), rtol=1e-6)
    x, copied = View(device, b), empty(device, b.shape, dtype)
    run(device, "axpy", v, x)
    np.testing.assert_allclose(x.get(), b + b[perm], rtol=1e-6)
    run(device, "take", v, x)
    np.testing.assert_array_equal(x.get(), b[perm])
    diagonal = empty(device, (3,), dtype)
    run(device, "diagonal", x, diagonal)
    np.testing.assert_array_equal(fetch(device, diagonal), b[perm].diagonal())
    run(device, "copy", x, copied)
    np.testing.assert_array_equal(fetch(device, copied), b[perm])


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_and_the_norm_of_an_inverse(device, rng, dtype):
    v, z = random(rng, (40, 5), dtype), random(rng, (40, 2), dtype)
    v[3, 4] = 0
    found, size = empty(device, z.shape, dtype), empty(device, (1,), float)
    run(device, "signs", array(device, v), found)
    y = v[:, 3:]
    expected = np.where(y == 0, 1, y / np.where(y == 0, 1, np.abs(y)))
    np.testing.assert_allclose(fetch(device, found), expected, rtol=1e-5)
    run(device, "units", array(device, z), found)
    assert (fetch(device, found).real.argmax(axis=0) == np.abs(z).argmax(axis=0)).all()
    assert (np.abs(fetch(device, found)).sum(axis=0) == 1).all()
    for factors in ((1, 1), (1000, 1), (1, 1000)):
        parts = [(factor * z).astype(dtype) for factor in factors]
        run(device, "invnorm", *(array(device, part) for part in (v, *parts)), size)
        expected = max(norm(y), np.abs(parts[0]).max(), norm(parts[1]))
        assert fetch(device, size)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_that_is_small_enough_becomes_zero(device, rng, dtype):
    a, x = random(rng, (30, 30), dtype), random(rng, (30, 2), dtype)
    parts = [empty(device, x.shape, dtype) for _ in range(2)]
    for j, p in enumerate(parts):
        some = slice(15 * j, 15 * j + 15)
        run(device, "product", View(device, a[:, some]), View(device, x[some]), p)
        np.testing.assert_allclose(fetch(device, p), -a[:, some] @ x[some], atol=1e-4)
    size, r, error = array(device, np.array([norm(a)])), empty(device, x.shape, dtype), None
    for off in (0.0, 0.25, np.nan):
        b = a @ x
        b[7, 1] += off
        error = empty(device, (1,), float)
        run(device, "residual", *parts, array(device, b), View(device, x), size, r, error)
        expected = abs(off) / (norm(a) * np.abs(x[:, 1]).sum())
        np.testing.assert_allclose(fetch(device, error), expected, rtol=1e-2, atol=2 * eps(dtype))
        left = fetch(device, r)
        assert left[7, 1] == pytest.approx(0.25, rel=1e-3) if off == 0.25 else not left.any()
