"""Probes of the machine: they measure what they say, on all workers at once, and end."""

from __future__ import annotations

import math
import statistics
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hetero_la.pictures.palette import family
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.machine.device import CORE, H200
from hetero_la.scheduler.machine.model import NOMINAL_LINKS
from hetero_la.scheduler.machine.rate_tables import case_shapes, measurable, size_names
from hetero_la.scheduler.on_dask.pairs import message_seconds
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.probe import kernels, machine
from hetero_la.scheduler.probe.clock import Clock, fit_clock
from hetero_la.scheduler.probe.copies import (
    fit_link,
    measure_copies,
    measure_links,
    measure_pairs,
)
from hetero_la.scheduler.probe.dask_latency import measure_dask
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.issue import measure_issue
from hetero_la.scheduler.probe.kernel_cases import KernelCase, grids
from hetero_la.scheduler.probe.kernels import (
    measure_kernels,
    median_and_spread,
    sample_together,
)
from hetero_la.scheduler.probe.machine import CpuWorkers, ProbeSettings, measure_cpus
from hetero_la.tiles.kernels import registry
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.spec import SPECS, Role, kernel
from tests.scheduler.recovery import local_cluster

DOUBLE = np.dtype(float)


def small(kind: str) -> tuple[tuple[int, ...], ...]:
    """Two values of each size, rows more than columns."""
    return tuple((48, 96) if name in ("r", "m") else (8, 24) for name in size_names(kind))


def test_every_kernel_has_a_grid_for_every_kind_of_device() -> None:
    for kind in ("cpu", "gpu"):
        full, quick = grids(kind), grids(kind, quick=True)
        assert set(full) == set(quick) == set(measurable())
        for name, axes in full.items():
            assert len(axes) == len(size_names(name))
            assert all(list(axis) == sorted(set(axis)) for axis in axes)
            assert [axis[-1] for axis in quick[name]] == [axis[-1] for axis in axes]
            assert all(set(few) <= set(axis) for few, axis in zip(quick[name], axes, strict=True))
        assert sum(map(len, quick["gemm"])) < sum(map(len, full["gemm"]))


@pytest.mark.parametrize("role", Role)
def test_a_kernel_is_measured_costed_and_drawn_from_its_record(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = kernel("new(A[w,w]; B[r,w]; tau[w])", role, "B <- A B", lambda w, r: w**2 * r)
    monkeypatch.setitem(SPECS, "new", new)
    monkeypatch.setitem(registry._IMPLEMENTATIONS, ("cpu", "new"), lambda *arrays, options: None)
    for kind in ("cpu", "gpu"):
        w, r = grids(kind)["new"]
        assert max(w) < max(r)
    rates = measure_kernels([Probe(CpuDevice(), DOUBLE)], {"new": ((8,), (16, 64))})
    assert rates.by_kind["new"].axes == ((8,), (16, 64))
    for device in (CORE, H200):
        small, large = (
            device.kernel_seconds("new", new.shapes({"w": w, "r": 8 * w}), DOUBLE)
            for w in (128, 1024)
        )
        assert device.call_seconds < small < large
    assert family("new").role is role
    like = kernel("like_new(A[w,w]; B[r,w]; tau[w])", role, "B <- A^H B", like="new")
    monkeypatch.setitem(SPECS, "like_new", like)
    assert "like_new" not in grids("cpu")
    shapes = like.shapes({"w": 8, "r": 16})
    assert rates.estimate("like_new", shapes) == rates.estimate("new", shapes)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_grids_shrink_to_the_memory_there_is(kind: str) -> None:
    limit = 10**8
    for name, axes in grids(kind, nbytes=limit).items():
        shapes = case_shapes(name, tuple(axis[-1] for axis in axes))
        assert 8 * sum(math.prod(shape) for shape in shapes) <= limit
        assert all(axes)


@pytest.mark.parametrize("kind", sorted(measurable()))
def test_kernels_are_measured_on_sensible_data(kind: str) -> None:
    """Whatever is called again and again neither overflows nor turns into NaN."""
    with threadpool_limits(1, "blas"):
        case = KernelCase(Probe(CpuDevice(), DOUBLE), kind, small(kind))
        largest = tuple(axis[-1] for axis in small(kind))
        assert all(sample > 0 for sample in case.samples(largest))
        for arena in case.arenas.values():
            assert arena is None or np.isfinite(arena).all()


def test_a_call_of_a_cpu_comes_after_other_kernels_and_a_product_after_products() -> None:
    called: list[str] = []

    class Device(CpuDevice):
        def call(self, kernel, queue, arrays, options) -> None:
            called.append(kernel)

    for kind, before in (("potrf", ["gemm"]), ("swap", ["gemm"]), ("herk", [])):
        case = KernelCase(Probe(Device(), DOUBLE), kind, small(kind))
        called.clear()
        case.samples(tuple(axis[0] for axis in small(kind)))
        made = [kernel for kernel in called if kernel != "netperm"]
        assert made[: len(before) + 1] == [*before, kind]
        assert made.count("gemm") == len(before) * made.count(kind)


def test_a_device_with_a_clock_measures_every_call_itself_after_a_product() -> None:
    called = []

    class Device(CpuDevice):
        def call(self, kernel, *args):
            called.append(kernel)

        def stopwatch(self):
            return SimpleNamespace(
                mark=lambda queue: len(called), between=lambda begin, end: end - begin
            )

    for kind in ("gemm", "larfb_c", "geqrf"):
        case = KernelCase(Probe(Device(), DOUBLE), kind, small(kind))
        called.clear()
        assert case.samples(tuple(axis[0] for axis in small(kind))) == [1]  # longer than is awaited
        assert called == ["gemm", kind]


def test_tiles_are_measured_as_parts_of_a_matrix() -> None:
    case = KernelCase(Probe(CpuDevice(), DOUBLE), "trtri", ((8, 24),))
    tile, inverse = case.arrays((8,))
    assert tile.strides[1] >= 2048 * 8
    assert inverse.shape == (8, 8)


def test_time_between_calls_is_what_the_interpreter_takes() -> None:
    with threadpool_limits(1, "blas"):
        seconds = measure_issue([Probe(CpuDevice(f"cpu{i}"), DOUBLE) for i in range(2)])
    assert 5e-7 < seconds < 5e-3


def test_updates_take_turns_on_more_memory_than_caches_hold() -> None:
    case = KernelCase(Probe(CpuDevice(), DOUBLE), "swap", ((8,), (512,), (64,)))
    turns = case.rotated_arguments(case.arrays((8, 512, 64)))
    blocks = [next(turns)[-1] for _ in range(200)]
    assert all(block.shape == (512, 64) for block in blocks)
    places = {block.ctypes.data for block in blocks}
    assert len(places) * blocks[0].nbytes >= 2**25


def test_kernels_measured_on_two_devices_at_once() -> None:
    told: list[str] = []
    with threadpool_limits(1, "blas"):
        probes = [Probe(CpuDevice(f"cpu{i}"), DOUBLE) for i in range(2)]
        rates = measure_kernels(
            probes, {"potrf": ((8, 64),), "gemm": ((16, 64), (8,), (8, 64))}, told.append
        )
        array = np.ones((64, 8), order="F")
        wide, c = np.ones((8, 64), order="F"), np.ones((64, 64), order="F")
        samples = [
            probes[0].sample(lambda: probes[0].call("gemm", array, wide, c), 50) for _ in range(9)
        ]
    assert told == ["potrf", "gemm"] * kernels._ROUNDS
    gemm = rates.by_kind["gemm"]
    assert gemm.axes == ((16, 64), (8,), (8, 64))
    assert all(spread >= 0 for spread in gemm.spreads)
    # Of the right order: two threads take turns at the interpreter, other processes at the cores.
    assert 0.02 < gemm.estimate((64, 8, 64)) / statistics.median(samples) < 50


def test_an_error_on_one_device_ends_the_waiting_of_the_others() -> None:
    probes = [Probe(CpuDevice(f"cpu{i}"), DOUBLE) for i in range(3)]

    def measure(probe: Probe, point: int) -> list[float]:
        if point == 1 and probe is probes[1]:
            raise MemoryError("no room")
        return [1.0]

    began = time.perf_counter()
    with pytest.raises(MemoryError, match="no room"):
        sample_together(probes, lambda probe: probe, measure, range(3))
    assert time.perf_counter() - began < 10


def test_a_device_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_BARRIER_SECONDS", 0.2)
    probes = [Probe(CpuDevice(f"cpu{i}"), DOUBLE) for i in range(2)]
    gone = threading.Event()  # never set

    def measure(probe: Probe, point: int) -> list[float]:
        if probe is probes[1]:
            gone.wait(1.0)
        return [1.0]

    with pytest.raises(TimeoutError, match=r"a device took longer than 0 s"):
        sample_together(probes, lambda probe: probe, measure, range(3))


def test_all_devices_come_to_a_point_together() -> None:
    probes = [Probe(CpuDevice(f"cpu{i}"), DOUBLE) for i in range(3)]
    found = sample_together(
        probes, lambda p: p.device.name, lambda name, point: [point], [1.0, 2.0]
    )
    assert found == [[1.0] * 3, [2.0] * 3]


def test_the_spread_is_relative_to_the_median() -> None:
    assert median_and_spread([3.0, 1.0, 2.0]) == (2.0, 0.5)
    assert median_and_spread([2.0, 2.0, 2.0]) == (2.0, 0.0)


@pytest.mark.slow
def test_cpus_measured_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"gemm": ((16, 64), (8,), (8, 64)), "laswp": ((64,), (8, 16))}
    monkeypatch.setattr(machine, "grids", lambda *args, **kwargs: few)
    told: list[str] = []
    device = measure_cpus(CpuWorkers(2, 1), ProbeSettings(np.dtype("f4"), report=told.append))
    assert (device.name, device.threads, device.beside) == ("", 1, 2)
    assert device.model.dtype == "float32"
    assert set(device.model.rates.by_kind) == set(few)
    assert device.model.load_bandwidth == device.figures["loaded_copy_bandwidth"] > 1e7
    assert device.model.turn_bandwidth == device.figures["turned_copy_bandwidth"] > 1e7
    assert told[0] == "2 x 1 CPU threads: calls"
    assert told[-1] == "2 x 1 CPU threads: laswp"


def test_measured_copies_are_plausible() -> None:
    copies = measure_copies([Probe(CpuDevice(), DOUBLE)])
    assert list(copies) == ["aligned", "strided", "loaded", "turned"]
    assert all(1e7 < rate < 1e13 for rate in copies.values())


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_link_is_fitted_to_small_and_large_transfers(noise: float) -> None:
    rng = np.random.default_rng(0)
    sizes = [1e3, 3e4, 5e5, 4e6, 3e7]
    seconds = [(8e-6 + size / 4e10) * (1 + noise * rng.uniform(-1, 1)) for size in sizes]
    link = fit_link(sizes, seconds)
    assert link.latency == pytest.approx(8e-6, rel=0.01 + 2 * noise)
    assert link.bandwidth == pytest.approx(4e10, rel=0.01 + 2 * noise)


def test_a_link_without_latency_has_no_negative_one() -> None:
    link = fit_link([1e3, 1e5, 1e7], [1e-8, 3e-6, 4e-4])
    assert link.latency >= 0
    assert link.bandwidth > 0


def test_links_of_a_cpu_stand_in_for_those_of_a_gpu() -> None:
    links = measure_links(Probe(CpuDevice(), DOUBLE))
    host = ["host_to_gpu", "gpu_to_host", "pageable_to_gpu", "gpu_to_pageable", "gpu_to_new"]
    assert list(links) == [*host, "pinning", "pinning_new"]
    assert all(link.seconds(10**6) > 0 for link in links.values())


def test_each_kind_of_link_is_measured_between_the_first_two_that_have_it() -> None:
    def gpu(host: str, pid: int) -> WorkerInfo:
        return WorkerInfo(f"{host}{pid}", "gpu", pid=pid, host=host, gpu=f"{pid}")

    team = [gpu("a", 1), gpu("a", 2), gpu("b", 3), gpu("b", 4)]
    seen, told = set(), list[str]()

    def nccl(first: WorkerInfo, second: WorkerInfo, nbytes: int) -> float:
        seen.add((first.name, second.name))
        near = first.host == second.host
        return 1e-5 + nbytes / 4e11 if near else 2e-5 + nbytes / 5e10

    links = measure_pairs(team, nccl, told.append)
    assert seen == {("a1", "a2"), ("a1", "b3")}
    assert told == ["NCCL, from a1 to a2", "NCCL over the network, from a1 to b3"]
    figures = [(1e6 * link.latency, link.bandwidth / 1e9) for link in links.values()]
    assert np.allclose(figures, [(10, 400), (20, 50)])
    assert set(links) <= set(NOMINAL_LINKS)
    assert measure_pairs(team[:1], nccl) == {}


@pytest.mark.exhaustive
def test_messages_between_processes_take_longer_if_they_are_longer() -> None:
    with local_cluster(2) as client:
        first, second = worker_infos(client)
        short, long = (
            statistics.median(message_seconds(client, first, second, nbytes) for _ in range(5))
            for nbytes in (8, 2**27)
        )
        assert 0 < short < long < 60


def clock(*pieces: float) -> Clock:
    noise = 1 + 0.003 * np.random.default_rng(0).standard_normal(len(pieces))
    return fit_clock([7.0, *(7.0 + np.cumsum(noise * pieces))])


def test_clocks_that_fall_are_told_from_what_only_disturbs() -> None:
    full, late = [5.0e-3] * 20, [5.25e-3] * 250
    for fallen in (clock(*full, *late), clock(*full, *late[:100], 1.0, *late[:150])):
        assert fallen.burst == pytest.approx(0.1, abs=0.02)
        assert fallen.sustained == pytest.approx(0.952, abs=0.01)
    early = clock(*full[:5], *late)
    assert early.burst == pytest.approx(0.025, abs=0.01)
    dips = clock(*full, *late[:150], *[6.2e-3] * 50, *late[:50])
    assert dips.sustained == pytest.approx(0.92, abs=0.01)
    # Nothing falls here: a stall, and some pieces beside another process.
    for constant in ([0.15], [0.05] * 15):
        assert clock(*full * 5, *constant, *full * 8) == Clock(0.0, 1.0)


@pytest.mark.exhaustive
def test_measured_overheads_of_dask_are_plausible() -> None:
    with Cluster(cpus=2) as cluster:
        client = cluster.private_client()
        addresses = [info.address for info in worker_infos(client)]
        for _ in range(5):  # what else runs here may take longer than a task
            dask = measure_dask(client, addresses)
            if 1e-4 < dask.start < 1 and 0 < dask.hop < 0.5:
                return
    pytest.fail(f"{dask}")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted(measurable()))
def test_every_kernel_is_measured_on_a_gpu(kind: str) -> None:
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    axes = tuple((512, 1024) if name in ("r", "m") else (64, 128) for name in
                 size_names(kind))  # fmt: skip
    rates = measure_kernels([Probe(GpuDevice(0), DOUBLE)], {kind: axes})
    assert all(0 < seconds < 1 for seconds in rates.by_kind[kind].seconds)


@pytest.mark.gpu
def test_a_probed_gpu_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"gemm": ((512, 4096), (256,), (512, 4096)), "getrf": ((1024, 8192), (128, 256))}
    monkeypatch.setattr(machine, "grids", lambda *args, **kwargs: few)
    device = machine.measure_gpu(0, ProbeSettings(DOUBLE))
    assert device.model.kind == "gpu"
    assert device.model.panel_slowdown >= 1
    assert 0 <= device.model.panel_share < 1
    assert 0.5 < device.model.reflector_slowdown < 5
    assert 0 <= device.model.tile_share < 1
    assert 0 < device.model.panel_launch_seconds < 1e-4
    assert 0 < device.model.reflector_launch_seconds < 1e-4
    assert 0.3 < device.model.sustained <= 1
    assert 0 <= device.model.burst < 5
    figures = device.figures
    assert figures["getrf_ib"] in (64, 32, 16, 8)
    assert figures["geqrf_ib"] in (32, 16, 8, 4)
    assert all(0 < seconds < 1 for name, seconds in figures.items() if name.endswith("_seconds"))
    assert 0 < figures["launch_seconds"] < figures["synchronous_launch_seconds"] < 1e-2
    links = machine.measure_gpu_links([0])
    assert links["host_to_gpu"].bandwidth > links["pageable_to_gpu"].bandwidth / 2 > 1e8
