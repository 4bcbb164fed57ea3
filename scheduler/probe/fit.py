"""Fit of a `DeviceModel` to probes of a device."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.scheduler.machine.device import CORE, H200, Chain, DeviceModel
from hetero_la.scheduler.probe.device_probe import Probe, ProbeSizes
from hetero_la.tiles.kernels.device import Array, Queue
from hetero_la.tiles.kernels.gpu_libraries import cusolver

#: Of cuSOLVER's factorizations: operations over the cube of the order, and orders that are timed;
#: LU of up to 1024 rows is ours.
_LIBRARY = {"lu": (2 / 3, 2048, 4096), "cholesky": (1 / 3, 512, 4096), "qr": (4 / 3, 512, 4096)}


def fit_device(probe: Probe) -> DeviceModel:
    """Run all probes, and fit a model to them; figures that no probe yields stay nominal."""
    tiny = [probe.array(1, 1) for _ in range(3)]
    if probe.kind == "gpu":
        # A tiny kernel runs within the time of its launch, so its fixed cost stays nominal.
        model = replace(H200, launch_seconds=enqueue_seconds(probe, "gemm", *tiny))
    else:
        call = probe.kernel("gemm", *tiny, repeats=50)
        model = replace(CORE, call_seconds=call, by_reference=probe.device.by_reference)
    model = replace(model, dtype=probe.dtype.name)
    for fit in (_fit_gemm, _fit_moves, _fit_triangles, _fit_panel):
        model = fit(probe, probe.sizes, model)
    return model


def enqueue_seconds(probe: Probe, kind: str, *arrays: Array) -> float:
    """Return the time of the calling thread to enqueue a kernel."""
    samples = []
    for _ in range(30):
        start = time.perf_counter()
        probe.call(kind, *arrays)
        samples.append(time.perf_counter() - start)
        probe.device.synchronize()
    return statistics.median(samples[10:])  # the first calls of a process take twice as long


def enqueue_column(probe: Probe, model: DeviceModel, kind: str, arrays: Sequence[Array]) -> float:
    """Return the time to enqueue one column of a panel."""
    seconds = enqueue_seconds(probe, kind, *arrays) - model.launch_seconds
    return max(seconds, 0.0) / arrays[0].shape[1]


def _fit_gemm(probe: Probe, sizes: ProbeSizes, model: DeviceModel) -> DeviceModel:
    edge, narrow, (inner, short) = sizes.edge, sizes.narrow, sizes.inner
    a, b, c = probe.array(edge, inner), probe.array(inner, edge), probe.array(edge, edge)

    def product(n: int, k: int) -> float:
        return probe.excess(model, "gemm", a[:, :k], b[:k, :n], c[:, :n])

    full = product(edge, inner)
    inner_half = _half_size(product(edge, short) / full, inner, short)
    half = _half_size(product(narrow, inner) / full, edge, narrow)
    rate = 2 * (edge + half) ** 2 * (inner + inner_half) / full
    return replace(model, gemm_rate=rate, gemm_half=half, gemm_inner_half=inner_half)


def _fit_moves(probe: Probe, sizes: ProbeSizes, model: DeviceModel) -> DeviceModel:
    rows, columns, width = sizes.rows, sizes.columns, sizes.panel[2]
    a, b = probe.array(rows, columns), probe.array(rows, columns)
    pivots = np.arange(width) + probe.rng.integers(0, rows - width, width)
    ipiv, perm = probe.integers(pivots), probe.integers(probe.rng.permutation(rows))
    net = probe.integers(np.zeros((2, 2 * width)))
    copy = probe.seconds(lambda: probe.device.copy(b, a, Queue.PANEL), sizes.repeats)
    netperm = probe.excess(model, "netperm", ipiv, net)
    swap = probe.excess(model, "swap", ipiv, net, a)
    laswp = probe.excess(model, "laswp", perm, a)
    return replace(
        model, bandwidth=a.nbytes / copy, index_seconds=netperm / width,
        swap_seconds=swap / (2 * width * columns), gather_seconds=laswp / (rows * columns),
    )  # fmt: skip


def _fit_triangles(probe: Probe, sizes: ProbeSizes, model: DeviceModel) -> DeviceModel:
    low, high = sizes.orders
    triangle, b = probe.array(high, high, 1.0), probe.array(high, sizes.columns)
    at_full_rate = high**2 * sizes.columns / model.gemm_rate
    ratio = probe.excess(model, "trsm", triangle, b) / at_full_rate
    model = replace(model, solve_half=high * max(ratio - 1, 0.0))

    def rest(order: int) -> float:
        inverse = probe.device.empty((order, order), probe.dtype)
        explained = model.solve_seconds(order, order**3 / 3)
        return probe.excess(model, "trtri", triangle[:order, :order], inverse) - explained

    return replace(model, inverse=_fit_chain((low, low, rest(low)), (high, high, rest(high))))


def _fit_panel(probe: Probe, sizes: ProbeSizes, model: DeviceModel) -> DeviceModel:
    short, tall, width = sizes.panel
    ipiv, info = probe.integers(np.zeros(width)), probe.integers(np.zeros(1))
    points = []
    products = replace(model, panel=Chain(0.0, 0.0))
    for rows in (short, tall):
        # Random, with a zero diagonal: no column repeats another, and each needs a swap.
        original = probe.array(rows, width, 0.0)
        panel = probe.device.empty((rows, width), probe.dtype)
        refill = functools.partial(probe.device.copy, panel, original, Queue.PANEL)
        seconds = probe.kernel("getrf", panel, ipiv, info, before=refill)
        shapes = [(rows, width), (width,), (1,)]
        rest = seconds - products.kernel_seconds("getrf", shapes, probe.dtype)
        points.append((rows, width, rest))
    model = replace(model, panel=_fit_chain(*points))
    if model.kind == "gpu":
        launches = enqueue_column(probe, model, "getrf", [panel, ipiv, info])
        model = replace(model, panel_launch_seconds=launches)
    return model


def fit_library(probe: Probe, model: DeviceModel) -> DeviceModel:
    """Return the model of a GPU with the figures of cuSOLVER's factorizations of whole matrices."""
    chains: dict[str, Any] = {}
    for name, (flops, *orders) in _LIBRARY.items():
        points = []
        for order in orders:
            original = probe.array(order, order, 1.0)
            a, b = probe.device.empty(original.shape, probe.dtype), original[:, :0]
            seconds = probe.seconds(
                functools.partial(getattr(cusolver, name), a, b),
                before=functools.partial(probe.device.copy, a, original, Queue.PANEL),
            )
            explained = model.call_seconds + flops * order**3 / model.gemm_rate
            points.append((order, order, seconds - explained))
        chains[f"library_{name}"] = _fit_chain(*points)
    return replace(model, **chains)


def _half_size(ratio: float, long: float, short: float) -> float:
    """Solve ``ratio = (short + h) / (long + h)`` for h, between 0 and `long`."""
    if ratio >= 1:
        return long
    return min(max((ratio * long - short) / (1 - ratio), 0.0), long)


def _fit_chain(*points: tuple[int, int, float]) -> Chain:
    """Fit nonnegative costs per column and per element to two (rows, columns, seconds)."""
    (r1, c1, t1), (r2, c2, t2) = points
    t1, t2 = max(t1 / c1, 0.0), max(t2 / c2, 0.0)
    element = max((t2 - t1) / (r2 - r1), 0.0)
    # Where the short panel costs more, the tall one decides: most panels are tall.
    column = t2 - element * r2
    if column < 0:
        return Chain(0.0, t2 / r2)
    return Chain(column, element)
