"""The kernels of QR on every device kind, on views inside larger arrays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg

from hetero_la.tiles.kernels.device import KernelOptions, Queue
from tests.support import covering, spread
from tests.tiles.kernels import DTYPES, LIMIT, OPTIONS, View, eps, fetch, gpu, norm, random, run

SHAPES = [
    (1, 1), (7, 1), (1, 7), (5, 3), (3, 5), (32, 32), (33, 33), (64, 100), (100, 64), (513, 33),
    (300, 129), (1100, 530), (4999, 70), (140_000, 36),
]  # fmt: skip


def run_geqrf(device, a, options=OPTIONS):
    w = min(a.shape)
    view, r, t = View(device, a), *(View(device, np.full((w, w), 9, a.dtype)) for _ in "RT")
    tau, method = device.empty((w,), a.dtype), device.empty((1,), np.int32)
    run(device, "geqrf", view, tau, r, t, method, options=options)
    assert fetch(device, method)[0] in (0, 1)
    return view.get(), fetch(device, tau), r.get(), t.get(), int(fetch(device, method)[0])


def assert_factors(a, factored, tau, r, t, method=0):
    """Each column on its own: what is far smaller than others must be right too."""
    (m, n), w = a.shape, min(a.shape)
    limit = LIMIT * m * eps(a.dtype)
    v = factored[:, :w]
    np.testing.assert_array_equal(np.triu(v), np.eye(m, w))
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    np.testing.assert_array_equal(np.tril(t, -1), 0)
    np.testing.assert_array_equal(t.diagonal(), tau)
    np.testing.assert_array_equal(r.diagonal().imag, 0)
    q = np.eye(m, w, dtype=a.dtype) - v @ (t @ v[:w].conj().T)
    assert norm(q.conj().T @ q - np.eye(w)) < limit
    product = q @ np.hstack([r, factored[:w, w:]])
    assert (np.abs(product - a).sum(axis=0) <= limit * np.abs(a).sum(axis=0)).all()
    assert factored.shape == (m, n)


def conditioned(rng, shape, dtype):
    """A matrix whose factors rounding changes little, even if it is square."""
    return random(rng, shape, dtype) + np.asfortranarray(
        np.eye(*shape, dtype=dtype) * 3 * np.sqrt(shape[0]).astype(dtype)
    )


@pytest.mark.parametrize(("shape", "dtype"), covering(SHAPES, DTYPES))
def test_geqrf_finds_lapack_s_reflectors(device, rng, dtype, shape):
    a = conditioned(rng, shape, dtype)
    assert_lapacks(a, *run_geqrf(device, a))


def assert_lapacks(a, factored, tau, r, t, method):
    """The very reflectors that LAPACK finds."""
    shape = a.shape
    assert_factors(a, factored, tau, r, t)
    packed, expected, _, _ = scipy.linalg.get_lapack_funcs("geqrf", (a,))(a)
    w, limit = len(tau), LIMIT * shape[0] * eps(a.dtype)
    np.testing.assert_allclose(tau, expected, rtol=0, atol=limit)
    np.testing.assert_allclose(r, np.triu(packed[:w, :w]), rtol=0, atol=limit * norm(a))
    np.testing.assert_allclose(np.tril(factored[:, :w], -1), np.tril(packed, -1)[:, :w], atol=limit)


def column_scales(rng, shape, dtype):
    top = 300 if np.finfo(dtype).maxexp > 200 else 34
    return np.asarray(10.0 ** rng.permutation(np.linspace(-top, top, shape[1])), dtype)


KINDS = {
    "random": random,
    "zero": lambda rng, shape, dtype: np.zeros(shape, dtype, "F"),
    "ones": lambda rng, shape, dtype: np.ones(shape, dtype, "F"),
    "identity": lambda rng, shape, dtype: np.eye(*shape, dtype=dtype, order="F"),
    "repeated columns": lambda rng, shape, dtype: random(rng, shape, dtype)[
        :, np.arange(shape[1]) % 5
    ],
    "zero columns": lambda rng, shape, dtype: (
        random(rng, shape, dtype) * (np.arange(shape[1]) % 5 > 0)
    ),
    "graded": lambda rng, shape, dtype: (
        random(rng, shape, dtype) * column_scales(rng, shape, dtype)
    ),
    "graded rows": lambda rng, shape, dtype: (
        random(rng, shape, dtype) * np.logspace(0, -25, shape[0], dtype=dtype)[:, None]
    ),
    "hilbert": lambda rng, shape, dtype: (
        1 / (1.0 + np.arange(shape[0])[:, None] + np.arange(shape[1]))
    ),
}


@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
@pytest.mark.parametrize("shape", [(90, 90), (700, 100), (2000, 70), (60, 90)])
def test_geqrf_is_accurate_in_every_column_of_every_kind(device, rng, dtype, kind, shape):
    a = np.asfortranarray(KINDS[kind](rng, shape, dtype), dtype)
    assert_factors(a, *run_geqrf(device, a))


BY_CHOLESKY = KernelOptions(qr_panel="cholesky")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "dtype"),
    covering(
        [
            (1, 1),
            (7, 1),
            (1, 7),
            (90, 32),
            (300, 33),
            (3, 5),
            (1100, 130),
            (5000, 530),
            (9000, 1100),
            (140_000, 36),
        ],
        DTYPES,
    ),
)
def test_cholesky_qr_finds_lapacks_reflectors(on_gpu, rng, dtype, shape):
    a = conditioned(rng, shape, dtype)
    found = run_geqrf(on_gpu, a, BY_CHOLESKY)
    assert found[-1] == (shape[0] > shape[1])  # the last reflector of a square one is none
    assert_lapacks(a, *found)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
@pytest.mark.parametrize("shape", [(90, 90), (700, 100), (2000, 70), (60, 90)])
def test_cholesky_qr_falls_back(on_gpu, rng, dtype, kind, shape):
    a = np.asfortranarray(KINDS[kind](rng, shape, dtype), dtype)
    found = run_geqrf(on_gpu, a, BY_CHOLESKY)
    assert_factors(a, *found)
    if kind in ("zero", "ones", "repeated columns", "zero columns", "hilbert"):
        assert found[-1] == 0
    elif kind in ("identity", "random", "graded") and shape[0] > 3 * shape[1]:
        assert found[-1] == 1


@pytest.mark.gpu
@pytest.mark.parametrize(("condition", "dtype"), covering([1, 5, 20, 1e2, 1e4, 1e9], DTYPES))
def test_cholesky_qr_loses_no_accuracy(on_gpu, rng, dtype, condition):
    w = 96
    q, _ = np.linalg.qr(random(rng, (3000, w), np.result_type(dtype, np.float64)))
    p, _ = np.linalg.qr(random(rng, (w, w), q.dtype))
    a = np.asfortranarray((q * np.logspace(0, -np.log10(condition), w)) @ p, dtype)
    found = run_geqrf(on_gpu, a, BY_CHOLESKY)
    assert_factors(a, *found)
    if condition <= 5 or condition >= 1e4:
        assert found[-1] == (condition <= 5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "method", "dtype"), spread(covering([(4000, 0), (150_000, 1)], DTYPES))
)
def test_the_panel_is_chosen_by_its_height(on_gpu, rng, dtype, rows, method):
    assert run_geqrf(on_gpu, random(rng, (rows, 24), dtype))[-1] == method


@pytest.mark.parametrize(
    ("ib", "columns", "dtype"), spread(covering([(1, 75), (7, 300), (16, 75), (24, 500)], DTYPES))
)
def test_geqrf_is_accurate_for_any_inner_blocking(device, rng, dtype, ib, columns):
    a = random(rng, (1500, columns), dtype)
    assert_factors(a, *run_geqrf(device, a, KernelOptions(ib=ib)))


@pytest.mark.parametrize(
    ("place", "bad", "dtype"), covering([(0, 0), (40, 50), (1499, 74)], [np.nan, np.inf], DTYPES)
)
def test_geqrf_of_what_is_not_finite_ends(device, rng, dtype, bad, place):
    a = random(rng, (1500, 75), dtype)
    a[place] = bad
    factored, _, r, _, _ = run_geqrf(device, a)
    assert np.isnan(factored).any() or np.isnan(r).any()


@pytest.mark.gpu
@pytest.mark.parametrize("ib", [0, -3, 33])
def test_geqrf_refuses_inner_blocking_beyond_a_warp(rng, ib):
    device = gpu()
    with device.activate(), pytest.raises(ValueError, match="ib must be in"):
        run_geqrf(device, random(rng, (90, 80), np.float64), KernelOptions(ib=ib))


@pytest.mark.gpu
def test_panels_of_two_threads_share_a_gpu(rng):
    gpu()
    a = random(rng, (60_000, 64), np.float64)  # takes all but a few multiprocessors

    def factor(_):
        device = gpu()
        with device.activate():
            panel, source = device.empty(a.shape, a.dtype), device.empty(a.shape, a.dtype)
            arrays = [panel, *(device.empty(s, a.dtype) for s in ((64,), (64, 64), (64, 64)))]
            arrays.append(device.empty((1,), np.int32))
            device.copy(source, a, Queue.COPY)
            device.wait(Queue.PANEL, device.record(Queue.COPY))
            for _ in range(20):
                device.copy(panel, source, Queue.PANEL)
                device.call("geqrf", Queue.PANEL, arrays, OPTIONS)
            return [fetch(device, x) for x in arrays]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(factor, range(2))
    assert_factors(a, *one)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("shape", "kernel", "dtype"),
    covering(
        [(1, 1, 1), (5, 3, 4), (200, 33, 90), (700, 128, 3), (600, 512, 2000)],
        ["larfb_c", "larfb_n"],
        DTYPES,
    ),
)
def test_larfb_applies_the_block_reflector(device, rng, dtype, kernel, shape):
    m, w, n = shape
    v, t, c = random(rng, (m, w + 3), dtype), random(rng, (w, w), dtype), random(rng, (m, n), dtype)
    t = np.asfortranarray(np.triu(t))
    view = View(device, c)
    run(device, kernel, View(device, v), View(device, t), view)
    v, op = v[:, :w], t.conj().T if kernel == "larfb_c" else t
    size = norm(v) * norm(op) * norm(v.conj().T) * norm(c) + norm(c)
    assert norm(view.get() - (c - v @ (op @ (v.conj().T @ c)))) < LIMIT * size * eps(dtype)


@pytest.mark.parametrize(
    ("shape", "kernel", "dtype"),
    covering(
        [(1, 1, 1), (5, 3, 4), (3, 3, 9), (700, 128, 3), (600, 512, 300)],
        ["gemqrt_c", "gemqrt_n"],
        DTYPES,
    ),
)
def test_gemqrt_applies_packed_reflectors(device, rng, dtype, kernel, shape):
    m, w, n = shape
    a, t, c = random(rng, (m, w + 3), dtype), random(rng, (w, w), dtype), random(rng, (m, n), dtype)
    t = np.asfortranarray(np.triu(t))
    packed, view = View(device, a), View(device, c)
    run(device, kernel, packed, View(device, t), view)
    np.testing.assert_array_equal(packed.get(), a)
    v = np.tril(a[:, :w], -1) + np.eye(m, w)
    op = t.conj().T if kernel == "gemqrt_c" else t
    size = norm(v) * norm(op) * norm(v.conj().T) * norm(c) + norm(c)
    assert norm(view.get() - (c - v @ (op @ (v.conj().T @ c)))) < LIMIT * size * eps(dtype)


@pytest.mark.parametrize(
    ("w", "shape", "dtype"), spread(covering([(1, (1, 1)), (5, (9, 7)), (300, (400, 300))], DTYPES))
)
def test_lacpy_writes_the_upper_triangle_alone(device, rng, dtype, w, shape):
    a, r = random(rng, shape, dtype), random(rng, (w, w), dtype)
    view = View(device, a)
    run(device, "lacpy", View(device, r), view)
    upper = np.triu_indices(w)
    a[:w, :w][upper] = r[upper]
    np.testing.assert_array_equal(view.get(), a)


EMPTY = {
    "geqrf": [(4, 0), (0, 0), (0, 0)],
    "larfb_c": [(6, 2), (2, 2), (6, 0)],
    "larfb_n": [(6, 0), (0, 0), (6, 4)],
    "lacpy": [(0, 0), (0, 5)],
}


@pytest.mark.parametrize("kernel", EMPTY)
def test_kernels_leave_empty_arrays_alone(device, kernel):
    views = [View(device, np.full(s, 3.0, order="F")) for s in EMPTY[kernel]]
    vectors = [(0, np.float64), (1, np.int32)] if kernel == "geqrf" else []
    tau, method = ([device.empty((n,), dtype)] for n, dtype in vectors) if vectors else ([], [])
    run(device, kernel, views[0], *tau, *views[1:], *method)
    for view in views:
        np.testing.assert_array_equal(view.get(), np.full(view.shape, 3.0))
