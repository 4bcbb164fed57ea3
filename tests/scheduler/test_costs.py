"""The machine model: more work takes longer, and a measured device takes what it says."""

from __future__ import annotations

import os
import pickle
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hetero_la.algorithms.cholesky import cholesky_tasks
from hetero_la.algorithms.lu import lu_tasks, solve_tasks
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.decisions import Decisions, arrival_steps
from hetero_la.planning.options import Options
from hetero_la.scheduler.machine import device as device_model
from hetero_la.scheduler.machine.device import CORE, H200, Chain, cores
from hetero_la.scheduler.machine.model import LinkModel, MachineModel, window_steps
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.probe import fit as fits
from hetero_la.scheduler.probe import quick
from hetero_la.scheduler.probe.quick import machine_model, measure_device, measure_link
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import CallKernel, StoreRows
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout


def shapes_of(kind: str, rows: int, columns: int, w: int) -> list[tuple[int, ...]]:
    sizes = {"m": rows, "r": rows, "n": columns, "c": columns, "k": w, "w": w}
    if "w" not in SPECS[kind].size_names:
        sizes["c"] = w
    return SPECS[kind].shapes(sizes)


@pytest.mark.parametrize("device", [CORE, cores(8), H200], ids=["core", "cores", "gpu"])
@pytest.mark.parametrize("kind", sorted(SPECS))
def test_more_work_takes_longer(device, kind):
    base = device.kernel_seconds(kind, shapes_of(kind, 4096, 2048, 256), np.float64)
    wider = device.kernel_seconds(kind, shapes_of(kind, 4096, 2048, 512), np.float64)
    larger = device.kernel_seconds(kind, shapes_of(kind, 8192, 4096, 512), np.float64)
    assert device.call_seconds < base < wider <= larger


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_kernel_has_a_time_for_empty_and_tiny_operands(kind):
    for rows, columns, w in ((1, 1, 1), (2, 1, 1)):
        seconds = CORE.kernel_seconds(kind, shapes_of(kind, rows, columns, w), np.float64)
        assert 0 < seconds < 1e-3
    assert CORE.kernel_seconds("gemm", [(0, 4), (4, 4), (0, 4)], "f8") == CORE.call_seconds


def test_dtypes_scale_from_the_type_that_was_measured():
    shapes = shapes_of("gemm", 8192, 8192, 512)
    seconds = {t: CORE.kernel_seconds("gemm", shapes, t) for t in ("f4", "f8", "c8", "c16")}
    assert seconds["c16"] == pytest.approx(4 * seconds["f8"], rel=0.01)
    assert seconds["c8"] == pytest.approx(4 * seconds["f4"], rel=0.01)
    assert seconds["f8"] == pytest.approx(2 * seconds["f4"], rel=0.01)
    measured_in_c16 = replace(CORE, dtype="complex128", gemm_rate=CORE.gemm_rate / 4)
    assert measured_in_c16.kernel_seconds("gemm", shapes, "f8") == pytest.approx(seconds["f8"])


@pytest.mark.parametrize(
    ("kind", "shapes", "measured"),
    [
        ("gemm", [(16384, 512), (512, 16384), (16384, 16384)], 2 * 16384**2 * 512 / 49.6e12),
        ("gemm", [(16384, 128), (128, 16384), (16384, 16384)], 2 * 16384**2 * 128 / 35.4e12),
        ("trmm", [(512, 512), (512, 512), (512, 16384)], 0.23e-3),
        ("trsm", [(512, 512), (512, 16384)], 1.11e-3),
        ("trsm", [(1024, 1024), (1024, 16384)], 2.45e-3),
        ("getrf", [(32768, 512), (512,), (1,)], 1.98e-3),
        ("getrf", [(8192, 256), (256,), (1,)], 0.78e-3),
        ("getrf", [(131072, 512), (512,), (1,)], 3.85e-3),
        ("getrf", [(262144, 128), (128,), (1,)], 1.39e-3),
        ("getrf", [(1000000, 512), (512,), (1,)], 20.1e-3),
        ("trtri", [(512, 512), (512, 512)], 0.093e-3),
        ("trtri", [(1024, 1024), (1024, 1024)], 0.183e-3),
    ],
)
def test_nominal_gpu_is_near_what_was_measured_on_one(kind, shapes, measured):
    assert H200.kernel_seconds(kind, shapes, "float64") == pytest.approx(measured, rel=0.25)


def test_a_kernel_without_a_rule_costs_its_flops_or_its_bytes(monkeypatch):
    monkeypatch.setattr(device_model, "_RULES", {})
    monkeypatch.setattr(device_model, "_BY_ROLE", {})
    large = shapes_of("gemm", 4096, 4096, 512)
    flops = SPECS["gemm"].flops(large)
    assert CORE.kernel_seconds("gemm", large, "f8") == pytest.approx(
        CORE.call_seconds + flops / CORE.gemm_rate
    )
    gather = [(1000,), (1000, 500)]
    assert CORE.kernel_seconds("laswp", gather, "f8") > 8 * 1000 * 500 / CORE.bandwidth


def test_only_a_gpu_has_a_host_thread_apart_from_its_queue():
    panel = shapes_of("getrf", 8192, 512, 512)
    assert cores(4).host_seconds("getrf", panel) == 0
    assert H200.host_seconds("getrf", panel) > 10 * H200.host_seconds("gemm", panel)
    assert H200.host_seconds("geqrf", panel) > 1.5 * H200.host_seconds("getrf", panel)
    wide = [(100, 5000), (100,), (100, 100), (100, 100), (1,)]  # of which 100 columns are factored
    assert H200.host_seconds("geqrf", wide) == pytest.approx(1.4e-5 + 100 * 2e-6)


CPU = WorkerInfo("cpu0", "cpu", host="a", pid=1)
GPU = WorkerInfo("gpu0", "gpu", host="a", pid=1, device=0, gpu="0000:18:00.0")
SIZE = 10**9


def test_transfers_in_a_process_take_the_time_of_the_link_between_two_devices():
    virtual = replace(CORE, by_reference=False)
    team = (CPU, CPU, GPU, replace(GPU, device=1), replace(GPU, virtual=True))
    devices = (CORE, CORE, H200, H200, virtual)
    for machine in (MachineModel(devices), MachineModel(devices, team)):
        assert machine.transfer_seconds(SIZE, 0, 0) == 0
        assert machine.transfer_seconds(SIZE, 0, 1) == 0
        assert machine.transfer_seconds(SIZE, 0, 1, private=True) == SIZE / CORE.bandwidth
        assert machine.transfer_seconds(SIZE, 0, 4) == SIZE / CORE.bandwidth
        assert machine.transfer_seconds(SIZE, 2, 0) == machine.host_link.seconds(SIZE)
        assert machine.transfer_seconds(SIZE, 2, 3) == machine.peer_link.seconds(SIZE)
    assert LinkModel().seconds(SIZE) == 0


@pytest.mark.parametrize(
    ("first", "second", "name", "copies"),
    [
        (GPU, replace(GPU, pid=2, gpu="0000:2A:00.0"), "NCCL", 0),
        (GPU, replace(GPU, host="b"), "NCCL over the network", 0),
        (CPU, replace(CPU, pid=2), "shared memory", 0),
        (GPU, replace(CPU, pid=2), "shared memory", 1),
        (GPU, replace(GPU, pid=2), "shared memory", 2),
        (CPU, replace(CPU, host="b"), "Dask's messages", 0),
        (CPU, replace(GPU, host="b"), "Dask's messages", 1),
    ],
)
def test_transfers_between_processes_take_the_time_of_the_pair_s_link(
    first: WorkerInfo, second: WorkerInfo, name: str, copies: int
) -> None:
    machine = MachineModel.nominal([first, second])
    found = machine.transfer_seconds(SIZE, 0, 1)
    assert found == machine.transfer_seconds(SIZE, 1, 0)
    assert found == machine.links[name].seconds(SIZE) + copies * machine.host_link.seconds(SIZE)
    # Links of their own take the place of the nominal ones.
    other = replace(machine, links={name: LinkModel(1.0)})
    assert other.transfer_seconds(0, 0, 1) == 1.0 + copies * machine.host_link.latency
    # Several receivers share the sender's end.
    shared = machine.transfer_seconds(SIZE, 0, 1, receivers=3)
    assert shared - found == pytest.approx(2 * SIZE / machine.links[name].bandwidth)


def test_seconds_of_instructions():
    layout = TileLayout(2048, 2048, 256, nrhs=3)
    graph = solve_tasks(layout)
    columns = Distribution.cyclic(layout.nt + layout.rt, [1.0])
    programs, traffic = build_programs(graph, Placement(graph, columns), columns, 1, depth=1)
    run = simulate(programs, traffic, graph, MachineModel((CORE,)))
    seen = set()
    for i, seconds in zip(programs[0].instructions, run.stop[0] - run.start[0], strict=True):
        seen.add(i.name)
        assert (seconds > 0) == (not isinstance(i, StoreRows))  # columns are in their place
    assert {"getrf", "trsm", "gemm", "load", "store"} <= seen


def test_merged_columns_widen_only_what_they_touch():
    layout = TileLayout(1024, 1024, 256)
    graph = lu_tasks(layout)
    columns = Distribution.cyclic(4, [1.0])
    (program,), _ = build_programs(graph, Placement(graph, columns), columns, 1, depth=0)
    gemm = next(i for i in program.select(CallKernel) if i.kind == "gemm" and i.last == 3)
    width = 256 * (gemm.last - gemm.first + 1)
    m, k, n = 1024 - 256, 256, width
    assert gemm.shapes(graph, width) == [[(m, k), (k, n), (m, n)]]


def test_stretches_of_a_trapezoid_cost_a_kernel_call_each():
    layout = TileLayout(1000, 1000, 128)
    graph = cholesky_tasks(layout)
    columns = Distribution((0, 1, 0, 1, 1, 0, 0, 1))
    programs, _ = build_programs(graph, Placement(graph, columns), columns, 2, depth=1)
    place, herk = next(
        (place, i)
        for place, i in enumerate(programs[1].instructions)
        if isinstance(i, CallKernel) and i.kind == "herk" and i.stretches
    )
    assert (herk.step, herk.stretches) == (0, ((3, 4), (7, 7)))
    found = herk.shapes(graph, 128 + 128 + 104)
    assert found == [[(616, 128), (616, 256)], [(104, 128), (104, 104)]]
    flops = {t.column: graph.flops(t) for t in graph.tasks if (t.kind, t.step) == ("herk", 0)}
    assert programs[1].call_flops(graph)[place] == sum(flops[j] for j in (3, 4, 7))


def test_nominal_model_follows_the_workers():
    team = [
        WorkerInfo("gpu0", "gpu", device=0, pid=1),
        WorkerInfo("gpu1", "gpu", virtual=True, pid=1, blas_threads=2),
        WorkerInfo("cpu0", "cpu", pid=2, blas_threads=4),
    ]
    machine = machine_model(team, measure=False)
    assert machine == MachineModel.nominal(team)
    gpu, *others = machine.devices
    assert replace(gpu, issue_seconds=0.0) == H200
    assert others == [cores(2, by_reference=False), cores(4)]
    assert machine.workers == tuple(team)
    assert pickle.loads(pickle.dumps(machine)) == machine
    assert machine_model(team) == machine  # none of them is in this process


@pytest.mark.parametrize("device", [CORE, H200], ids=["core", "gpu"])
def test_kernels_of_a_kind_cost_what_their_work_costs(device):
    def seconds(kind):
        return device.kernel_seconds(kind, shapes_of(kind, 8192, 8192, 512), np.float64)

    assert seconds("gemm_nc") == seconds("gemm")
    assert seconds("gemm_cn") == pytest.approx(seconds("gemm"), rel=0.1)
    assert 0.4 < seconds("herk") / seconds("gemm") < 0.6  # half of a square
    assert 2 < seconds("larfb_c") / seconds("gemm") < 2.5
    assert seconds("larfb_n") == seconds("larfb_c")
    assert seconds("potrf") < seconds("geqrf")
    assert seconds("getrf") < seconds("geqrf")
    assert seconds("trsm_lc") == seconds("trsm_uc") == seconds("trsm")


@pytest.mark.parametrize("panel_worker", [None, 1])
@pytest.mark.parametrize("routine", sorted(ROUTINES))
def test_estimates_of_every_routine(routine, panel_worker):
    model = MachineModel((H200, cores(8)))

    def stages(n):
        with_rhs = ROUTINES[routine].factored or routine in ("inverse", "explicit_q")
        layout = TileLayout(n, n, 512, n if with_rhs else 0)
        return Stages(ROUTINES[routine].tasks, layout, model, range(1), panel_worker, np.float64)

    none, *others = (stages(n).seconds() for n in (0, 1, 2048, 8192, 16384))
    assert none == 0
    assert 0 < others[0] < others[1] < others[2] < others[3] < 20
    assert 1 <= stages(16384).steps_while_loading() <= 32


@pytest.mark.parametrize("rate", [1e3, 1e9, 1e15])
def test_columns_arrive_before_the_last_step(rate):
    """Later work on them would come after the end of the factorization."""
    model = MachineModel((H200,), load_link=LinkModel(0.0, rate))
    layout, caller = TileLayout(4096, 4096, 512, 512), (calling_thread(),)
    options, dtype = Options(), np.dtype(np.float64)
    decided = Decisions(
        "solve",
        layout,
        dtype,
        options,
        caller,
        None,
        model,
        (1.0,),
        1,
        True,
        "in place",
        False,
        False,
    )
    arrival = arrival_steps(decided)
    steps = [arrival(column) for column in range(layout.nt + layout.rt)]
    assert steps == sorted(steps)
    assert 0 <= min(steps) <= max(steps) < layout.kt
    assert (max(steps) == layout.kt - 1) == (rate < 1e12)


def test_routines_take_as_long_as_their_operations():
    model, layout = MachineModel((H200,)), TileLayout(16384, 16384, 512)
    lu, cholesky, qr = (
        Stages(ROUTINES[name].tasks, layout, model, range(1), None, np.float64).seconds()
        for name in ("lu", "cholesky", "qr")
    )
    assert cholesky < lu
    assert qr > 1.3 * lu


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.25, 5.0, 100.0])
def test_window_is_the_smallest_that_is_cheap_enough(workers, seconds):
    steps = 64

    def cost(window: int) -> float:
        return -(-steps // window) * workers * 2e-3

    window = window_steps(seconds, steps, workers)
    assert 1 <= window <= steps
    assert cost(window) <= 0.03 * seconds or window == steps
    assert window == 1 or cost(window - 1) > 0.03 * seconds


def test_one_worker_takes_one_window():
    assert window_steps(100.0, 64, 1) == 64
    assert window_steps(0.0, 0, 4) == 1


def test_chain_fits_two_points_and_never_turns_negative():
    fit = fits._fit_chain((500, 100, 100 * (2e-6 + 500e-9)), (2000, 100, 100 * (2e-6 + 2000e-9)))
    assert fit.column == pytest.approx(2e-6)
    assert fit.element == pytest.approx(1e-9)
    assert fits._fit_chain((500, 100, 1e-3), (2000, 100, 5e-4)) == Chain(5e-6, 0.0)
    assert fits._fit_chain((500, 100, -1.0), (2000, 100, -1.0)) == Chain(0.0, 0.0)
    assert fits._fit_chain((500, 100, 0.0), (2000, 100, 1e-3)).column == 0


def test_half_size_inverts_the_padding():
    assert fits._half_size((32 + 20) / (256 + 20), 256, 32) == pytest.approx(20)
    assert fits._half_size(0.01, 256, 32) == 0
    assert fits._half_size(1.2, 256, 32) == 256


def _median_seconds(kind: str, arrays: list[np.ndarray]) -> float:
    device, samples = CpuDevice(), []
    for _ in range(5):
        copies = [a.copy(order="F") for a in arrays]
        start = time.perf_counter()
        device.call(kind, Queue.PANEL, copies, KernelOptions())
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def test_measured_model_predicts_this_cpu_within_a_factor_of_two():
    rng = np.random.default_rng(1)

    def random(rows: int, columns: int) -> np.ndarray:
        return np.asfortranarray(rng.standard_normal((rows, columns)))

    cases = {
        "gemm": [random(1500, 200), random(200, 800), random(1500, 800)],
        "getrf": [random(1500, 160), np.zeros(160, np.int32), np.zeros(1, np.int32)],
    }
    until = time.monotonic() + 60  # what else runs here will leave it a quiet moment
    with threadpool_limits(1, "blas"):
        while cases:
            quick._measured.clear()
            model = measure_device(CpuDevice())
            for kind, arrays in list(cases.items()):
                predicted = model.kernel_seconds(kind, [a.shape for a in arrays], np.float64)
                ratio = predicted / _median_seconds(kind, arrays)
                if 0.5 < ratio < 2:
                    del cases[kind]
                elif time.monotonic() > until:
                    pytest.fail(f"{kind}: predicted over real time is {ratio:.2f}")


def test_measurements_are_kept(monkeypatch):
    # What another test left running may change the number of BLAS threads, which is the process's.
    monkeypatch.setattr(quick, "blas_threads", lambda: 1)
    first = measure_device(CpuDevice("cpu7"), np.float32)
    assert measure_device(CpuDevice("cpu7"), np.float32) is first
    assert measure_device(CpuDevice("cpu8"), np.float32) is not first
    monkeypatch.setattr(quick, "blas_threads", lambda: 2)
    assert measure_device(CpuDevice("cpu7"), np.float32) is not first
    assert first.kind == "cpu"
    assert first.dtype == "float32"


def test_a_virtual_gpu_is_a_cpu_that_copies():
    model = measure_device(VirtualGpu("gpu0"))
    assert model.kind == "cpu"
    assert model.launch_seconds == 0
    assert not model.by_reference
    here = WorkerInfo("gpu0", "gpu", virtual=True, pid=os.getpid())
    (device,) = machine_model([here]).devices
    assert device.kind == "cpu"
    assert not device.by_reference


def test_the_link_is_measured_once_and_plausible():
    link = measure_link(CpuDevice())
    assert 0 <= link.latency < 1e-2
    assert 1e8 < link.bandwidth < 1e13
    assert measure_link(CpuDevice()) is link


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize(("slowdown", "measured"), [(0.8, False), (1.2, False), (30.0, True)])
def test_a_gpu_like_the_nominal_one_is_not_measured(monkeypatch, dtype, slowdown, measured):
    (m, n, k), pcie = quick._PRODUCT, LinkModel(1e-5, 25e9)
    product = H200.kernel_seconds("gemm", [(m, k), (k, n), (m, n)], dtype)
    weak, core = replace(H200, gemm_rate=1e12), replace(CORE, gemm_rate=1e10)
    found = {quick._product_seconds: slowdown * product, quick._host_link: pcie}

    def measure(what, device, *args):
        return found.get(what) or (weak if isinstance(device, VirtualGpu) else core)

    monkeypatch.setattr(quick, "gpu_count", lambda: 1)
    monkeypatch.setattr(quick, "GpuDevice", lambda index: VirtualGpu(f"gpu{index}"))
    monkeypatch.setattr(quick, "_measured_once", measure)
    team = [replace(calling_thread(), kind="gpu", device=0), calling_thread()]
    model = machine_model(team, dtype)
    assert (model.devices[0] == weak) is (model.devices[1] == core) is measured
    assert (model.devices[0] == MachineModel.nominal(team).devices[0]) is not measured
    assert model.host_link == pcie
    assert model.load_link.bandwidth == model.store_link.bandwidth == 25e9


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_a_measured_gpu_is_plausible(dtype):
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    model = measure_device(GpuDevice(0), dtype)
    assert model.kind == "gpu"
    assert 0 < model.launch_seconds < 1e-3
    assert 1e11 < model.gemm_rate < 1e16
    panel = model.kernel_seconds("getrf", [(8192, 256), (256,), (1,)], dtype)
    assert 1e-5 < panel < 1
    assert measure_link(GpuDevice(0)).bandwidth > 1e9
