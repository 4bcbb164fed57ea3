"""Programs: what is merged, what travels, and that they end, whoever runs them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    ReceiveMessage,
    SendMessage,
    StoreRows,
)
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import (
    Engine,
    LazyGpu,
    Setup,
    arriving,
    assert_close,
    covering,
    pivots,
    random,
    run_by_messages,
    run_in_threads,
    set_up,
    spread,
)

NB = 4
#: Tile rows, tile columns, elements cut off the last tiles, tile columns of right-hand sides.
SHAPES = [
    *((m, n, cut, 0) for m, n in itertools.product((1, 2, 4, 7), repeat=2) for cut in (0, 1)),
    *((n, n, cut, r) for n in (1, 2, 3, 5, 8) for cut in (0, 1) for r in (1, 2, 3)),
]  # fmt: skip
#: Look-ahead.
DEPTHS = (0, 1, 2, 3)
#: Whether one more worker factors panels, and whether owners share memory.
KINDS = [(False, False), (False, True), (True, False)]
#: Owners, whether one more worker factors panels, look-ahead, whether they share memory.
TEAMS = [
    (owners, panel, depth, shared)
    for owners, panel, depth, shared in itertools.product(
        (1, 2, 3, 5), (False, True), DEPTHS, (False, True)
    )
    if (panel, shared) in KINDS
]


def layout_of(mt: int, nt: int, cut: int, rt: int) -> TileLayout:
    return TileLayout(mt * NB - cut, nt * NB - cut, NB, max(rt * NB - cut, 0))


def model_of(owners: int, panel: bool, *, virtual: bool) -> MachineModel:
    kinds = ["gpu"] * owners + ["cpu"] * panel
    return MachineModel.nominal(
        tuple(WorkerInfo(f"w{i}", kind, virtual=virtual) for i, kind in enumerate(kinds))
    )


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    with threadpool_limits(1):
        yield


# --- that they end


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("owners", "depth", "panel", "shared"),
    [*spread(covering((1, 2, 3), DEPTHS, KINDS)),
     *(pytest.param(5, depth, *kind, marks=pytest.mark.slow)
       for depth, kind in itertools.product(DEPTHS, KINDS))],
)  # fmt: skip
def test_programs_end(owners: int, panel: bool, depth: int, shared: bool, half: int) -> None:
    """A shape's columns are there, or arrive, for one look-ahead and the next in turns."""
    models = [model_of(owners, panel, virtual=virtual) for virtual in (True, False)]
    for number, shape in enumerate(SHAPES):
        layout = layout_of(*shape)
        arrival = arriving(layout) if (number + depth + half) % 2 else None
        made = set_up(
            layout, owners, panel_worker=panel, depth=depth, shared=shared, arrival=arrival
        )
        for model in models:
            run = simulate(made.programs, made.traffic, made.graph, model)
            assert run.makespan > 0


def check(made: Setup, found: tuple[np.ndarray, dict], a: np.ndarray, b: np.ndarray | None) -> None:
    array, values = found
    layout = made.graph.layout
    lu, piv = scipy.linalg.lu_factor(a)
    assert np.array_equal(pivots(values, layout), piv)
    assert_close(array[:, : layout.n], lu)
    if b is not None:
        assert_close(array[:, layout.n :], np.linalg.solve(a, b), limit=1e-8)


def problem(layout: TileLayout) -> tuple[np.ndarray, np.ndarray | None]:
    b = random(layout.m, layout.nrhs, seed=2) if layout.nrhs else None
    return random(layout.m, layout.n, seed=1), b


REAL_SHAPES = [(1, 1, 1, 0), (5, 5, 1, 0), (7, 3, 1, 0), (3, 7, 1, 0), (6, 6, 1, 1), (5, 5, 0, 3)]
REAL_TEAMS = [team for team in TEAMS if team[0] != 5 and team[2] < 3]


@pytest.mark.parametrize(("owners", "panel", "depth", "shared"), REAL_TEAMS)
def test_threads_compute_the_factors(owners: int, panel: bool, depth: int, shared: bool) -> None:
    for shape in REAL_SHAPES:
        layout = layout_of(*shape)
        made = set_up(layout, owners, panel_worker=panel, depth=depth, shared=shared)
        kind = CpuDevice if shared else VirtualGpu
        devices = [kind() for _ in range(owners)] + [CpuDevice()] * panel
        a, b = problem(layout)
        check(made, run_in_threads(made, devices, a, b), a, b)


@pytest.mark.parametrize(
    ("owners", "panel", "depth"), [team[:3] for team in REAL_TEAMS if not team[3]]
)
def test_messages_are_all_that_workers_need(owners: int, panel: bool, depth: int) -> None:
    for shape, in_order in itertools.product(REAL_SHAPES, (False, True)):
        layout = layout_of(*shape)
        made = set_up(layout, owners, panel_worker=panel, depth=depth)
        a, b = problem(layout)
        check(made, run_by_messages(made, a, b, in_order=in_order), a, b)


LAZY_SHAPES = [(5, 5, 1, 0), (7, 3, 1, 0), (3, 9, 1, 0), (8, 8, 1, 3), (6, 6, 0, 1)]


@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("owners", "panel", "depth"), [team[:3] for team in TEAMS if team[0] != 5 and not team[3]]
)
def test_events_order_the_queues(owners: int, panel: bool, depth: int, late: bool) -> None:
    for shape in LAZY_SHAPES:
        layout = layout_of(*shape)
        arrival = arriving(layout) if late else None
        made = set_up(layout, owners, panel_worker=panel, depth=depth, arrival=arrival)
        a, b = problem(layout)
        for seed in range(3):
            engine = Engine(seed)
            devices = [LazyGpu(engine) for _ in range(owners)]
            devices += [CpuDevice() if seed else LazyGpu(engine)] * panel
            check(made, run_in_threads(made, devices, a, b), a, b)


def wrong_seeds(made: Setup) -> int:
    """On how many of ten seeds lazy queues compute something else than LAPACK."""
    layout, wrong = made.graph.layout, 0
    a, b = problem(layout)
    expected = [scipy.linalg.lu_factor(a)[0]]
    if b is not None:
        expected.append(np.linalg.solve(a, b))
    for seed in range(10):
        engine = Engine(seed)
        # Threads that take turns issue in an order in which little goes wrong.
        devices = [LazyGpu(engine, enqueues=False) for _ in made.programs]
        array, _ = run_in_threads(made, devices, a, b)
        wrong += not np.allclose(array, np.hstack(expected), rtol=0, atol=1e-6)
    return wrong


def without(made: Setup, what: str, op: str) -> Setup:
    """Let the instructions `op` wait for nothing."""
    for program in made.programs:
        for instruction in program.instructions:
            if instruction.op == op:
                setattr(instruction, what, ())
    return made


@pytest.mark.parametrize(
    ("shape", "owners", "what", "op"),
    [((6, 6, 1, 0), 1, "waits", "call"), ((6, 6, 1, 0), 2, "waits", "call"),
     ((8, 8, 1, 3), 2, "waits", "receive"), ((4, 16, 1, 0), 5, "awaits", "call"),
     ((8, 8, 1, 0), 3, "waits", "store")],
)  # fmt: skip
def test_a_missing_event_would_be_seen(
    shape: tuple[int, int, int, int], owners: int, what: str, op: str
) -> None:
    made = set_up(layout_of(*shape), owners, depth=1)
    assert wrong_seeds(made) == 0
    assert wrong_seeds(without(made, what, op)) > 0


# --- what they consist of


def columns_of(made: Setup, program: int, first: int, last: int) -> list[int]:
    """The worker's own tile columns from `first` to `last`."""
    own = made.programs[program].columns
    return [c for c in own if first <= c <= last] or [first]


@pytest.mark.parametrize(("owners", "panel", "depth", "shared"), TEAMS[:24])
@pytest.mark.parametrize("shape", [(7, 7, 1, 2), (7, 4, 1, 0), (4, 7, 1, 0)])
def test_every_task_is_called_once_by_its_worker(
    shape: tuple[int, int, int, int], owners: int, panel: bool, depth: int, shared: bool
) -> None:
    made = set_up(layout_of(*shape), owners, panel_worker=panel, depth=depth, shared=shared)
    expected = sorted(
        (worker, task.kind, task.step, task.column, task.updates + task.writes)
        for worker, task in zip(made.placement, made.graph.tasks, strict=True)
    )
    found = []
    for w, program in enumerate(made.programs):
        assert program.worker == w
        for call in program.select(CallKernel):
            count = len(columns_of(made, w, call.first, call.last))
            for column in columns_of(made, w, call.first, call.last):
                task = next(
                    t for t in made.graph.tasks
                    if (t.kind, t.step, t.column) == (call.kind, call.step, column)
                    and (count > 1 or t.accesses == call.regions)
                )  # fmt: skip
                found.append((w, task.kind, task.step, task.column, task.updates + task.writes))
    assert sorted(found) == expected
    total = sum(sum(program.call_flops(made.graph).values()) for program in made.programs)
    assert total == pytest.approx(sum(map(made.graph.flops, made.graph.tasks)))


@pytest.mark.parametrize("owners", [1, 2, 3])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_trailing_update_of_a_step_is_one_call_a_worker(owners: int, depth: int) -> None:
    made = set_up(layout_of(9, 9, 0, 0), owners, depth=depth)
    for w, program in enumerate(made.programs):
        for k in range(9):
            wide = [
                i for i in program.select(CallKernel)
                if (i.kind, i.step) == ("gemm", k) and i.first > k + depth
            ]  # fmt: skip
            rest = [column for column in program.columns if column > k + depth]
            covered = [(i.first, i.last) for i in wide]
            assert covered == ([(rest[0], rest[-1])] if rest and k < 8 else [])
            assert all(i.queue == 1 for i in wide), w


def test_columns_apart_in_shared_memory_are_not_merged() -> None:
    made = set_up(layout_of(9, 9, 0, 0), 2, depth=1, shared=True)
    calls = [i for program in made.programs for i in program.select(CallKernel)]
    assert all(call.first == call.last for call in calls)
    alone = set_up(layout_of(9, 9, 0, 0), 1, depth=0, shared=True)
    assert max(i.last - i.first for i in alone.programs[0].select(CallKernel)) == 7


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_look_ahead_factors_a_panel_before_the_rest_of_the_step(depth: int) -> None:
    made = set_up(layout_of(8, 8, 0, 0), 1, depth=depth)
    calls = made.programs[0].select(CallKernel)
    place = {(i.kind, i.step, i.first): at for at, i in enumerate(calls)}
    for k in range(8 - depth - 1):
        rest = place["gemm", k, k + depth + 1]  # the wide update of step k
        assert all(place["getrf", c, c] < rest for c in range(k + depth + 1))
        assert place["getrf", k + depth + 1, k + depth + 1] > rest


@pytest.mark.parametrize("owners", [1, 2])
def test_a_panel_is_more_urgent_than_the_updates_of_the_step_before_and_no_others(
    owners: int,
) -> None:
    for program in set_up(layout_of(7, 7, 0, 2), owners, depth=1).programs:
        calls = program.select(CallKernel)
        for panel in (call for call in calls if call.queue is Queue.PANEL):
            for update in (call for call in calls if call.queue is Queue.UPDATE):
                assert (panel.urgency < update.urgency) == (update.step >= panel.step - 1)


@pytest.mark.parametrize("owners", [1, 2])
def test_what_is_no_call_is_as_urgent_as_the_call_that_it_is_for(owners: int) -> None:
    """A send is for the call before it, anything else for the next one."""
    for program in set_up(layout_of(7, 7, 0, 2), owners, depth=1).programs:
        calls = program.select(CallKernel)
        for at, instruction in enumerate(program.instructions):
            following = [i.urgency for i in program.instructions[at:] if isinstance(i, CallKernel)]
            if isinstance(instruction, SendMessage):
                assert instruction.urgency == program.instructions[at - 1].urgency
            elif following:
                assert instruction.urgency == following[0]
            else:
                assert instruction.urgency > max(i.urgency for i in calls)


def one_by_one(graph: TaskGraph) -> TaskGraph:
    """The same tasks, no two of them in a block."""
    tasks = TaskGraph(graph.layout)
    tasks.values, tasks.results = graph.values, graph.results
    for task in graph.tasks:
        tasks.add(
            task.kind, step=task.step, column=task.column,
            reads=task.reads, updates=task.updates, writes=task.writes,
        )  # fmt: skip
    return tasks


@pytest.mark.parametrize(("owners", "panel", "depth", "shared"), REAL_TEAMS)
def test_blocks_of_columns_give_the_programs_that_single_tasks_give(
    owners: int, panel: bool, depth: int, shared: bool
) -> None:
    """What is derived for a block at once is what follows task by task."""
    routines = {"lu": (7, 7, 1, 0), "solve": (6, 6, 1, 2), "cholesky": (7, 7, 0, 0),
                "qr": (7, 4, 1, 0), "lstsq": (5, 3, 0, 2)}  # fmt: skip
    for number, (routine, shape) in enumerate(routines.items()):
        layout = layout_of(*shape)
        arrival = arriving(layout) if number % 2 else None
        blocks = ROUTINES[routine].tasks(layout)
        tasks = one_by_one(blocks)
        assert all(block.single for block in tasks.blocks)
        assert len(tasks.blocks) == len(blocks) > len(blocks.blocks)
        assert blocks.tasks == tasks.tasks
        columns = Distribution.cyclic(layout.nt + layout.rt, [1.0] * owners + [0.0] * panel)
        made = [
            build_programs(
                graph, Placement(graph, columns, owners if panel else None), columns,
                owners + panel,
                depth=depth, arrival=arrival,
                shared=range(owners + panel) if shared else (), panels_alone=owners > 1,
            )
            for graph in (blocks, tasks)
        ]  # fmt: skip
        assert made[0][0] == made[1][0]
        assert made[0][1].messages == made[1][1].messages


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_an_update_waits_for_the_panel_of_its_worker(routine: str) -> None:
    """On several GPUs: with all of the GPU the panel is with the others sooner."""
    made = set_up(layout_of(9, 9, 1, 0), 3, routine=routine)
    waited = 0
    for program in made.programs:
        panel: int | None = None
        for place, call in enumerate(program.instructions):
            if not isinstance(call, CallKernel):
                continue
            if call.queue is Queue.PANEL and SPECS[call.kind].chain:
                panel = place
            elif call.queue is Queue.UPDATE and panel is not None:
                assert any(panel <= before for before in call.waits)
                waited, panel = waited + 1, None
    assert waited >= 6


# --- what travels


@pytest.mark.parametrize(("owners", "panel"), [*itertools.product((1, 2, 3), (False, True))])
@pytest.mark.parametrize("shape", [(6, 6, 1, 2), (6, 4, 0, 0), (4, 6, 1, 0), (1, 1, 0, 0)])
def test_messages_cover_every_flow_between_workers(
    shape: tuple[int, int, int, int], owners: int, panel: bool
) -> None:
    made = set_up(layout_of(*shape), owners, panel_worker=panel)
    graph, traffic, owner_of = made.graph, made.traffic, made.distribution.owners
    known: dict[int, list] = {w: [] for w in range(len(made.programs))}
    block_of = {b.index(c): b.number for b in graph.blocks for c in range(b.start, b.stop)}
    for task in graph.tasks:
        here = made.placement[task.index]
        needed = traffic.needs.get((block_of[task.index], here), ())
        known[here] += [traffic.messages[key] for key in needed]
        for writer, region in task.flows:
            there = owner_of[region.index] if writer < 0 else made.placement[writer]
            if there == here:
                continue
            carrying = [
                message for message in known[here]
                if (held := message.regions.get(region[:2]))
                and held.start <= region.start and region.stop <= held.stop
                and here in message.consumers
            ]  # fmt: skip
            written = {
                before
                for message in carrying
                for key in (message.key, *message.after)
                for before in traffic.messages[key].writers
            }
            assert carrying, (task, region)
            assert writer < 0 or writer in written, (task, region)
    for block, region in graph.last_writers("A"):
        owner = owner_of[region.index]
        if made.placement[block.index(region.index)] != owner:
            assert any(
                block.index(region.index) in message.writers and owner in message.consumers
                for message in traffic.messages.values()
            )


@pytest.mark.parametrize(("owners", "panel"), [(2, False), (3, True)])
def test_what_is_sent_is_received_once_by_each_consumer(owners: int, panel: bool) -> None:
    made = set_up(layout_of(7, 7, 1, 1), owners, panel_worker=panel)
    sent = [i.message for p in made.programs for i in p.select(SendMessage)]
    assert sorted(sent) == sorted(made.traffic.messages)
    for w, program in enumerate(made.programs):
        received = [i.message for i in program.select(ReceiveMessage)]
        expected = [key for key, m in made.traffic.messages.items() if w in m.consumers]
        assert sorted(received) == sorted(expected)
        slots = {i.slot for i in program.select(ReceiveMessage)}
        assert slots <= set(range(program.slots))


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(("owners", "panel"), [(2, False), (4, False), (1, True), (3, True)])
def test_panels_rotate_through_few_buffers(owners: int, panel: bool, depth: int) -> None:
    made = set_up(layout_of(16, 16, 1, 0), owners, panel_worker=panel, depth=depth)
    assert max(program.slots for program in made.programs) == depth + 2


def test_one_worker_sends_nothing() -> None:
    made = set_up(layout_of(5, 5, 1, 2), 1)
    assert not made.traffic.messages
    assert {i.op for i in made.programs[0].instructions} == {"load", "call", "store"}


@pytest.mark.parametrize(("owners", "panel"), [(1, False), (2, False), (3, True)])
def test_rows_above_the_last_write_are_stored_sooner(owners: int, panel: bool) -> None:
    """U, and not only what the composed swaps leave, is on its way before the run's end."""
    made = set_up(layout_of(7, 6, 1, 1), owners, panel_worker=panel)
    for program in made.programs:
        stored: dict[int, list[tuple[int, int, int]]] = {}
        for i in program.select(StoreRows):
            _, column, start, stop = i.region
            stored.setdefault(column, []).append((start, stop, max(i.waits, default=-1)))
        assert sorted(stored) == sorted(program.columns)
        for column, parts in stored.items():
            assert sum(stop - start for start, stop, _ in parts) == 7
            if column < 5:  # the others get no swaps at the end
                (top, edge, sooner), (below, end, later) = sorted(parts)
                assert (top, edge, below, end) == (0, column + 1, column + 1, 7)
                assert sooner < later
