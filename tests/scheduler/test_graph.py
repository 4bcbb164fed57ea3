"""Task graphs: edges, orders, counts, and who gets which task when."""

from __future__ import annotations

from collections.abc import Iterator

import networkx
import numpy as np
import pytest
import scipy.linalg

from hetero_la.algorithms.lu import lu_tasks, solve_tasks
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import INITIAL, OWN, Region, Task
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.lookahead import Order
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import (
    DTYPES,
    arriving,
    assert_close,
    covering,
    pivots,
    priorities,
    random,
    random_order,
    spread,
)

GRANULARITIES = ("column", "tile")
SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (3, 3), (13, 13), (13, 5), (5, 13)]
LAYOUTS = [TileLayout(m, n, 3) for m, n in SHAPES] + [
    TileLayout(n, n, 3, nrhs) for n in (0, 2, 3, 13) for nrhs in (1, 3, 7)
]


def build(layout: TileLayout, granularity: str) -> TaskGraph:
    return (solve_tasks if layout.nrhs else lu_tasks)(layout, granularity)


def tiles(regions: tuple[Region, ...]) -> Iterator[tuple[str, int, int]]:
    for name, index, start, stop in regions:
        for row in range(start, stop):
            yield name, index, row


# --- edges


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_edges_follow_from_the_accesses(layout: TileLayout, granularity: str) -> None:
    writer: dict[tuple[str, int, int], int] = {}
    readers: dict[tuple[str, int, int], set[int]] = {}
    for task in build(layout, granularity).tasks:
        touched = list(tiles(task.reads + task.updates))
        flows = sorted((w, tile) for w, region in task.flows for tile in tiles((region,)))
        assert flows == sorted((writer.get(tile, INITIAL), tile) for tile in touched)
        after = {writer.get(tile, INITIAL) for tile in touched}
        for tile in tiles(task.updates + task.writes):
            after |= {writer.get(tile, INITIAL)} | readers.pop(tile, set())
        assert task.after == tuple(sorted(after - {INITIAL}))
        for tile in tiles(task.reads):
            readers.setdefault(tile, set()).add(task.index)
        for tile in tiles(task.updates + task.writes):
            writer[tile] = task.index


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_last_writers_cover_the_matrix(layout: TileLayout, granularity: str) -> None:
    graph = build(layout, granularity)
    last: dict[tuple[str, int, int], int] = {}
    for task in graph.tasks:
        last.update(dict.fromkeys(tiles(task.updates), task.index))
    found = {
        tile: block.index(region.index)
        for block, region in graph.last_writers("A")
        for tile in tiles((region,))
    }
    assert found == last


def test_a_write_in_the_middle_cuts_a_region() -> None:
    graph = TaskGraph(TileLayout(10, 2, 2))
    A = graph.matrix("A")
    graph.add("getrf", step=0, column=0, updates=[A[0:, 0]])
    graph.add("gemm", step=0, column=0, reads=[A[:2, 0]])
    graph.add("gemm", step=0, column=0, updates=[A[1:3, 0]])
    graph.add("gemm", step=0, column=0, reads=[A[0:, 0]])
    whole, top, middle, reader = graph.tasks
    assert (top.after, middle.after, reader.after) == ((0,), (0, 1), (0, 2))
    assert middle.flows == ((whole.index, A[1:2, 0]), (whole.index, A[2:3, 0])) or (
        middle.flows == ((whole.index, A[1:3, 0]),)
    )
    assert reader.flows == ((0, A[:1, 0]), (2, A[1:3, 0]), (0, A[3:, 0]))


# --- orders


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_only_topological_orders_pass_for_such(granularity: str) -> None:
    graph = lu_tasks(TileLayout(9, 9, 3), granularity)
    order = list(range(len(graph)))
    assert graph.is_topological(order)
    assert not graph.is_topological(order[:-1])
    assert not graph.is_topological([*order, 0])
    assert not graph.is_topological([*order[:-1], 0])
    for task in graph.tasks:
        for before in task.after:
            swapped = order.copy()
            swapped[before], swapped[task.index] = task.index, before
            assert not graph.is_topological(swapped)


def test_another_order_is_refused() -> None:
    graph = lu_tasks(TileLayout(4, 4, 2))
    with pytest.raises(ValueError, match="not a topological order"):
        run_in_order(graph, range(3), random(4), CpuDevice(), KernelOptions())


@pytest.mark.parametrize(
    ("m", "n", "nrhs", "granularity", "dtype"),
    spread(
        covering(
            [
                (0, 0, 0),
                (1, 1, 1),
                (8, 8, 0),
                (37, 37, 0),
                (41, 19, 0),
                (19, 41, 0),
                (37, 37, 1),
                (37, 37, 19),
            ],
            GRANULARITIES,
            DTYPES,
        )
    ),
)
def test_any_order_gives_the_same_factors(
    m: int, n: int, nrhs: int, granularity: str, dtype: str
) -> None:
    layout = TileLayout(m, n, 8, nrhs)
    graph = build(layout, granularity)
    a, b = random(m, n, dtype, seed=1), random(m, nrhs, dtype, seed=2)
    found = []
    for seed in range(3):
        array = np.asfortranarray(np.hstack([a, b]))
        order = random_order(graph, seed)
        values = run_in_order(graph, order, array, CpuDevice(), KernelOptions())
        found.append((array, pivots(values, layout)))
    for array, piv in found[1:]:
        assert np.array_equal(array, found[0][0])  # the same calls: the same bits
        assert np.array_equal(piv, found[0][1])
    if m and n:
        lu, piv = scipy.linalg.lu_factor(a)
        assert np.array_equal(found[0][1], piv)
        assert_close(found[0][0][:, :n], lu)


# --- size and analysis


@pytest.mark.slow
def test_graphs_of_full_size_have_as_many_tasks_as_formulas_say() -> None:
    layout = TileLayout(65536, 65536, 1024)
    panels, updates = 64 + 2 * 63, 3 * 63 * 64 // 2
    columns = panels + updates + 2 * 63
    assert len(lu_tasks(layout)) == columns == 6364
    tiles = columns + sum(r * r - r for r in range(1, 64))  # gemm, tile by tile
    assert len(lu_tasks(layout, "tile")) == tiles == 89_692


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_both_granularities_are_the_same_work(layout: TileLayout) -> None:
    work = [sum(map(g.flops, g.tasks)) for g in (build(layout, x) for x in GRANULARITIES)]
    assert work[0] == pytest.approx(work[1])


def test_work_is_lapack_s() -> None:
    n = 600
    graph = lu_tasks(TileLayout(n, n, 10))
    work = sum(graph.flops(task) for task in graph.tasks if task.kind != "trtri")
    assert work == pytest.approx(2 / 3 * n**3, rel=0.02)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_networkx_graph_has_the_same_tasks_and_edges(granularity: str) -> None:
    layout = TileLayout(10, 10, 4, nrhs=2)
    graph = solve_tasks(layout, granularity)
    nx = graph.to_networkx(np.float32)
    assert networkx.is_directed_acyclic_graph(nx)
    assert set(nx.nodes) == set(range(len(graph)))
    assert set(nx.edges) == {(before, t.index) for t in graph.tasks for before in t.after}
    for task in graph.tasks:
        node = nx.nodes[task.index]
        assert set(node) == {"kind", "step", "column", "flops", "bytes"}
        assert (node["kind"], node["step"], node["column"]) == (task.kind, task.step, task.column)
        assert node["flops"] == graph.flops(task)
    panel = nx.nodes[0]
    assert (panel["kind"], panel["bytes"]) == ("getrf", 4 * (10 * 4 + 4 + 1))
    path = networkx.dag_longest_path(nx)
    kinds = [nx.nodes[index]["kind"] for index in path]
    assert kinds.count("getrf") == layout.kt  # every panel is on the longest path
    assert next(networkx.topological_sort(nx)) == 0


# --- owners and order of work


@pytest.mark.parametrize(
    ("columns", "weights", "owners"),
    [(0, [1], ()), (5, [1], (0,) * 5), (5, [1, 1], (0, 1, 0, 1, 0)),
     (7, [1, 1, 1], (0, 1, 2, 0, 1, 2, 0)), (6, [2, 1], (0, 0, 1, 0, 0, 1)),
     (4, [0, 1, 1], (1, 2, 1, 2)), (4, [1, 0], (0,) * 4)],
)  # fmt: skip
def test_columns_go_round_by_the_workers_speeds(
    columns: int, weights: list[float], owners: tuple[int, ...]
) -> None:
    distribution = Distribution.cyclic(columns, weights)
    assert distribution.owners == owners
    for w in range(len(weights)):
        assert distribution.columns(w) == [j for j in range(columns) if owners[j] == w]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_turning_is_fairer(workers: int) -> None:
    """What is left of the matrix is shared out evenly, and nobody always has more of it."""
    owners = Distribution.cyclic(8 * workers, [1.0] * workers, alternating=True).owners
    more = [0] * workers
    for step in range(len(owners)):
        left = [owners[step:].count(w) for w in range(workers)]
        assert max(left) - min(left) <= (2 if workers > 2 else 1)
        for w in range(workers):
            more[w] += left[w]
    assert max(more) - min(more) <= len(owners) / 2
    plain = Distribution.cyclic(8 * workers, [1.0] * workers).owners
    assert [owners.count(w) for w in range(workers)] == [plain.count(w) for w in range(workers)]


def test_faster_workers_own_more() -> None:
    owners = Distribution.cyclic(100, [3.0, 1.0]).owners
    assert owners.count(0) == 75


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0]])
def test_somebody_must_own(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="no worker may own columns"):
        Distribution.cyclic(3, weights)


def panels_of(task: Task) -> bool:
    return task.kind in ("getrf", "netperm", "trtri")


def test_owner_computes_and_panels_may_go_elsewhere() -> None:
    graph = solve_tasks(TileLayout(20, 20, 4, nrhs=6))
    distribution = Distribution.cyclic(7, [1, 1, 0])
    for task, worker in zip(graph.tasks, Placement(graph, distribution), strict=True):
        assert worker == distribution.owners[task.column]
    for task, worker in zip(graph.tasks, Placement(graph, distribution, 2), strict=True):
        assert worker == (2 if panels_of(task) else distribution.owners[task.column])


ORDERED = [
    TileLayout(24, 24, 4), TileLayout(24, 12, 4), TileLayout(12, 40, 4), TileLayout(24, 24, 4, 10)
]  # fmt: skip


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ORDERED, ids=str)
def test_priorities_are_a_topological_order_with_bounded_look_ahead(
    layout: TileLayout, depth: int
) -> None:
    graph = build(layout, "column")
    order_of = Order(graph, depth)
    keys = priorities(order_of, graph)
    assert len(set(keys)) == len(graph)
    order = sorted(range(len(graph)), key=lambda index: keys[index])
    assert graph.is_topological(order)
    position = {index: at for at, index in enumerate(order)}
    panels = {t.step: position[t.index] for t in graph.tasks if t.kind == "getrf"}
    for task in graph.tasks:
        if task.kind != "gemm" or task.step >= layout.kt:
            continue
        ahead = {c for c, at in panels.items() if at < position[task.index]}
        if order_of.phase(task.step, task.column)[1] == 0:
            assert task.column <= task.step + depth
        else:
            assert ahead == set(range(min(task.step + depth + 1, layout.kt)))


def test_work_on_a_column_waits_for_its_arrival() -> None:
    graph = lu_tasks(TileLayout(16, 16, 4))
    order_of = Order(graph, 0, arrival=lambda column: 2 if column == 3 else 0)
    keys = priorities(order_of, graph)
    late = [t for t in graph.tasks if (t.step, t.column) == (0, 3)]
    assert {keys[t.index][0] for t in late} == {2}
    order = sorted(range(len(graph)), key=lambda index: keys[index])
    assert graph.is_topological(order)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("slow", [0, 1, 2, 50])
@pytest.mark.parametrize("layout", ORDERED, ids=str)
def test_arrivals_keep_the_order_topological(layout: TileLayout, slow: int, depth: int) -> None:
    graph = build(layout, "column")
    order_of = Order(graph, depth, arriving(layout, slow))
    keys = priorities(order_of, graph)
    assert graph.is_topological(sorted(range(len(graph)), key=lambda index: keys[index]))


# --- kernels called by name


def test_a_call_of_a_kernel_is_a_task_on_what_its_record_says() -> None:
    g = GraphBuilder(TileLayout(6, 6, 2))
    A, ipiv = g.matrix("A"), g.per_step("ipiv", lambda k: (2,), np.int32)
    info, perm = (g.per_step(name, lambda at: (1,), np.int32) for name in ("info", "perm"))
    with g.step(1):
        g.getrf(A[1:, 1], ipiv[1], info[1])
        for j in g.column_blocks(0, 2):
            g.laswp(ipiv[1], A[2:, j])
    with g.step(3):
        g.compose(ipiv[1], None, perm[0])
    found = [(t.kind, t.step, t.column, t.reads, t.updates, t.writes) for t in g.tasks]
    assert found == [
        ("getrf", 1, 1, (), (A[1:, 1],), (ipiv[1], info[1])),
        ("laswp", 1, 0, (ipiv[1],), (A[2:, 0],), ()),
        ("laswp", 1, 1, (ipiv[1],), (A[2:, 1],), ()),
        ("compose", 3, 2, (ipiv[1],), (), (perm[0],)),
    ]


def test_a_call_that_its_record_does_not_know_is_refused() -> None:
    g = GraphBuilder(TileLayout(4, 4, 2))
    A, W = g.matrix("A"), g.per_step("W", lambda at: (2, 2))
    with pytest.raises(ValueError, match=r"trtri belongs to a step: call it inside `with graph"):
        g.trtri(A[0, 0], W[0])
    with g.step(0):
        with pytest.raises(ValueError, match="trtri takes A, W, not 1 arrays"):
            g.trtri(A[0, 0])
        with pytest.raises(ValueError, match="trmm needs W"):
            g.trmm(A[0, 0], None, A[0, 1])
    with pytest.raises(AttributeError, match="'GraphBuilder' object has no attribute 'getfr'"):
        g.getfr(A[0, 0])
    assert not g.tasks


# --- blocks of columns


def test_blocks_grow_with_the_steps_and_not_with_the_columns() -> None:
    graph = lu_tasks(TileLayout(64, 64, 1))
    assert len(graph) == 6364
    assert len(graph.blocks) < 8 * 64


@pytest.mark.parametrize(
    ("kind", "accesses", "message"),
    [
        ("gemm", {"reads": [("A", 2)]}, "depend on one another"),
        ("gemm", {"updates": [("A", 0)]}, "depend on one another"),
        ("gemm", {"updates": [("A", OWN + 1)]}, "depend on one another"),
        ("getrf", {"updates": [("A", OWN)]}, "depend on one another"),
    ],
)
def test_a_block_is_of_independent_columns(kind: str, accesses: dict, message: str) -> None:
    graph = TaskGraph(TileLayout(8, 8, 2))
    found = {key: [Region(name, index, 0, 4) for name, index in value]
             for key, value in accesses.items()}  # fmt: skip
    j = next(graph.column_blocks(1, 4))
    with pytest.raises(ValueError, match=message):
        graph.add(kind, step=0, column=j, **found)


def test_blocks_are_not_within_one_another_and_not_used_elsewhere() -> None:
    graph = TaskGraph(TileLayout(8, 8, 2))
    outer = next(graph.column_blocks(1, 4))
    assert outer == OWN
    with pytest.raises(ValueError, match="within one another"):
        next(graph.column_blocks(1, 4))
    with pytest.raises(ValueError, match="belongs in its loop"):
        graph.add("gemm", step=0, column=1, updates=[Region("A", 1, 0, 4)])
    other = TaskGraph(TileLayout(8, 8, 2))
    with pytest.raises(ValueError, match="belongs in its loop"):
        other.add("gemm", step=0, column=outer, updates=[Region("A", OWN, 0, 4)])


def test_rows_that_a_block_finds_must_lie_alike_in_all_its_columns() -> None:
    graph = TaskGraph(TileLayout(8, 8, 2))
    A = graph.matrix("A")
    for j in graph.column_blocks(0, 4):
        graph.add("herk", step=0, column=j, updates=[A[:2, j]])
    j = next(graph.column_blocks(0, 4))
    with pytest.raises(ValueError, match="finds other rows in tile column 0 than in 3"):
        graph.add("herk", step=1, column=j, updates=[A[j:, j]])
    with pytest.raises(ValueError, match="have rows, others none"):
        next(graph.row_blocks(j + 1))
