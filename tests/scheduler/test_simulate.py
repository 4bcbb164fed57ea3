"""Simulated runs: they keep the order, lose no time, prefer the better plan, find hangs."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import CORE, H200, Chain, DeviceModel
from hetero_la.scheduler.machine.model import DaskCosts, MachineModel
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import Simulation, simulate
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    ReceiveMessage,
    SendMessage,
    StoreRows,
)
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import call_seconds

#: More than what rounding does to sums of times.
TICK = 1e-12


class Case:
    """A factorization on some workers, the last of which may be there for panels only."""

    def __init__(
        self,
        n: int,
        nb: int,
        workers: int,
        *,
        helper: bool = False,
        depth: int = 1,
        nrhs: int = 0,
        routine: str | None = None,
    ) -> None:
        layout = TileLayout(n, n, nb, nrhs)
        self.graph: TaskGraph = ROUTINES[routine or ("solve" if nrhs else "lu")].tasks(layout)
        self.owners = workers
        weights = [1.0] * workers + [0.0] * helper
        columns = Distribution.cyclic(layout.nt + layout.rt, weights)
        self.placement = Placement(self.graph, columns, workers if helper else None)
        self.programs, self.traffic = build_programs(
            self.graph, self.placement, columns, len(weights), depth=depth
        )

    def run(self, *devices: DeviceModel, **options) -> Simulation:
        if len(devices) == 1:
            devices *= len(self.programs)
        model = MachineModel(devices)
        return simulate(self.programs, self.traffic, self.graph, model, np.float64, **options)


def test_one_thread_enqueues_for_all_gpus_of_a_process() -> None:
    slow = replace(H200, issue_seconds=1e-3)
    case = Case(8192, 512, 4)
    there = [WorkerInfo(f"gpu{i}", "gpu", device=i, pid=1) for i in range(4)]
    apart = [replace(info, pid=i) for i, info in enumerate(there)]
    one, several = (
        simulate(
            case.programs, case.traffic, case.graph, MachineModel((slow,) * 4, tuple(infos)),
            np.float64,
        )
        for infos in (there, apart)
    )  # fmt: skip
    total = sum(len(program.instructions) for program in case.programs)
    assert one.makespan > 1e-3 * total > 2 * several.makespan
    assert case.run(slow).makespan == one.makespan  # without workers, all are in one process


CASES = {
    "one": lambda: Case(4000, 256, 1),
    "four": lambda: Case(8192, 512, 4),
    "depth 0": lambda: Case(4096, 256, 3, depth=0),
    "depth 2": lambda: Case(4096, 256, 3, depth=2),
    "helper": lambda: Case(4096, 512, 2, helper=True),
    "solve": lambda: Case(3000, 256, 2, nrhs=300),
    "inverse": lambda: Case(2000, 256, 2, nrhs=2000, routine="inverse"),
    "cholesky": lambda: Case(4096, 256, 3, routine="cholesky"),
    "cholesky helper": lambda: Case(4096, 256, 3, helper=True, routine="cholesky"),
    "positive": lambda: Case(2000, 256, 2, nrhs=600, routine="solve_positive"),
    "qr": lambda: Case(3000, 256, 3, routine="qr"),
    "explicit q": lambda: Case(2000, 256, 2, helper=True, nrhs=2000, routine="explicit_q"),
    "least squares": lambda: Case(2000, 256, 2, nrhs=600, depth=2, routine="lstsq"),
    "minimum norm": lambda: Case(2000, 256, 2, nrhs=600, depth=0, routine="minimum_norm"),
}
DEVICES = {"cpu": CORE, "gpu": H200}


@pytest.fixture(params=list(CASES), ids=list(CASES))
def case(request):
    return CASES[request.param]()


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_order_respects_every_edge(case, device):
    run = case.run(device)
    graph = case.graph
    span: dict[int, tuple[float, float]] = {}
    for program, start, stop in zip(case.programs, run.start, run.stop, strict=True):
        for at, i in enumerate(program.instructions):
            if not isinstance(i, CallKernel):
                continue
            columns = [c for c in program.columns if i.first <= c <= i.last] or [i.first]
            for task in graph.tasks:
                same = (task.kind, task.step) == (i.kind, i.step) and task.column in columns
                worker = case.placement[task.index] == program.worker
                # compose is one kernel of one step and column, many times over
                if same and worker and (len(columns) > 1 or task.accesses == i.regions):
                    span[task.index] = (start[at], stop[at])
    assert len(span) == len(graph.tasks)
    for task in graph.tasks:
        for before in task.after:
            if span[before] != span[task.index]:  # not merged into one call
                assert span[before][1] <= span[task.index][0] + TICK


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_no_time_is_lost(case, device):
    run = case.run(device, host_arrays=True)
    assert np.allclose(run.computing + run.idle, run.makespan)
    assert (run.idle >= -TICK).all()
    assert (run.busy <= run.makespan + TICK).all()
    assert run.makespan == max(stop.max() for stop in run.stop)
    for w, program in enumerate(case.programs):
        busy = np.zeros(len(Queue))
        for at, i in enumerate(program.instructions):
            busy[i.queue] += run.stop[w][at] - run.start[w][at]
        assert np.allclose(busy, run.busy[w])
        panel, update, *_ = run.busy[w]
        assert max(panel, update) - TICK <= run.computing[w] <= panel + update + TICK


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_queues_run_in_program_order(case, device):
    run = case.run(device)
    for program, start, stop in zip(case.programs, run.start, run.stop, strict=True):
        for queue in Queue:
            mine = [at for at, i in enumerate(program.instructions) if i.queue == queue]
            assert all(stop[a] <= start[b] + TICK for a, b in pairwise(mine))
        if device.kind == "cpu":  # one thread: nothing overlaps at all
            assert all(stop[:-1] <= start[1:] + TICK)


def test_one_cpu_takes_the_sum_of_its_calls_and_what_it_takes_to_issue_instructions():
    case = Case(4096, 256, 1)
    total = sum(
        call_seconds(CORE, i, case.graph, 256 * (i.last - i.first + 1))
        for i in case.programs[0].select(CallKernel)
    )
    run = case.run(CORE, source="in place")
    issues = CORE.issue_seconds * len(case.programs[0].instructions)
    assert issues > 1e-4
    assert run.makespan == pytest.approx(total + issues)
    assert run.idle[0] == pytest.approx(issues)


def test_a_gpu_waits_for_a_host_that_is_slow_to_issue():
    case = Case(4096, 256, 1)
    slow = replace(H200, issue_seconds=1e-3)
    calls = len(case.programs[0].select(CallKernel))
    assert case.run(H200).makespan < 0.5 * calls * slow.issue_seconds
    assert case.run(slow).makespan > calls * slow.issue_seconds


def test_larger_problems_and_slower_machines_take_longer():
    times = [Case(n, 256, 2).run(H200).makespan for n in (1024, 2048, 4096, 8192)]
    assert times == sorted(times)
    case = Case(8192, 512, 2)
    base = case.run(H200).makespan
    for slower in (
        replace(H200, gemm_rate=H200.gemm_rate / 2),
        replace(H200, panel=Chain(1e-4, 0.0)),
        replace(H200, launch_seconds=1e-3),
        replace(H200, swap_seconds=1e-9),
    ):
        assert case.run(slower).makespan > base
    slow_link = MachineModel((H200, H200), peer_link=replace(MachineModel(()).peer_link, latency=1))
    assert simulate(case.programs, case.traffic, case.graph, slow_link).makespan > 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_look_ahead_pays(workers):
    shallow, deep = (Case(16384, 512, workers, depth=d).run(H200).makespan for d in (0, 1))
    assert deep < 0.95 * shallow


def test_more_gpus_are_faster():
    times = [Case(32768, 1024, workers).run(H200).makespan for workers in (1, 2, 4)]
    assert times[0] > 1.5 * times[1] > 2 * times[2]


def test_panels_go_where_they_are_faster():
    alone, helped = Case(8192, 256, 2), Case(8192, 256, 2, helper=True)
    slow_panels = replace(H200, panel=Chain(1e-3, 0.0))
    fast_cpu = replace(CORE, gemm_rate=1e15, panel=Chain(0.0, 0.0), inverse=Chain(0.0, 0.0))
    assert helped.run(slow_panels, slow_panels, fast_cpu).makespan < 0.2 * (
        alone.run(slow_panels).makespan
    )
    assert helped.run(H200, H200, CORE).makespan > 5 * alone.run(H200).makespan


def test_what_a_panel_and_an_update_do_to_each_other():
    gpu = replace(
        H200, panel_slowdown=2.0, panel_growth=0.5, panel_share=0.25, reflector_slowdown=1.5,
        tile_share=0.5,
    )  # fmt: skip
    assert gpu.overlap("getrf", 512) == gpu.overlap("trtri", 512) == (2.0, 0.25)
    assert gpu.overlap("getrf", 2048) == (4.0, 0.25)
    assert gpu.overlap("getrf", 8) == (1.0, 0.25)
    assert gpu.overlap("geqrf", 512) == (3.0, 0.25)
    assert gpu.overlap("potrf", 512) == (2.0, 0.5)
    assert gpu.overlap("trmm", 512) == (1.0, 1.0)  # it could fill the GPU


def test_panel_and_update_share_a_gpu():
    case = Case(16384, 512, 1)
    base = case.run(replace(H200, panel_slowdown=1.0, panel_growth=0.0, panel_share=0.0))
    slowed = case.run(replace(H200, panel_slowdown=3.0, panel_share=0.0))
    shared = case.run(replace(H200, panel_slowdown=1.0, panel_growth=0.0, panel_share=0.5))
    grown = case.run(replace(H200, panel_slowdown=3.0, panel_growth=0.5, panel_share=0.0))
    assert slowed.busy[0, Queue.PANEL] > base.busy[0, Queue.PANEL]
    assert grown.makespan == slowed.makespan  # its panels have 512 columns
    narrow = Case(16384, 256, 1)
    gain = [
        narrow.run(replace(H200, panel_slowdown=3.0, panel_growth=growth)).busy[0, Queue.PANEL]
        for growth in (0.0, 0.5)
    ]
    assert gain[1] < gain[0]
    assert shared.busy[0, Queue.UPDATE] > base.busy[0, Queue.UPDATE]
    assert shared.busy[0, Queue.PANEL] == pytest.approx(base.busy[0, Queue.PANEL], rel=0.01)


def test_clocks_fall_in_long_runs():
    case = Case(16384, 512, 1)
    full = case.run(H200)
    burst = full.makespan / 4
    slowed = case.run(replace(H200, burst=burst, sustained=0.8))
    assert slowed.makespan == pytest.approx(burst + 0.75 * full.makespan / 0.8)
    early = full.stop[0] <= burst
    assert 0 < early.sum() < len(early)
    assert slowed.stop[0][early].tolist() == full.stop[0][early].tolist()
    assert (slowed.stop[0][~early] > full.stop[0][~early]).all()
    assert case.run(replace(H200, burst=full.makespan, sustained=0.8)).makespan == full.makespan


def test_throughput_is_not_invented():
    case = Case(16384, 512, 1)
    run = case.run(H200)
    work = case.programs[0].call_flops(case.graph)
    products = [
        flops
        for place, flops in work.items()
        if case.programs[0].instructions[place].name == "gemm"
    ]
    assert run.makespan > sum(products) / H200.gemm_rate


def test_routines_take_as_long_as_their_operations():
    lu, cholesky, qr = (
        Case(32768, 512, 1, routine=name).run(H200).makespan for name in ("lu", "cholesky", "qr")
    )
    assert 0.4 * lu < cholesky < 0.75 * lu
    assert 1.5 * lu < qr < 3 * lu


@pytest.mark.parametrize(
    ("n", "nb", "gpus", "measured"),
    [
        (16384, 512, 1, 0.127),
        (32768, 512, 1, 0.606),
        (32768, 512, 4, 0.287),
        (65536, 1024, 4, 1.25),
    ],
)
def test_prototype_is_predicted_within_a_quarter(n, nb, gpus, measured):
    # Its panel kernel took 4.3 us a column, its swaps twice the time of ours.
    prototype = replace(H200, panel=Chain(4.3e-6, 0.0), swap_seconds=5e-11)
    assert Case(n, nb, gpus).run(prototype).makespan == pytest.approx(measured, rel=0.25)


def test_simulated_bytes_are_those_of_panels_and_inverses():
    n, nb, gpus = 4096, 512, 4
    run = Case(n, nb, gpus).run(H200, host_arrays=True)
    # A panel with its inverse goes to all others, but the last to none.
    panels = sum((n - k) * nb + nb**2 for k in range(0, n - nb, nb)) * 8
    later = [min(gpus - 1, n // nb - 1 - k) for k in range(n // nb - 1)]
    least = sum(((n - k * nb) * nb + nb**2) * 8 * there for k, there in enumerate(later))
    assert least <= run.bytes_moved <= 1.05 * panels * (gpus - 1)
    assert not run.bytes_sent.diagonal().any()
    assert run.bytes_host.sum() == 2 * n * n * 8
    assert Case(n, nb, gpus).run(H200).bytes_host.sum() == 0


def test_host_arrays_cost_their_transfer():
    case = Case(8192, 512, 1)
    in_place, loaded = case.run(H200), case.run(H200, host_arrays=True)
    model = MachineModel((H200,))
    there = 16 * model.load_link.seconds(8192 * 512 * 8)
    stored = [i.region.stop - i.region.start for i in case.programs[0].select(StoreRows)]
    assert sum(stored) == 16 * 16
    # Results go to new memory, once the last column has been loaded.
    both_ways = there + sum(model.new_link.seconds(rows * 512 * 512 * 8) for rows in stored)
    assert both_ways < loaded.makespan < in_place.makespan + 1.01 * both_ways


def test_rows_that_no_task_touches_are_copied_to_new_memory():
    worker = (WorkerInfo("gpu0", "gpu", "inproc://0", device=0),)
    problem, nbytes = Problem("cholesky", 8192, 8192, 0, np.dtype("f8")), 8 * 8192**2
    seconds = {
        source: make_plan(problem, Options(nb=512), worker, Given(True, source)).predicted_seconds
        for source in ("pinned", "in place", "column-major")
    }
    assert seconds["pinned"] < seconds["in place"] < seconds["column-major"]
    assert seconds["column-major"] > nbytes / MachineModel((H200,)).new_link.bandwidth


def test_columns_that_stay_with_the_workers_are_not_stored():
    worker = (WorkerInfo("gpu0", "gpu", "inproc://0", device=0),)
    problem = Problem("solve_positive", 8192, 8192, 1, np.dtype("f8"))
    plans = [
        make_plan(problem, Options(nb=512), worker, Given(True, "column-major"), checked=checked)
        for checked in (True, False)
    ]
    alone, home = (plan.predicted_seconds for plan in plans)
    assert alone < home


def test_workers_with_empty_programs_compute_nothing():
    case = Case(4, 4, 3)  # two of the workers have nothing to do
    run = case.run(H200)
    assert run.makespan > 0
    assert run.computing[2] == 0


def _drop(case: Case, worker: int, kind: type[SendMessage] | type[ReceiveMessage]) -> str:
    """Replace the message of a worker's first send or receive by one that nobody knows."""
    i = case.programs[worker].select(kind)[0]
    key = i.message
    i.message = key._replace(step=10**6)
    return f"message {tuple(key)}"


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_a_message_that_is_never_sent_is_found(device):
    case = Case(4096, 512, 2)
    missing = _drop(case, 0, SendMessage)
    with pytest.raises(RuntimeError, match="never end") as caught:
        case.run(device)
    assert "worker 1 is stuck at instruction" in str(caught.value)
    assert missing in str(caught.value)


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_two_workers_that_wait_for_each_other_are_found(device):
    case = Case(4096, 512, 2)
    for program in case.programs:  # receive before what is to be sent
        code = program.instructions
        receive = program.select(ReceiveMessage)[0]
        for i in code:
            i.waits = ()
        code.remove(receive)
        code.insert(0, receive)
    with pytest.raises(RuntimeError) as caught:
        case.run(device)
    for worker in (0, 1):
        assert f"worker {worker} is stuck at instruction 0, receive step" in str(caught.value)


def test_a_copy_that_is_never_taken_is_found():
    case = Case(2048, 256, 2, helper=True)
    awaited = {key for p in case.programs for i in p.instructions for key, _ in i.awaits}
    assert awaited
    for program in case.programs:
        for i in program.instructions:
            i.takes = ()
    with pytest.raises(RuntimeError, match=r"to be taken by worker"):
        case.run(H200, H200, CORE)


def test_every_worker_needs_a_device():
    with pytest.raises(ValueError, match="3 programs need as many devices, not 2"):
        Case(1024, 256, 3).run(H200, H200)


def test_a_large_run_is_simulated_in_moments():
    case = Case(65536, 1024, 4)
    assert sum(len(p.instructions) for p in case.programs) > 1500
    best = 10.0
    for _ in range(5):
        start = time.perf_counter()
        case.run(H200)
        best = min(best, time.perf_counter() - start)
    assert best < 0.3  # 13 ms where nothing else runs


def test_loads_take_what_the_order_of_the_matrix_costs() -> None:
    case = Case(2000, 250, 2)
    shared = replace(CORE, load_bandwidth=4e9, turn_bandwidth=1e9)
    apart = replace(shared, by_reference=False)
    nbytes = 8 * 2000 * 2000

    def copied(device: DeviceModel, source: str) -> tuple[float, int]:
        run = case.run(device, source=source)
        return float(run.busy[:, Queue.COPY].sum()), int(run.bytes_host.sum())

    received = copied(shared, "in place")[0]
    assert copied(shared, "in place")[1] == 0
    for source, rate in (("row-major", 1e9), ("column-major", 4e9)):
        seconds, moved = copied(shared, source)
        assert seconds - received == pytest.approx(nbytes / rate)
        assert moved == nbytes
    # In memory of its own, a worker stores what it has loaded.
    seconds = [copied(apart, source)[0] for source in ("row-major", "column-major")]
    assert seconds[0] - seconds[1] == pytest.approx(nbytes / 1e9 - nbytes / 4e9)
    assert copied(apart, "row-major")[1] == 2 * nbytes


def test_dask_takes_time_before_a_run_and_between_its_tasks() -> None:
    case = Case(2000, 250, 1)
    model = MachineModel((CORE,), dask=DaskCosts(0.5, 0.25))

    def run(*windows: list[int]) -> Simulation:
        return simulate(case.programs, case.traffic, case.graph, model, windows=windows)

    alone = run().makespan
    assert run([0]).start[0][0] == pytest.approx(0.5 + CORE.issue_seconds)
    assert run([0]).makespan == pytest.approx(alone + 0.5)
    cut = len(case.programs[0].instructions) // 2
    late = run([0, cut])
    assert late.makespan == pytest.approx(alone + 0.75)
    pause = late.start[0][cut] - late.stop[0][cut - 1]
    assert pause == pytest.approx(0.25 + CORE.issue_seconds)
    assert run([0, 0, 0]).makespan == pytest.approx(alone + 1.0)
