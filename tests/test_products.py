"""Products of operands split into parts, and complex ones by 3M: options, and factors by GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero_la import Options, cho_factor, lu_factor, plan, qr, solve
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.testing.kinds import KINDS
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio
from hetero_la.tiles.kernels.device import KernelOptions
from tests.support import cholesky_ratio, host, orthogonality_ratio, positive, qr_ratio, random

CASES = [("split", "float32"), ("split", "complex64"), ("3m", "complex64"), ("3m", "complex128")]
NB = 64
#: Times the error ratio of cuBLAS's own products that other products may have.
WORSE = 4.0


@pytest.mark.parametrize(
    ("products", "dtype"),
    [("split", "float64"), ("split", "complex128"), ("3m", "float32"), ("3m", "float64")],
)
def test_products_are_for_some_types(products: str, dtype: str) -> None:
    known = {"split": "float32 and complex64", "3m": "complex64 and complex128"}[products]
    with pytest.raises(ValueError, match=f"^products='{products}' is for {known}, not {dtype}$"):
        lu_factor(np.eye(3, dtype=dtype), products=products)


@pytest.mark.parametrize(("products", "dtype"), CASES)
def test_cpus_compute_natively(products: str, dtype: str) -> None:
    a = random(40, 40, dtype)
    packed, _ = lu_factor(a, nb=16)
    assert np.array_equal(lu_factor(a, nb=16, products=products)[0], packed)
    assert solve(a, a[:, :2], nb=16, products=products).dtype == a.dtype


def test_the_plan_counts_the_memory_of_parts() -> None:
    workers = [WorkerInfo("gpu0", "gpu", "inproc://0", device=0)]
    native, split = (
        plan("lu", (4000, 4000), dtype="float32", workers=workers, nb=256, products=kind)
        for kind in ("native", "split")
    )
    parts = split.bytes_needed()[0] - native.bytes_needed()[0]
    assert parts >= 2 * 4 * 3 * 256 * (4000 + 4000)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_predictions_know_them(routine: str, dtype: str) -> None:
    workers = [WorkerInfo("gpu0", "gpu", "inproc://0", device=0)]
    native, split = (
        plan(routine, (16384, 16384), dtype=dtype, workers=workers, nb=512, products=kind)
        for kind in ("native", "split")
    )
    assert 1.1 < native.predicted_seconds / split.predicted_seconds < 3.5
    assert "products:" in split.explain()
    assert "products:" not in native.explain()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy, with products of any size computed as the options say."""
    cupy = pytest.importorskip("cupy")
    from hetero_la.tiles.kernels.gpu import products

    monkeypatch.setattr(products, "_LARGE", 0)
    monkeypatch.setattr(products, "_NARROWEST", 1)
    monkeypatch.setattr(products, "PARTS_BYTES", 2**16)
    return cupy


@pytest.mark.gpu
@pytest.mark.parametrize("trans", ["nn", "nc", "cn", "cc"])
@pytest.mark.parametrize(("products", "dtype"), CASES)
def test_products_are_numpy_s(always: Any, products: Any, dtype: str, trans: str) -> None:
    from hetero_la.tiles.kernels.device import Queue
    from hetero_la.tiles.kernels.gpu.device import GpuDevice
    from hetero_la.tiles.kernels.gpu.products import multiply
    from hetero_la.tiles.kernels.gpu.queue import block

    m, n, k = 77, 203, 45
    a = random(m, k, dtype) if trans[0] == "n" else random(k, m, dtype)
    b = random(k, n, dtype, seed=1) if trans[1] == "n" else random(n, k, dtype, seed=1)
    c = random(m, n, dtype, seed=2)
    left, right = (x if t == "n" else x.conj().T for x, t in zip((a, b), trans, strict=True))
    wide = np.complex128 if c.dtype.kind == "c" else np.float64
    expected = c.astype(wide) - left.astype(wide) @ right.astype(wide)
    device = GpuDevice(0)
    with device.activate():
        on_device = [always.asfortranarray(always.asarray(x)) for x in (a, b, c)]
        always.cuda.Device().synchronize()
        q = device._queues[Queue.UPDATE]
        q.stream.use()
        A, B, C = map(block, on_device)
        multiply(q, -1, A, B, 1, C, (m, n, k), KernelOptions(products=products), trans)
        device.synchronize()
    error = np.abs(host(on_device[2]) - expected).max()
    assert error <= 8 * k**0.5 * np.finfo(dtype).eps * np.abs(expected).max()


@pytest.mark.gpu
@pytest.mark.slow
def test_products_of_a_batch_may_be_far_apart() -> None:
    cupy = pytest.importorskip("cupy")
    from hetero_la.tiles.kernels.device import Queue
    from hetero_la.tiles.kernels.gpu.device import GpuDevice
    from hetero_la.tiles.kernels.gpu.products import product
    from hetero_la.tiles.kernels.gpu.queue import block

    size, count, k, rows = 256, 254, 512, 65536  # the diagonal blocks of Cholesky of order 65536
    order = count * size
    device = GpuDevice(0)
    with device.activate():
        c = cupy.zeros((rows, order), "float32", order="F")
        p = cupy.random.default_rng(0).standard_normal((k, order), dtype="float32").T
        cupy.cuda.Device().synchronize()
        q = device._queues[Queue.UPDATE]
        q.stream.use()
        whole = product(
            q, block(p), block(p), (order, order, k), KernelOptions(products="split"), "nc"
        )
        whole.add(-1, block(c), (size, size), step=size, count=count)
        device.synchronize()
        assert whole.kind == "split"
        for first in range(0, order, size):
            own = p[first : first + size]
            error = abs(c[first : first + size, first : first + size] + own @ own.T).max()
            assert error < 1e-5 * k  # products of random numbers with a variance of 1


def _ratios(xp: Any, a: np.ndarray, definite: np.ndarray, products: str) -> list[float]:
    """Error ratios of LU, Cholesky and QR."""
    how: dict[str, Any] = {"nb": NB, "products": products}
    packed, piv = (host(part) for part in lu_factor(xp.asarray(a), **how))
    lower = np.tril(host(cho_factor(xp.asarray(definite), lower=True, **how)[0]))
    q, r = host(*qr(xp.asarray(a), mode="economic", **how))
    return [
        lu_ratio(a, packed, piv), cholesky_ratio(definite, lower), qr_ratio(a, q, r),
        orthogonality_ratio(q),
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("products", "dtype"), CASES)
def test_error_ratios_are_near_those_of_native_products(
    always: Any, products: str, dtype: str
) -> None:
    a, definite = random(601, 601, dtype), positive(601, dtype)
    native, other = (_ratios(always, a, definite, kind) for kind in ("native", products))
    assert max(other) < RATIO_LIMIT
    for mine, theirs in zip(other, native, strict=True):
        assert mine <= WORSE * max(theirs, 0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("products", "dtype"), CASES)
def test_every_kind_is_factored(always: Any, products: str, dtype: str, kind: str) -> None:
    a = generate(kind, 300, 300, dtype=dtype)
    if not np.isfinite(a).all():
        return
    packed, piv = lu_factor(always.asarray(a), nb=NB, products=products)
    assert lu_ratio(a, host(packed), host(piv)) < RATIO_LIMIT
    q, r = host(*qr(always.asarray(a), mode="economic", nb=NB, products=products))
    assert qr_ratio(a, q, r) < RATIO_LIMIT
    assert orthogonality_ratio(q) < RATIO_LIMIT


@pytest.mark.gpu
def test_small_products_stay_native(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.asarray(random(300, 300, "float32"))
    native, split = (lu_factor(a, nb=NB, products=kind)[0] for kind in ("native", "split"))
    assert (native == split).all()


def test_the_options_know_them() -> None:
    assert Options(products="split").kernel == KernelOptions(products="split")
