"""Runs on very many GPUs: predicted as the simulator of real programs predicts small ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.step_kernels import StepKernels, Tile
from hetero_la.scheduler.machine.cluster_model import Broadcast, ClusterModel, Fabric
from hetero_la.scheduler.machine.device import H200, Overlap
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.at_scale import ScaledRun, simulate_at_scale
from hetero_la.scheduler.predict.sharing import PanelCall, UpdateCall, panel_spans, update_end
from hetero_la.scheduler.predict.simulate import Simulation, simulate
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import CallKernel, Program
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import call_seconds

#: What the simulator assumes of the links between GPUs of one process.
LINK = Fabric(1e-5, 396e9, broadcast=Broadcast.INDEPENDENT)
NODE = ClusterModel("node", H200, 141e9, 64, 1, LINK, LINK)
SIZES = (100, 100, 50, 170, 170, 60, 170, 100, 40)
LAYOUTS = {
    "lu": [TileLayout(1150, 1150, 100), TileLayout(2030, 950, 100), TileLayout(950, 2030, 100),
           TileLayout(250, 250, 100), TileLayout(80, 80, 100), TileLayout(1500, 40, 100),
           TileLayout(1500, 1500, SIZES), TileLayout(1900, 1500, SIZES)],
    "qr": [TileLayout(1150, 1150, 100), TileLayout(2030, 950, 100), TileLayout(950, 2030, 100),
           TileLayout(1500, 1500, SIZES), TileLayout(1200, 1900, SIZES)],
    "cholesky": [TileLayout(1150, 1150, 100), TileLayout(1200, 1200, 100, tail=4),
                 TileLayout(1500, 1500, SIZES)],
}  # fmt: skip
ALL = [(routine, layout) for routine, layouts in LAYOUTS.items() for layout in layouts]


def both(
    routine: str, layout: TileLayout, workers: int, depth: int, dtype: str = "f8"
) -> tuple[Simulation, ScaledRun, list[Program]]:
    """The same factorization, by its programs and at scale."""
    build = ROUTINES[routine].tasks
    graph = build(layout)
    columns = Distribution.cyclic(layout.nt, [1.0] * workers)
    placement = Placement(graph, columns)
    programs, traffic = build_programs(
        graph, placement, columns, workers, depth=depth, panels_alone=workers > 1
    )
    small = simulate(programs, traffic, graph, MachineModel((H200,) * workers), dtype)
    large = simulate_at_scale(build, layout, NODE, workers, depth=depth, dtype=dtype)
    return small, large, programs


def assert_equal_traffic(routine: str, small: Simulation, large: ScaledRun) -> None:
    """At the end of LU the owner of the last panel keeps what only itself needs."""
    tolerance = 1e-3 if routine == "lu" else 0
    assert large.bytes_moved == pytest.approx(small.bytes_moved, rel=tolerance, abs=0)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize(
    ("n", "nb", "workers", "depth"),
    [
        (32768, 1024, 4, 1),
        (30000, 1024, 7, 1),
        (32768, 512, 16, 1),
        (32768, 1024, 4, 2),
        (20480, 512, 8, 3),
        (20480, 512, 5, 0),
        (16384, 512, 1, 1),
    ],
)
def test_the_real_programs_take_as_long(
    routine: str, n: int, nb: int, workers: int, depth: int
) -> None:
    small, large, _ = both(routine, TileLayout(n, n, nb), workers, depth)
    # What differs is in the module's docstring, and most of it is LU's.
    tolerance = 0.02 if routine == "lu" else 0.002
    assert large.makespan == pytest.approx(small.makespan, rel=tolerance)
    assert_equal_traffic(routine, small, large)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_processes_that_get_panels_one_by_one_share_the_sender_s_link(routine: str) -> None:
    team = [WorkerInfo(f"gpu{i}", "gpu", pid=i, host="a", gpu=f"{i}") for i in range(6)]
    plan = hetero_la.plan(routine, (24000, 24000), nb=512, workers=team)
    run = simulate(plan.programs, plan.traffic, plan.graph, plan.model)
    nccl = plan.model.links["NCCL"]
    link = Fabric(nccl.latency, nccl.bandwidth, broadcast=Broadcast.DIRECT)
    build = ROUTINES[routine].tasks
    large = simulate_at_scale(build, plan.layout, replace(NODE, node=link), 6)
    assert large.makespan == pytest.approx(run.makespan, rel=0.02)
    alone = simulate_at_scale(build, plan.layout, NODE, 6).makespan
    assert large.makespan > 1.1 * alone


@pytest.mark.parametrize(
    ("routine", "layout", "dtype"),
    [
        ("lu", TileLayout(40000, 20000, 512), "f8"),
        ("lu", TileLayout(10000, 20000, 512), "f4"),
        ("qr", TileLayout(40000, 20000, 512), "c16"),
        ("cholesky", TileLayout(40000, 40000, 1024, tail=4), "c8"),
        ("lu", TileLayout(3000, 3000, 512), "f8"),
        *(
            (routine, TileLayout(40000, 40000, (1024,) * 12 + (768,) * 12 + (512,)), "f8")
            for routine in ("lu", "cholesky", "qr")
        ),
        ("cholesky", TileLayout(40000, 40000, (512, 1024) * 24), "f8"),
    ],
)
def test_so_do_those_of_other_shapes_and_types(
    routine: str, layout: TileLayout, dtype: str
) -> None:
    small, large, _ = both(routine, layout, 8, 1, dtype)
    assert large.makespan == pytest.approx(small.makespan, rel=0.03)
    assert_equal_traffic(routine, small, large)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize(("workers", "depth"), [(1, 1), (3, 0), (3, 1), (4, 2)])
def test_every_call_is_counted(routine: str, workers: int, depth: int) -> None:
    layout = TileLayout(6000, 6000, 500)
    _, run, programs = both(routine, layout, workers, depth)
    graph = ROUTINES[routine].tasks(layout)
    for w, program in enumerate(programs):
        total = 0.0
        for i in program.select(CallKernel):
            columns = [c for c in program.columns if i.first <= c <= i.last]
            width = sum(layout.column_width(c) for c in columns)
            total += call_seconds(H200, i, graph, width or None)
        assert run.busy[w] == pytest.approx(total)


@pytest.mark.parametrize(("routine", "layout"), ALL)
def test_steps_call_what_the_builder_writes(routine: str, layout: TileLayout) -> None:
    build = ROUTINES[routine].tasks
    graph, steps = build(layout), StepKernels.of(build)

    def written(step: int, column: int) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
        for task in graph.tasks:
            if (task.step, task.column) == (step, column):
                yield task.kind, [graph.shape(region) for region in task.accesses]

    for k in range(layout.kt):
        tile = Tile.of(layout, k)
        assert steps.panel(tile) == list(written(k, k))
        for j in range(k + 1, layout.nt):
            above = layout.row(j) - layout.row(k + 1)
            assert steps.update(tile, layout.column_width(j), above) == list(written(k, j))
    end = [(t.kind, [graph.shape(r) for r in t.accesses]) for t in graph.tasks
           if t.step >= layout.kt]  # fmt: skip
    chains, own = zip(*(steps.closing(Tile.of(layout, k)) for k in range(layout.kt)), strict=True)
    assert [call for calls in (*reversed(chains), *own) for call in calls] == end


def test_right_hand_sides_are_in_no_forecast() -> None:
    with pytest.raises(ValueError, match="take no right-hand sides, not 2"):
        simulate_at_scale(ROUTINES["lu"].tasks, TileLayout(30, 30, 10, nrhs=2), NODE, 4)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_parts_add_up_to_the_run(routine: str, depth: int) -> None:
    machine = replace(NODE, gpus_per_node=4, nodes=16, network=Fabric(1e-5, 10e9))
    run = simulate_at_scale(
        ROUTINES[routine].tasks, TileLayout(30000, 30000, 512), machine, 24, depth=depth
    )
    assert sum(run.parts.values()) == pytest.approx(run.makespan)
    assert min(run.parts.values()) >= -1e-12
    assert run.parts["network"] > 0.3 * run.makespan
    assert run.parts["links in a node"] > 0
    assert (run.busy < run.makespan).all()


def test_an_update_that_fills_the_gpus_bounds_a_large_run_and_panels_a_small_one() -> None:
    def bound(n: int, workers: int) -> str:
        run = simulate_at_scale(ROUTINES["lu"].tasks, TileLayout(n, n, 512), NODE, workers)
        return max(run.parts, key=run.parts.__getitem__)

    assert bound(65536, 2) == "trailing update"
    assert bound(16384, 16) == "panel"


@pytest.mark.parametrize(
    ("routine", "gpus", "n", "nb", "depth", "measured"),
    [
        ("lu", 1, 16384, 512, 1, 0.0957),
        ("lu", 1, 32768, 1024, 2, 0.536),
        ("lu", 4, 32768, 512, 1, 0.197),
        ("lu", 4, 32768, 1024, 1, 0.199),
        ("lu", 4, 65536, 1024, 1, 1.12),
        ("cholesky", 4, 32768, 1024, 1, 0.1110),
        ("cholesky", 4, 65536, 1024, 1, 0.529),
        ("qr", 4, 32768, 512, 1, 0.366),
    ],
)
def test_measured_runs_are_predicted_within_a_fifth(
    routine: str, gpus: int, n: int, nb: int, depth: int, measured: float
) -> None:
    """Figures of docs/appendix/journal.md, by the rule for copies that comes nearest to them."""
    direct = replace(NODE, node=replace(LINK, broadcast=Broadcast.DIRECT))
    layout = TileLayout(n, n, nb, tail=ROUTINES[routine].gpu_tail)
    run = simulate_at_scale(ROUTINES[routine].tasks, layout, direct, gpus, depth=depth)
    assert run.makespan == pytest.approx(measured, rel=0.2)


def test_rules_of_a_broadcast() -> None:
    place, latency, rate, size = np.arange(8), 1e-3, 1e9, 8e6

    def arrivals(rule: Broadcast) -> np.ndarray:
        lag, hold = Fabric(latency, rate, broadcast=rule, piece=1e6).broadcast_times(size, place, 7)
        return (lag + hold)[1:]

    one = latency + size / rate
    assert np.allclose(arrivals(Broadcast.INDEPENDENT), one)
    assert np.allclose(arrivals(Broadcast.DIRECT), latency + 7 * size / rate)
    assert np.allclose(arrivals(Broadcast.FIRST)[1:], 2 * latency + 7 * size / rate)
    assert arrivals(Broadcast.FIRST)[0] == one
    assert np.allclose(arrivals(Broadcast.TREE), one * np.array([1, 2, 2, 3, 3, 3, 3]))
    assert np.allclose(arrivals(Broadcast.PIPELINE), one + 2e-3 * np.arange(7))


def test_links_and_nodes_make_the_difference() -> None:
    def seconds(machine: ClusterModel) -> float:
        layout = TileLayout(100_000, 100_000, 512)
        return simulate_at_scale(ROUTINES["lu"].tasks, layout, machine, 32).makespan

    network = Fabric(1e-5, 25e9)
    nodes = replace(NODE, gpus_per_node=8, nodes=4, network=network)
    times = [
        seconds(NODE),
        seconds(replace(nodes, network=replace(network, broadcast=Broadcast.PIPELINE, links=2))),
        seconds(replace(nodes, network=replace(network, broadcast=Broadcast.PIPELINE))),
        seconds(replace(nodes, network=replace(network, broadcast=Broadcast.TREE))),
        seconds(nodes),
    ]
    assert times == sorted(times)
    assert times[0] < 0.9 * times[-1]


def test_a_message_reaches_nodes_first_and_then_their_gpus() -> None:
    machine = ClusterModel("m", H200, 1e9, 4, 3, Fabric(1.0, 1e9), Fabric(10.0, 1e9))
    lag, hold, far = machine.broadcast_times(0, 5, 11, np.arange(12))  # 5: GPU 1 of node 1
    assert not lag.any()
    assert hold.tolist() == [11, 10, 11, 11, 1, 0, 1, 1, 11, 10, 11, 11]
    assert np.allclose(far * hold, [10, 10, 10, 10, 0, 0, 0, 0, 10, 10, 10, 10])


PIPELINE = Fabric(1.0, 1e9, broadcast=Broadcast.PIPELINE, piece=1e9)
CHAIN = ClusterModel("m", H200, 1e9, 4, 3, PIPELINE, replace(PIPELINE, latency=10.0, bandwidth=5e8))


@pytest.mark.parametrize("sender", range(11))
def test_pieces_pass_all_gpus_of_all_nodes_in_one_chain(sender: int) -> None:
    team = np.arange(11)  # the last node is not full
    place = (team - sender) % 11
    alike = replace(CHAIN, network=PIPELINE)
    lag, hold, _ = alike.broadcast_times(7e9, sender, 10, team)
    one = PIPELINE.broadcast_times(7e9, place, 10)
    others = team != sender
    assert np.allclose((lag + hold)[others], (one.lag + one.hold)[others])
    # The first piece takes 2 s in a node and 12 between nodes, each other one 2 at the slower pace.
    lag, hold, far = CHAIN.broadcast_times(7e9, sender, 10, team)
    hops = [12 if (sender + hop) % 11 % 4 == 0 else 2 for hop in range(1, 11)]
    first = np.cumsum([0, *hops])[place]
    assert np.allclose((lag + hold)[others], first[others] + 6 * 2)
    crossed = np.cumsum([0, *(hop == 12 for hop in hops)])[place]
    expected = (12 * crossed + 12 * (crossed > 0)) / (first + 12)
    assert np.allclose(far[others], expected[others])
    assert (lag >= 0).all()


def test_many_receivers_take_a_pipeline_hardly_longer_than_one() -> None:
    wide = replace(CHAIN, node=replace(LINK, broadcast=Broadcast.PIPELINE), nodes=64,
                   network=Fabric(1.4e-5, 5e10, 8, Broadcast.PIPELINE))  # fmt: skip
    lag, hold, _ = wide.broadcast_times(4e9, 0, 255, np.arange(256))
    assert (lag + hold)[1:].max() < 1.6 * (lag + hold)[1]
    direct = replace(wide, node=LINK, network=replace(wide.network, broadcast=Broadcast.DIRECT))
    assert direct.broadcast_times(4e9, 0, 255, np.arange(256))[1].max() > 60 * hold[1]


def test_a_panel_beside_updates() -> None:
    narrow, updates = Overlap(2.0, 0.25), [UpdateCall(0.0, 3.0), UpdateCall(10.0, 5.0)]
    panel = [PanelCall(1.0, 2.0, narrow), PanelCall(0.0, 1.0), PanelCall(9.0, 1.0, narrow)]
    spans = panel_spans(panel, updates)
    # From 1 to 3 2/3 half as fast, as the update has 2 s left at 3/4 of its speed.
    assert [span.stop for span in spans] == pytest.approx([1 + 8 / 3 + 2 / 3, 16 / 3, 10.0])
    assert [span.speed for span in spans] == [0.75, 0.0, 0.75]
    assert update_end(0.0, 3.0, spans) == pytest.approx(11 / 3)
    assert update_end(5.0, 0.5, spans) == pytest.approx(16 / 3 + 0.5)


def test_a_million_on_a_thousand_gpus_takes_seconds() -> None:
    machine = replace(NODE, gpus_per_node=8, nodes=128)
    start = time.perf_counter()
    run = simulate_at_scale(ROUTINES["lu"].tasks, TileLayout(10**6, 10**6, 1024), machine, 1024)
    assert time.perf_counter() - start < 30  # 1 s where nothing else runs
    assert run.makespan > 2 / 3 * 1e18 / (1024 * H200.gemm_rate)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="node has 64 GPUs, not 65"):
        simulate_at_scale(ROUTINES["lu"].tasks, TileLayout(100, 100, 10), NODE, 65)


def test_an_empty_matrix_takes_no_time() -> None:
    run = simulate_at_scale(ROUTINES["qr"].tasks, TileLayout(0, 0, 10), NODE, 3)
    assert run.makespan == 0
