"""Every kernel on every device kind, on views inside larger arrays, against SciPy."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from hetero_la.tiles.arrays.transfer import (
    array_module,
    device_index,
    is_device_array,
    pinned_empty,
    to_host,
)
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.gpu import lu
from tests.support import covering, spread
from tests.tiles.kernels import (
    DTYPES,
    LIMIT,
    OPTIONS,
    View,
    eps,
    fetch,
    gpu,
    norm,
    random,
    run,
    swapped,
    vector,
)


def swaps(rng, w, rows):
    return [int(rng.integers(i, rows)) for i in range(w)]


def known_pivots(rng, m, n, dtype):
    """A matrix whose pivots rounding cannot change, on rows in random order."""
    k = min(m, n)
    low = np.tril(rng.uniform(-0.3, 0.3, (m, k)), -1) + np.eye(m, k)
    up = np.triu(random(rng, (k, n), dtype)) / np.sqrt(k)
    up[np.arange(k), np.arange(k)] = rng.uniform(1, 2, k)
    return np.asfortranarray((low @ up)[rng.permutation(m)], dtype)


def lapack_getrf(a):
    return scipy.linalg.get_lapack_funcs("getrf", (a,))(a)


def run_getrf(device, a, info, options=OPTIONS):
    view = View(device, a)
    ipiv = vector(device, np.full(min(a.shape), -1))
    run(device, "getrf", view, ipiv, info, options=options)
    return view.get(), fetch(device, ipiv), int(fetch(device, info)[0])


def assert_factors(a, lu, ipiv):
    m, n = a.shape
    k = min(m, n)
    low, up = np.tril(lu[:, :k], -1) + np.eye(m, k, dtype=a.dtype), np.triu(lu[:k])
    residual = norm(swapped(a, ipiv) - low @ up) / (max(n, 1) * norm(a) * eps(a.dtype))
    assert residual < LIMIT


SHAPES = [
    (1, 1), (5, 3), (3, 5), (31, 31), (64, 100), (100, 64), (513, 33), (300, 129), (1100, 530),
    (4999, 70), (70_000, 40),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), covering(SHAPES, DTYPES))
def test_getrf_finds_lapack_s_pivots_and_factors(device, rng, dtype, shape):
    info = vector(device, [99])
    a = known_pivots(rng, *shape, dtype)
    lu, ipiv, code = run_getrf(device, a, info)
    assert code == 0
    assert_factors(a, lu, ipiv)
    np.testing.assert_array_equal(ipiv, lapack_getrf(a)[1])

    for zero in sorted({0, min(shape) // 2, min(shape) - 1}):
        singular = a.copy(order="F")
        singular[:, zero] = 0
        lu, ipiv, code = run_getrf(device, singular, info)
        _, expected_ipiv, expected_code = lapack_getrf(singular)
        assert code == expected_code == zero + 1
        np.testing.assert_array_equal(ipiv, expected_ipiv)
        assert np.isfinite(lu).all()

    _, _, code = run_getrf(device, a, info)
    assert code == 0, "info is of the last call alone"


TALL = 70_000  # more rows than registers hold


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [0, 5, 11])
@pytest.mark.parametrize("dtype", DTYPES)
def test_getrf_with_room_for_few_columns_finds_them_too(on_gpu, rng, monkeypatch, dtype, columns):
    """As shared memory has it for panels of a million rows and more."""
    shape = lu.tall_shape

    def few(rows, blocks, elements, ib):
        room = columns * shape(rows, blocks, elements, ib).rows
        return shape(rows, blocks, min(elements, room), ib)

    monkeypatch.setattr(lu, "tall_shape", few)
    for rows in (TALL, 280_000):  # of which each thread has several
        test_getrf_finds_lapack_s_pivots_and_factors(on_gpu, rng, dtype, (rows, 18))
    test_getrf_takes_the_first_of_equal_pivots(on_gpu, rng, dtype, TALL)
    test_getrf_is_right_for_any_inner_blocking(on_gpu, rng, dtype, 3, TALL)


@pytest.mark.parametrize("rows", [67_585, 131_072, 500_001, 1_000_000, 4_200_000, 2**31 - 200])
@pytest.mark.parametrize("elements", [14_000, 29_000, 58_000])
@pytest.mark.parametrize("ib", [1, 5, 64])
def test_tall_leaves_fit_into_shared_memory_and_cover_the_panel(rows, elements, ib):
    blocks = 132
    shape = lu.tall_shape(rows, blocks, elements, ib)
    assert shape.rows * shape.columns <= elements
    assert shape.rows * blocks >= rows > shape.rows * (blocks - 1) - 32 * blocks
    assert shape.columns <= min(ib, lu.TALL_COLUMNS, shape.group)
    if shape.columns:
        leaves = -(-shape.group // shape.columns)
        assert (leaves - 1) * min(ib, elements // shape.rows) < shape.group, "no leaf too many"


@pytest.mark.parametrize("shape", [(8300, 70), (4100, 130), (17000, 33)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_getrf_on_several_threads_finds_them_too(rng, dtype, shape):
    """Tall panels are then factored by products, as LAPACK's getrf would use one thread."""
    with threadpool_limits(2, "blas"):
        assert blas_threads() == 2
        test_getrf_finds_lapack_s_pivots_and_factors(CpuDevice(), rng, dtype, shape)
        a = random(rng, shape, dtype)
        a[40, 20] = np.nan
        lu, _, _ = run_getrf(CpuDevice(), a, np.zeros(1, np.int32))
        assert np.isnan(lu).any()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ib", "rows", "dtype"), covering([1, 7, 16], [1500, TALL], DTYPES))
def test_getrf_is_right_for_any_inner_blocking(device, rng, dtype, ib, rows):
    info = vector(device, [99])
    a = random(rng, (rows, 75), dtype)
    lu, ipiv, code = run_getrf(device, a, info, KernelOptions(ib=ib))
    assert code == 0
    assert_factors(a, lu, ipiv)
    a[40, 50] = np.nan  # must end, and must not look regular
    lu, _, _ = run_getrf(device, a, info, KernelOptions(ib=ib))
    assert np.isnan(lu).any()


@pytest.mark.gpu
@pytest.mark.parametrize("ib", [0, -3, 65])
def test_getrf_refuses_inner_blocking_beyond_registers(rng, ib):
    device = gpu()
    with device.activate(), pytest.raises(ValueError, match="ib must be in"):
        run_getrf(
            device, random(rng, (90, 80), np.float64), vector(device, [0]), KernelOptions(ib=ib)
        )


@pytest.mark.parametrize(("rows", "dtype"), covering([3000, TALL], DTYPES))
def test_getrf_takes_the_first_of_equal_pivots(device, rng, dtype, rows):
    a = np.asfortranarray(rng.choice([-1, 1], (rows, 40)), dtype)
    info = vector(device, [99])
    lu, ipiv, _ = run_getrf(device, a, info)
    assert_factors(a, lu, ipiv)
    assert ipiv[0] == 0


@pytest.mark.parametrize(("w", "rows"), [(1, 1), (1, 9), (5, 5), (40, 47), (64, 5000), (700, 900)])
def test_netperm_moves_each_row_once_as_the_swaps_would(device, rng, w, rows):
    ipiv = swaps(rng, w, rows)
    net = View(device, np.zeros((2, 2 * w), np.int32, order="F"))
    run(device, "netperm", vector(device, ipiv), net)
    to, source = net.get()
    to, source = to[to >= 0], source[to >= 0]
    assert len(set(to.tolist())) == len(to)
    moved = np.arange(rows)
    moved[to] = np.arange(rows)[source]
    np.testing.assert_array_equal(moved, swapped(np.arange(rows), ipiv))


@pytest.mark.parametrize(
    ("w", "shape", "dtype"),
    spread(
        covering(
            [(1, (1, 1)), (7, (7, 4)), (33, (200, 3000)), (512, (900, 65)), (2300, (4000, 9))],
            DTYPES,
        )
    ),
)
def test_swap_exchanges_rows_as_the_pivots_say(device, rng, dtype, w, shape):
    ipiv, a = swaps(rng, w, shape[0]), random(rng, shape, dtype)
    pivots, view = vector(device, ipiv), View(device, a)
    net = device.empty((2, 2 * w), np.int32)
    run(device, "netperm", pivots, net)
    run(device, "swap", pivots, net, view)
    np.testing.assert_array_equal(view.get(), swapped(a, ipiv))


def unit_lower(rng, order, dtype):
    """Well-conditioned: L and a diagonal tile that holds it below a random upper half."""
    tile = random(rng, (order, order), dtype)
    tile = np.triu(tile) + np.tril(tile, -1) / max(order, 1)
    return np.tril(tile, -1) + np.eye(order, dtype=dtype), np.asfortranarray(tile, dtype)


def wilkinson(order, dtype):
    return np.asfortranarray(np.tril(np.full((order, order), -1), -1) + np.eye(order), dtype)


ORDERS = [1, 5, 32, 61, 256, 300, 1030]


@pytest.mark.parametrize(("order", "dtype"), covering(ORDERS, DTYPES))
def test_trtri_inverts_the_unit_lower_triangle_within_its_bound(device, rng, dtype, order):
    low, tile = unit_lower(rng, order, dtype)
    panel = View(device, np.vstack([tile, random(rng, (9, order), dtype)]))
    inverse = View(device, np.full((order, order), 5, dtype))
    run(device, "trtri", panel, inverse)
    w = inverse.get()
    panel.get()
    assert norm(low @ w - np.eye(order)) < LIMIT * order * norm(low) * norm(w) * eps(dtype)
    np.testing.assert_array_equal(np.triu(w), np.eye(order))

    run(device, "trtri", panel, inverse, options=KernelOptions(inverse_bound=0.5))
    assert np.isnan(inverse.get()[0, 0])


@pytest.mark.parametrize(
    ("order", "columns", "dtype"),
    spread(covering([(1, 1), (5, 3), (61, 200), (300, 7), (512, 700)], DTYPES)),
)
def test_trmm_solves_by_the_inverse(device, rng, dtype, order, columns):
    low, tile = unit_lower(rng, order, dtype)
    b = random(rng, (order, columns), dtype)
    inverse, right = View(device, np.zeros((order, order), dtype)), View(device, b)
    panel = View(device, tile)
    run(device, "trtri", panel, inverse)
    run(device, "trmm", panel, inverse, right)
    x = right.get()
    assert norm(low @ x - b) < LIMIT * order * norm(low) * norm(x) * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_trmm_substitutes_where_the_inverse_is_useless(device, rng, dtype):
    order, columns = 128, 37
    low = wilkinson(order, dtype)
    solution = np.asfortranarray(rng.integers(-3, 4, (order, columns)), dtype)
    b = low @ solution  # of small integers, so that substitution is exact
    inverse = View(device, np.zeros((order, order), dtype))
    panel, right = View(device, low), View(device, b)
    run(device, "trtri", panel, inverse)
    assert np.isnan(inverse.get()[0, 0])
    run(device, "trmm", panel, inverse, right)
    np.testing.assert_array_equal(right.get(), solution)


@pytest.mark.parametrize(
    ("shape", "dtype"), covering([(1, 1, 1), (5, 3, 4), (200, 90, 33), (700, 300, 128)], DTYPES)
)
def test_gemm_subtracts_the_product(device, rng, dtype, shape):
    m, n, k = shape
    a, b, c = (random(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    view = View(device, c)
    run(device, "gemm", View(device, a), View(device, b), view)
    error = norm(view.get() - (c - a @ b))
    assert error < LIMIT * k * (norm(a) * norm(b) + norm(c)) * eps(dtype)


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"), covering([(5, 3, [2, 2]), (90, 200, [16, 16, 7]), (61, 9, [8, 5])], DTYPES)
)
def test_gemm_block_subtracts_the_product_with_panels(device, rng, dtype, shape, adjacent):
    m, n, widths = shape
    k = sum(widths)
    a, b, c = (random(rng, s, dtype) for s in ((m, k), (k, n), (m, n)))
    cuts = np.cumsum([0, *widths])
    whole, view = View(device, a), View(device, c)
    columns = [slice(*cut) for cut in itertools.pairwise(cuts)]
    parts = [whole.array[:, j] if adjacent else View(device, a[:, j]).array for j in columns]
    run(device, "gemm_block", *parts, View(device, b), view)
    error = norm(view.get() - (c - a @ b))
    assert error < LIMIT * k * (norm(a) * norm(b) + norm(c)) * eps(dtype)


@pytest.mark.parametrize(
    ("order", "columns", "dtype"), spread(covering([(1, 1), (5, 3), (61, 200), (300, 7)], DTYPES))
)
def test_trsm_solves_with_the_upper_triangle(device, rng, dtype, order, columns):
    tile = random(rng, (order, order), dtype) + 2 * order * np.eye(order, dtype=dtype)
    b, up = random(rng, (order, columns), dtype), np.triu(tile)
    view = View(device, b)
    run(device, "trsm", View(device, tile), view)
    x = view.get()
    assert norm(up @ x - b) < LIMIT * order * norm(up) * norm(x) * eps(dtype)


@pytest.mark.parametrize(("w", "rows"), [(1, 1), (3, 40), (64, 64), (512, 5000)])
def test_compose_makes_one_permutation_of_swaps_and_what_follows(device, rng, w, rows):
    ipiv = swaps(rng, w, rows)
    pivots, perm = vector(device, ipiv), vector(device, np.full(rows, -1))
    run(device, "compose", pivots, perm)
    np.testing.assert_array_equal(fetch(device, perm), swapped(np.arange(rows), ipiv))
    if rows > w:
        after = rng.permutation(rows - w).astype(np.int32)
        run(device, "compose", pivots, vector(device, after), perm)
        expected = swapped(np.arange(rows), ipiv)
        expected[w:] = expected[w:][after]
        np.testing.assert_array_equal(fetch(device, perm), expected)


@pytest.mark.parametrize(
    ("shape", "moved", "dtype"),
    spread(covering([((1, 1), 1), ((50, 7), 50), ((50, 7), 31), ((9000, 500), 8001)], DTYPES)),
)
def test_laswp_permutes_the_last_rows(device, rng, dtype, shape, moved):
    a, perm = random(rng, shape, dtype), rng.permutation(moved).astype(np.int32)
    view = View(device, a)
    run(device, "laswp", vector(device, perm), view)
    expected = a.copy()
    expected[shape[0] - moved :] = a[shape[0] - moved :][perm]
    np.testing.assert_array_equal(view.get(), expected)


EMPTY = {
    "getrf": [(0, 3), 0, 1],
    "trtri": [(5, 0), (0, 0)],
    "swap": [4, (2, 8), (9, 0)],
    "trmm": [(6, 6), (6, 6), (6, 0)],
    "gemm": [(6, 0), (0, 5), (6, 5)],
    "trsm": [(6, 6), (6, 0)],
    "compose": [0, 0],
    "laswp": [0, (0, 4)],
}


@pytest.mark.parametrize("kernel", EMPTY)
def test_kernels_leave_empty_arrays_alone(device, kernel):
    arrays = [
        vector(device, np.zeros(s)) if isinstance(s, int) else View(device, np.full(s, 3.0))
        for s in EMPTY[kernel]
    ]
    run(device, kernel, *arrays)
    device.synchronize()
    for a in arrays:
        if isinstance(a, View):
            np.testing.assert_array_equal(a.get(), np.full(a.shape, 3.0))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    covering([(0,), (0, 4), (4, 0), (1, 1), (1, 50), (300, 40)], [*DTYPES, np.int32]),
)
def test_copies_by_pinned_memory_keep_every_value(device, rng, dtype, shape):
    a = np.asfortranarray(rng.integers(0, 100, shape), dtype)
    pinned = pinned_empty(shape, dtype)
    assert pinned.flags.f_contiguous
    pinned[...] = a
    one, two = device.empty(shape, dtype), device.empty(shape, dtype)
    device.copy(one, pinned, Queue.COPY)
    device.wait(Queue.UPDATE, device.record(Queue.COPY))
    device.copy(two, one, Queue.UPDATE)
    device.wait(Queue.PANEL, device.record(Queue.UPDATE))
    np.testing.assert_array_equal(fetch(device, two), a)
    if a.ndim == 2:
        view, back = View(device, np.zeros_like(a)), np.zeros((shape[0] + 2, shape[1]), dtype, "F")
        device.copy(view.array, a, Queue.PANEL)
        device.copy(back[1:-1], view.array, Queue.PANEL)
        device.synchronize()
        np.testing.assert_array_equal(back[1:-1], a)


def test_arrays_of_the_device(device):
    a = device.empty((3, 2), np.float64)
    on_gpu = device.kind == "gpu"
    assert is_device_array(a) == on_gpu
    assert device_index(a) == (0 if on_gpu else None)
    assert array_module(a).__name__ == ("cupy" if on_gpu else "numpy")
    assert isinstance(to_host(a), np.ndarray)
    assert to_host(a).flags.f_contiguous
    assert device.free_bytes() > 0


@pytest.mark.gpu
def test_gpu_copy_refuses_what_it_cannot_do():
    device = gpu()
    with device.activate():
        a = device.empty((4, 5), np.float64)
        with pytest.raises(ValueError, match="cannot copy"):
            device.copy(a, np.zeros((4, 4)), Queue.COPY)
        with pytest.raises(ValueError, match="cannot copy"):
            device.copy(a, np.zeros((4, 5), np.float32), Queue.COPY)
        with pytest.raises(ValueError, match="column-major"):
            device.copy(a, np.zeros((4, 5)), Queue.COPY)


@pytest.mark.gpu
def test_activate_restores_device_and_stream():
    device = gpu()
    import cupy

    mine = cupy.cuda.Stream(non_blocking=True)
    mine.use()
    try:
        with device.activate():
            device.call(
                "gemm", Queue.UPDATE, [device.empty((8, 8), np.float64) for _ in "ABC"], OPTIONS
            )
            device.synchronize()
        assert cupy.cuda.get_current_stream() == mine
    finally:
        cupy.cuda.Stream.null.use()


@pytest.mark.gpu
def test_activate_waits_for_the_callers_stream():
    device = gpu()
    import cupy

    a = cupy.ones((6000, 6000), order="F")
    for _ in range(20):
        a = cupy.asfortranarray(a @ a / 6000)
    with device.activate():
        device.copy(out := np.empty(a.shape, order="F"), a, Queue.COPY)
        device.synchronize()
    np.testing.assert_allclose(out, 1)


@pytest.mark.gpu
def test_panels_of_two_threads_share_a_gpu(rng):
    gpu()
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    a = random(rng, (60_000, 64), np.float64)  # takes all but a few multiprocessors

    def factor(_):
        device = GpuDevice(0)
        with device.activate():
            target, source = device.empty(a.shape, a.dtype), device.empty(a.shape, a.dtype)
            ipiv, info = device.empty((64,), np.int32), device.empty((1,), np.int32)
            device.copy(source, a, Queue.COPY)
            device.wait(Queue.PANEL, device.record(Queue.COPY))
            for _ in range(20):
                device.copy(target, source, Queue.PANEL)
                device.call("getrf", Queue.PANEL, [target, ipiv, info], OPTIONS)
            return fetch(device, target), fetch(device, ipiv)

    with ThreadPoolExecutor(2) as pool:
        (lu, ipiv), (other_lu, other_ipiv) = pool.map(factor, range(2))
    assert_factors(a, lu, ipiv)
    np.testing.assert_array_equal(ipiv, other_ipiv)
    np.testing.assert_array_equal(lu, other_lu)


def test_device_that_is_not_there():
    from hetero_la.tiles.arrays.errors import DeviceUnavailableError
    from hetero_la.tiles.arrays.transfer import gpu_count
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    with pytest.raises(DeviceUnavailableError, match="no GPU"):
        GpuDevice(gpu_count())
