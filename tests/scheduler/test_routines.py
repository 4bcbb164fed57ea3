"""All routines beside LU: in any order, in programs, by messages, on queues out of step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from hetero_la.algorithms.cholesky import cholesky_tasks, solve_positive_tasks
from hetero_la.algorithms.lu import inverse_tasks
from hetero_la.algorithms.qr import explicit_q_tasks, lstsq_tasks, minimum_norm_tasks, qr_tasks
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import INITIAL
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.lookahead import Order
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.program.instructions import CallKernel, ReceiveMessage, SendMessage
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import (
    DTYPES,
    Engine,
    LazyGpu,
    Problem,
    Setup,
    Values,
    arriving,
    assert_close,
    covering,
    priorities,
    problem,
    random_order,
    run_by_messages,
    run_in_threads,
    set_up,
)

NB = 4
TASKS = {
    "inverse": inverse_tasks, "cholesky": cholesky_tasks, "solve_positive": solve_positive_tasks,
    "qr": qr_tasks, "explicit_q": explicit_q_tasks, "lstsq": lstsq_tasks,
    "minimum_norm": minimum_norm_tasks,
}  # fmt: skip
#: Routine, rows, columns, right-hand sides: nothing, one tile, ragged, several, tall, wide.
CASES = [
    *(("cholesky", n, n, nrhs) for n, nrhs in ((0, 0), (1, 0), (4, 0), (19, 0), (28, 0), (19, 5))),
    *(("solve_positive", n, n, nrhs) for n, nrhs in ((1, 1), (4, 3), (19, 1), (23, 9))),
    *(("inverse", n, n, n) for n in (0, 1, 4, 19)),
    *(("qr", m, n, 0) for m, n in ((0, 0), (0, 3), (3, 0), (1, 1), (19, 19), (27, 10), (10, 27))),
    ("qr", 27, 10, 6), ("qr", 10, 27, 3),
    *(("explicit_q", m, n, columns) for m, n, columns in (
        (3, 0, 3), (1, 1, 1), (19, 19, 19), (27, 10, 27), (27, 10, 10), (10, 27, 10), (25, 3, 25))),
    *((routine, m, n, nrhs) for routine in ("lstsq", "minimum_norm") for m, n, nrhs in (
        (1, 1, 1), (4, 4, 2), (19, 19, 1), (27, 10, 7), (26, 23, 9), (21, 20, 1))),
]  # fmt: skip
#: Those whose every tile column has work for several workers.
LARGE = [case for case in CASES if min(case[1:3]) >= 10]
#: Owners, whether one more worker factors panels, look-ahead.
TEAM = ((1, 2, 4), (False, True), (0, 1, 2))
TEAMS = [*itertools.product(*TEAM)]


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    with threadpool_limits(1):
        yield


def layout_of(case: tuple[str, int, int, int]) -> TileLayout:
    return TileLayout(*case[1:3], NB, case[3])


def name_of(case: tuple[str, int, int, int]) -> str:
    return f"{case[0]}-{case[1]}x{case[2]}+{case[3]}"


def close_to(array: np.ndarray, expected: np.ndarray) -> None:
    limit = 1e-10 if np.finfo(array.dtype).eps < 1e-10 else 2e-2
    assert_close(array, expected, limit=limit)


def check(given: Problem, found: np.ndarray, values: Values) -> None:
    """The array and the per-step results, against SciPy's."""
    close_to(found, given.expected)
    steps = range(given.layout.kt)
    if "tau" in {name for name, _ in values} and steps:
        tau = np.concatenate([values["tau", k] for k in steps])
        close_to(tau, scipy.linalg.qr(given.a, mode="raw")[0][1])
    elif steps:
        assert not any(values["info", k].any() for k in steps)


# --- graphs


@pytest.mark.parametrize(
    ("case", "granularity", "dtype"), covering(CASES, ["column", "tile"], DTYPES)
)
def test_any_order_gives_the_same_result(
    case: tuple[str, int, int, int], granularity: str, dtype: str
) -> None:
    given = problem(case[0], layout_of(case), dtype)
    graph = TASKS[case[0]](given.layout, granularity)
    right = np.full((case[1], case[3]), np.nan, dtype) if given.b is None else given.b
    arrays = []
    for seed in range(3):
        array = np.asfortranarray(np.hstack([given.a, right]))
        order = random_order(graph, seed)
        check(given, array, run_in_order(graph, order, array, CpuDevice(), KernelOptions()))
        arrays.append(array)
    for array in arrays[1:]:
        assert np.array_equal(array, arrays[0])  # the same calls: the same bits


@pytest.mark.parametrize("granularity", ["column", "tile"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_edges_follow_from_the_accesses(case: tuple[str, int, int, int], granularity: str) -> None:
    writer: dict[tuple[str, int, int], int] = {}
    readers: dict[tuple[str, int, int], set[int]] = {}
    for task in TASKS[case[0]](layout_of(case), granularity).tasks:
        read, updated, written = (
            {(r.name, r.index, row) for r in regions for row in range(r.start, r.stop)}
            for regions in (task.reads, task.updates, task.writes)
        )
        after = {writer.get(tile, INITIAL) for tile in read | updated | written}
        for tile in updated | written:
            after |= readers.pop(tile, set())
            writer[tile] = task.index
        assert task.after == tuple(sorted(after - {INITIAL}))
        for tile in read:
            readers.setdefault(tile, set()).add(task.index)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_priorities_are_a_topological_order(case: tuple[str, int, int, int], depth: int) -> None:
    graph = TASKS[case[0]](layout_of(case))
    for arrival in (None, arriving(graph.layout)):
        keys = priorities(Order(graph, depth, arrival), graph)
        assert len(set(keys)) == len(graph)
        assert graph.is_topological(sorted(range(len(graph)), key=lambda index: keys[index]))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_both_granularities_are_the_same_work(case: tuple[str, int, int, int]) -> None:
    work = []
    for granularity in ("column", "tile"):
        graph = TASKS[case[0]](layout_of(case), granularity)
        work.append(sum(map(graph.flops, graph.tasks)))
    assert work[0] == pytest.approx(work[1])


def extra_work(graph: TaskGraph) -> float:
    """Operations that LAPACK does not count: inverses of diagonal tiles, and T."""
    extra = sum(graph.flops(task) for task in graph.tasks if task.kind.startswith("trtri"))
    for task in graph.tasks:
        if task.kind == "geqrf":
            long, short = sorted(graph.shape(task.updates[0]), reverse=True)
            extra += long * short**2
    return extra


@pytest.mark.parametrize(
    ("routine", "m", "n", "nrhs"),
    [("cholesky", 600, 600, 0), ("solve_positive", 600, 600, 600), ("qr", 600, 600, 0),
     ("qr", 900, 300, 0), ("qr", 300, 900, 0), ("lstsq", 900, 300, 300),
     ("minimum_norm", 900, 300, 300)],
)  # fmt: skip
def test_work_is_lapack_s(routine: str, m: int, n: int, nrhs: int) -> None:
    graph = TASKS[routine](TileLayout(m, n, 15, nrhs))
    work = sum(map(graph.flops, graph.tasks)) - extra_work(graph)
    assert work == pytest.approx(ROUTINES[routine].flops(m, n, nrhs), rel=0.05)


def test_an_explicit_q_leaves_zeros_out() -> None:
    graph = explicit_q_tasks(TileLayout(600, 600, 15, 600))
    work = sum(map(graph.flops, graph.tasks)) - extra_work(graph)
    assert work == pytest.approx(ROUTINES["explicit_q"].flops(600, 600, 600), rel=0.05)


def test_nothing_above_the_diagonal_is_touched() -> None:
    for granularity in ("column", "tile"):
        for task in cholesky_tasks(TileLayout(30, 30, NB), granularity).tasks:
            assert all(r.start >= r.index for r in task.accesses if r.name == "A")


@pytest.mark.slow
def test_graphs_of_full_size_have_as_many_tasks_as_formulas_say() -> None:
    layout = TileLayout(65536, 65536, 1024)
    assert len(cholesky_tasks(layout)) == 64 + 2 * 63 + 63 * 64 // 2
    tiles = 64 + 63 + 63 * 64 // 2 + sum(r * (r + 1) // 2 for r in range(1, 64))
    assert len(cholesky_tasks(layout, "tile")) == tiles
    assert len(qr_tasks(layout)) == 64 + 63 * 64 // 2 + 64


# --- programs


def run_all(made: Setup, given: Problem, engine: Engine | None, panel: bool) -> None:
    count = len(made.programs) - panel
    devices = [LazyGpu(engine) if engine else VirtualGpu() for _ in range(count)]
    devices += [CpuDevice()] * panel
    check(given, *run_in_threads(made, devices, given.a, given.b))


@pytest.mark.parametrize(("owners", "panel", "depth"), TEAMS)
@pytest.mark.parametrize("routine", TASKS)
@pytest.mark.exhaustive
def test_programs_of_every_team_end(routine: str, owners: int, panel: bool, depth: int) -> None:
    kinds = ["gpu"] * owners + ["cpu"] * panel
    models = [
        MachineModel.nominal(
            tuple(WorkerInfo(f"w{i}", kind, virtual=virtual) for i, kind in enumerate(kinds))
        )
        for virtual in (False, True)
    ]
    for case in (case for case in CASES if case[0] == routine):
        layout = layout_of(case)
        for arrival in (None, arriving(layout)):
            made = set_up(
                layout, owners, panel_worker=panel, depth=depth, arrival=arrival,
                routine=routine,
            )  # fmt: skip
            for model in models:
                run = simulate(made.programs, made.traffic, made.graph, model)
                assert run.makespan > 0 or not len(made.graph)


@pytest.mark.parametrize("owners", [1, 2])
@pytest.mark.parametrize("tiles", [5, 7])
@pytest.mark.parametrize("routine", ["inverse", "inverse_positive", "solve"])
def test_programs_end_where_right_hand_sides_arrive_last(
    routine: str, tiles: int, owners: int
) -> None:
    """The worker that factors panels must not wait for readers that wait for a later panel."""
    layout = TileLayout(tiles * NB, tiles * NB, NB, tiles * NB)
    made = set_up(
        layout, owners, panel_worker=True, depth=0, routine=routine,
        arrival=lambda column: column // 2,
    )  # fmt: skip
    team = (*(WorkerInfo(f"w{i}", "gpu") for i in range(owners)), WorkerInfo("panels", "cpu"))
    run = simulate(made.programs, made.traffic, made.graph, MachineModel.nominal(team))
    assert run.makespan > 0


@pytest.mark.parametrize(("owners", "panel", "depth", "routine"), covering(*TEAM, TASKS))
def test_programs_in_threads_give_scipy_s_result(
    routine: str, owners: int, panel: bool, depth: int
) -> None:
    for case in (case for case in LARGE if case[0] == routine):
        given = problem(routine, layout_of(case))
        made = set_up(given.layout, owners, panel_worker=panel, depth=depth, routine=routine)
        run_all(made, given, None, panel)


@pytest.mark.parametrize("owners", [1, 2, 3])
@pytest.mark.parametrize("routine", TASKS)
def test_programs_in_threads_that_share_memory_give_it_too(routine: str, owners: int) -> None:
    for depth, case in itertools.product((0, 2), [c for c in LARGE if c[0] == routine]):
        given = problem(routine, layout_of(case))
        made = set_up(given.layout, owners, depth=depth, shared=True, routine=routine)
        devices = [CpuDevice() for _ in range(owners)]
        check(given, *run_in_threads(made, devices, given.a, given.b))


@pytest.mark.parametrize(("owners", "panel", "depth", "routine"), covering(*TEAM, TASKS))
def test_messages_are_all_that_workers_need(
    routine: str, owners: int, panel: bool, depth: int
) -> None:
    for case in (case for case in LARGE if case[0] == routine):
        given = problem(routine, layout_of(case))
        made = set_up(given.layout, owners, panel_worker=panel, depth=depth, routine=routine)
        for in_order in (False, True):
            check(given, *run_by_messages(made, given.a, given.b, in_order=in_order))


@pytest.mark.parametrize(
    ("owners", "panel", "depth", "routine", "late"), covering(*TEAM, TASKS, [False, True])
)
def test_events_order_the_queues(
    routine: str, owners: int, panel: bool, depth: int, late: bool
) -> None:
    for case in (case for case in LARGE if case[0] == routine):
        given = problem(routine, layout_of(case))
        made = set_up(
            given.layout, owners, panel_worker=panel, depth=depth, routine=routine,
            arrival=arriving(given.layout) if late else None,
        )  # fmt: skip
        run_all(made, given, Engine(owners + depth), panel)


@pytest.mark.parametrize(
    ("case", "owners", "panel", "what", "op"),
    [(("cholesky", 27, 27, 0), 1, False, "waits", "call"),
     (("cholesky", 59, 59, 0), 2, False, "waits", "store"),
     (("solve_positive", 27, 27, 9), 2, False, "waits", "store"),
     (("qr", 27, 27, 0), 1, False, "waits", "call"),
     (("qr", 59, 59, 0), 2, False, "awaits", "call"),
     (("lstsq", 39, 27, 9), 2, True, "waits", "receive"),
     (("minimum_norm", 39, 27, 9), 2, False, "awaits", "call")],
)  # fmt: skip
def test_a_missing_event_would_be_seen(
    case: tuple[str, int, int, int], owners: int, panel: bool, what: str, op: str
) -> None:
    given = problem(case[0], layout_of(case))
    made = set_up(given.layout, owners, panel_worker=panel, routine=case[0])
    for program in made.programs:
        for instruction in program.instructions:
            if instruction.op == op:
                setattr(instruction, what, ())

    def is_wrong(seed: int) -> bool:
        engine = Engine(seed)
        devices = [LazyGpu(engine) for _ in made.programs]
        found, _ = run_in_threads(made, devices, given.a, given.b)
        return not np.allclose(found, given.expected, rtol=0, atol=1e-6)

    assert any(is_wrong(seed) for seed in range(10))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("owners", [1, 3])
@pytest.mark.parametrize("routine", TASKS)
def test_blocks_are_loaded_before_anything_is_done_to_them(
    routine: str, owners: int, late: bool
) -> None:
    """What a worker in another process is sent holds nothing for columns that it makes itself."""
    for case in (case for case in LARGE if case[0] == routine):
        given = problem(routine, layout_of(case))
        made = set_up(
            given.layout, owners, routine=routine,
            arrival=arriving(given.layout) if late else None,
        )  # fmt: skip
        for seed in range(3):
            engine = Engine(seed)
            devices = [LazyGpu(engine) for _ in range(owners)]
            check(given, *run_by_messages(made, given.a, given.b, devices=devices))


# --- what programs consist of


def calls_of(made: Setup, worker: int, kind: str) -> list[tuple[int, int, int]]:
    return [
        (i.step, i.first, i.last)
        for i in made.programs[worker].select(CallKernel)
        if i.kind == kind
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(("routine", "kind"), [("cholesky", "herk"), ("qr", "larfb_c")])
@pytest.mark.parametrize("shared", [False, True])
def test_one_worker_updates_in_one_call(routine: str, kind: str, depth: int, shared: bool) -> None:
    made = set_up(TileLayout(9 * NB, 9 * NB, NB), 1, depth=depth, shared=shared, routine=routine)
    wide = [call for call in calls_of(made, 0, kind) if call[1] > call[0] + depth]
    assert wide == [(k, k + depth + 1, 8) for k in range(8 - depth)]
    ahead = [call for call in calls_of(made, 0, kind) if call[1] <= call[0] + depth]
    assert sorted(ahead) == [
        (k, j, j) for k in range(9) for j in range(k + 1, min(k + depth, 8) + 1)
    ]


@pytest.mark.parametrize(("routine", "kind"), [("cholesky", "herk"), ("qr", "larfb_c")])
def test_each_of_two_workers_updates_in_one_call(routine: str, kind: str) -> None:
    made = set_up(TileLayout(9 * NB, 9 * NB, NB), 2, routine=routine)
    for worker in range(2):
        calls = calls_of(made, worker, kind)
        wide = [call for call in calls if call[1] > call[0] + 1 + (kind == "herk")]
        assert [k for k, _, _ in wide] == list(range(len(wide)))
        assert all(last >= 7 for _, _, last in wide)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_trapezoid_of_columns_apart_is_a_kernel_call_for_each(depth: int) -> None:
    made = set_up(TileLayout(9 * NB, 9 * NB, NB), 2, depth=depth, routine="cholesky")
    # What the next panel's column waits for does not wait for the other columns.
    for worker in range(2):
        calls = calls_of(made, worker, "herk")
        assert all(first == last for k, first, last in calls if first <= k + depth + 1)
        assert any(first < last for k, first, last in calls if first > k + depth + 1)
    called = [
        (i.step, *call)
        for program in made.programs
        for i in program.select(CallKernel)
        if i.kind == "herk"
        for call in i.kernel_calls()
    ]
    tasks = [t for t in made.graph.tasks if t.kind == "herk"]
    assert sorted(called) == sorted((t.step, t.column, t.column, t.accesses) for t in tasks)
    (one,) = set_up(TileLayout(9 * NB, 9 * NB, NB), 1, routine="cholesky").programs
    assert not any(i.stretches for i in one.select(CallKernel))  # the matrix's own neighbours


@pytest.mark.parametrize(
    ("routine", "kind"),
    [("solve_positive", "trsm_lc"), ("lstsq", "trsm"), ("minimum_norm", "trsm_uc"),
     ("inverse", "trsm")],
)  # fmt: skip
def test_right_hand_sides_are_solved_for_together(routine: str, kind: str) -> None:
    made = set_up(TileLayout(5 * NB, 5 * NB, NB, 5 * NB), 1, routine=routine)
    assert [call[1:] for call in calls_of(made, 0, kind)] == [(5, 9)] * 5


@pytest.mark.parametrize(("owners", "panel", "depth", "routine"), covering(*TEAM, TASKS))
def test_every_task_is_called_by_its_worker(
    routine: str, owners: int, panel: bool, depth: int
) -> None:
    chain = ("getrf", "netperm", "trtri", "potrf", "trtri_n", "geqrf")
    for case in (case for case in LARGE if case[0] == routine):
        made = set_up(layout_of(case), owners, panel_worker=panel, depth=depth, routine=routine)
        for task, worker in zip(made.graph.tasks, made.placement, strict=True):
            moved = panel and task.kind in chain
            assert worker == (owners if moved else made.distribution.owners[task.column])
        total = sum(sum(program.call_flops(made.graph).values()) for program in made.programs)
        assert total == pytest.approx(sum(map(made.graph.flops, made.graph.tasks)))
        sent = [i.message for p in made.programs for i in p.select(SendMessage)]
        assert sorted(sent) == sorted(made.traffic.messages)
        for worker, program in enumerate(made.programs):
            received = [i.message for i in program.select(ReceiveMessage)]
            wanted = [key for key, m in made.traffic.messages.items() if worker in m.consumers]
            assert sorted(received) == sorted(wanted)


def test_a_panel_worker_of_cholesky_gets_diagonal_tiles_only() -> None:
    made = set_up(TileLayout(9 * NB, 9 * NB, NB), 2, panel_worker=True, routine="cholesky")
    for message in made.traffic.messages.values():
        if 2 in message.consumers:
            assert message.key.panel
            assert [part.shape for part in message.parts] == [(NB, NB)]
        elif message.key.source == 2:
            last = message.key.step == 8
            assert {part.region.name for part in message.parts} == {"A"} | set("" if last else "W")
            assert {part.shape for part in message.parts} == {(NB, NB)}
