"""Programs order every two accesses to the same tile of which one writes it.

Programs that run in their own order cannot show that: only queues that wait for nothing else do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Instruction,
    LoadColumn,
    Program,
    ReceiveMessage,
    SendMessage,
    StoreRows,
)
from hetero_la.scheduler.program.messages import Message, MessageKey, Traffic
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import arriving, covering, set_up

Tile = tuple[str, int, int]  #: name, tile column (of a per-step value: step), tile row
Known = dict[tuple[int, Queue], int]  #: the latest instruction of each queue that has ended


def merged(*known: Known) -> Known:
    """What is known to have ended where all of these are."""
    found: Known = {}
    for one in known:
        for queue, place in one.items():
            found[queue] = max(place, found.get(queue, -1))
    return found


def ended_before(programs: Sequence[Program]) -> list[list[Known]]:
    """Of each instruction, what has ended for certain when it begins, and itself."""
    known: list[list[Known]] = [[] for _ in programs]
    reached: Known = {}  # of each queue, its latest instruction
    sent: dict[MessageKey, Known] = {}
    taken: dict[tuple[MessageKey, int], Known] = {}
    while any(len(known[p.worker]) < len(p.instructions) for p in programs):
        before = sum(map(len, known))
        for program in programs:
            worker = program.worker
            for place, i in enumerate(
                program.instructions[len(known[worker]) :], len(known[worker])
            ):
                message = i.message if isinstance(i, ReceiveMessage) else None
                if (message and message not in sent) or not taken.keys() >= set(i.awaits):
                    break
                last = reached.get((worker, i.queue), -1)
                now = merged(
                    *(known[worker][other] for other in (*i.waits, *([last] if last >= 0 else ()))),
                    *(taken[pair] for pair in i.awaits), sent[message] if message else {},
                    {(worker, i.queue): place},
                )  # fmt: skip
                known[worker].append(now)
                reached[worker, i.queue] = place
                if isinstance(i, SendMessage):
                    sent[i.message] = now
                taken |= {(key, worker): now for key in i.takes}
        assert sum(map(len, known)) > before, "the workers wait for each other"
    return known


class Accesses:
    """Tiles that instructions of one worker read and write, of those in its own memory."""

    def __init__(self, program: Program, graph: TaskGraph, traffic: Traffic) -> None:
        self._graph, self._traffic, self._columns = graph, traffic, program.columns

    def _tiles(self, regions: Iterable[Region]) -> set[Tile]:
        found: set[Tile] = set()
        for name, index, start, stop in regions:
            if name in self._graph.values:
                found.add((name, index, 0))
            elif index in self._columns:
                found |= {(name, index, row) for row in range(start, stop)}
        return found

    def of(self, i: Instruction) -> tuple[set[Tile], set[Tile]]:
        """Return the tiles that an instruction reads, and those that it writes."""
        match i:
            case CallKernel():
                return self._of_call(i)
            case LoadColumn():
                return set(), self._tiles([i.region])
            case StoreRows():
                return self._tiles([i.region]), set()
            case SendMessage():
                return self._tiles(self._message(i).regions.values()), set()
            case ReceiveMessage():
                regions = self._message(i).regions.values()
                return set(), self._tiles(r for r in regions if r.name not in self._graph.values)
        return set(), set()

    def _message(self, i: SendMessage | ReceiveMessage) -> Message:
        return self._traffic.messages[i.message]

    def _of_call(self, call: CallKernel) -> tuple[set[Tile], set[Tile]]:
        spec, read, written = SPECS[call.kind], set[Tile](), set[Tile]()
        names = [name for group in spec.arrays for name in group]
        for first, last, regions in call.kernel_calls():
            given: list[Region | None] = list(regions)
            if len(given) < len(names):  # without the optional ones
                rest = iter(regions)
                given = [None if name.endswith("?") else next(rest) for name in names]
            reads, updates, writes = (
                self._tiles(itertools.chain(*(self._columns_of(r, first, last, spec.trapezoid)
                                              for r in group)))
                for group in spec.accesses(tuple(given))
            )  # fmt: skip
            read |= reads | updates
            written |= updates | writes
        return read, written

    def _columns_of(self, region: Region, first: int, last: int, trapezoid: bool) -> list[Region]:
        """Return the regions of all columns of a call; of a trapezoid from the diagonal down."""
        name, index, start, stop = region
        if index != first or name in self._graph.values:
            return [region]
        down = 1 if trapezoid else 0
        return [
            Region(name, column, start + down * (column - first), stop)
            for column in range(first, last + 1)
        ]


def check(programs: Sequence[Program], graph: TaskGraph, traffic: Traffic) -> None:
    """Every two accesses of which one is a write are one after the other."""
    known = ended_before(programs)
    for program in programs:
        accesses, worker = Accesses(program, graph, traffic), program.worker
        written: dict[Tile, int] = {}
        read: dict[Tile, list[int]] = {}
        for place, i in enumerate(program.instructions):
            reads, writes = accesses.of(i)
            for tile in reads | writes:
                earlier = [written[tile]] if tile in written else []
                for other in earlier + (read.get(tile, []) if tile in writes else []):
                    before = program.instructions[other]
                    assert known[worker][place].get((worker, before.queue), -1) >= other, (
                        f"worker {worker}: {i.label} may meet {before.label} at {tile}"
                    )
            for tile in writes:
                written[tile], read[tile] = place, []
            for tile in reads - writes:
                read.setdefault(tile, []).append(place)


SHAPES = {
    "lu": (40, 35), "lu_nopivot": (35, 40), "cholesky": (40, 40), "qr": (40, 35),
    "solve": (40, 40), "solve_positive": (40, 40), "lstsq": (40, 35),
}  # fmt: skip


@pytest.mark.parametrize(
    ("routine", "owners", "panel", "depth", "late", "blocks"),
    covering([*SHAPES], (1, 2, 3), (False, True), range(3), (False, True), (1, 2)),
)
def test_programs(
    routine: str, owners: int, panel: bool, depth: int, late: bool, blocks: int
) -> None:
    nrhs = 7 if routine in ("solve", "solve_positive", "lstsq") else 0
    one = blocks if routine == "lu" else 1
    layout = TileLayout(*SHAPES[routine], 4, nrhs=nrhs, per_block=one, parts=blocks)
    arrival = arriving(layout) if late else None
    made = set_up(layout, owners, panel_worker=panel, depth=depth, arrival=arrival, routine=routine)
    check(made.programs, made.graph, made.traffic)


@pytest.mark.parametrize("routine", ["solve", "solve_nopivot", "solve_positive"])
@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("on_host", [True, False])
def test_programs_of_checked_solves(routine: str, panel: str, on_host: bool) -> None:
    caller = calling_thread()
    for gpus, lookahead in itertools.product((1, 2), (0, 1, 2)):
        workers = [
            WorkerInfo(f"gpu{at}", "gpu", f"inproc://{at}", caller.pid, caller.host, virtual=True)
            for at in range(gpus)
        ]
        workers.append(WorkerInfo("cpu0", "cpu", "inproc://cpu", caller.pid, caller.host))
        options = Options(nb=8, panel=panel, lookahead=lookahead)  # type: ignore[arg-type]
        problem = Problem(routine, 100, 100, 1, np.dtype("f8"))
        plan = make_plan(problem, options, tuple(workers), Given(on_host), checked=True)
        assert plan.checked
        check(plan.programs, plan.graph, plan.traffic)
