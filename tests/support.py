"""What several test modules share: problems, ratios, small runs of programs, a lazy GPU."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, Phase, settings
from numpy.typing import DTypeLike, NDArray

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution import stack_runs
from hetero_la.scheduler.exchange.between_processes import ProcessPort
from hetero_la.scheduler.exchange.columns import GivenColumns
from hetero_la.scheduler.exchange.enqueuer import Enqueuer
from hetero_la.scheduler.exchange.gpu_channel import GpuChannel
from hetero_la.scheduler.exchange.group import Arrived
from hetero_la.scheduler.exchange.in_process import ThreadPort
from hetero_la.scheduler.exchange.message_order import ExchangeOrder, exchange_orders
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.lookahead import Order, Priority
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import CallKernel, LoadColumn, Program
from hetero_la.scheduler.program.messages import Traffic
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import LocalStorage, local_spans
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.testing.matrices import generate
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage, local_width

#: How hypothesis makes up calls: the same ones each time, unless a test says otherwise.
FUZZ = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)  # fmt: skip
DTYPES = ("float32", "float64", "complex64", "complex128")
#: How far two correct factorizations of a small random matrix may be apart.
CLOSE = {"float32": 2e-3, "float64": 1e-10, "complex64": 2e-3, "complex128": 1e-10}


def share_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two threads share each stack on the host, however small the matrices are."""
    monkeypatch.setattr(stack_runs, "usable_cores", lambda: 2)
    monkeypatch.setattr(stack_runs, "_WORTH_A_THREAD", 1e-9)
    for name in ("_LEAST", "_SHARE", "_SHARE_OF_MORE"):
        monkeypatch.setattr(stack_runs, name, 0.1)


def _aspects(value: Any, at: int) -> tuple[Any, ...]:
    """What a covering tells apart in the value at a place of an axis: of a dtype, two things."""
    if value in DTYPES or (isinstance(value, type) and issubclass(value, np.inexact)):
        dtype = np.dtype(value)
        return (np.finfo(dtype).eps, dtype.kind)
    return (at,)


def covering(*axes: Iterable[Any]) -> list[ParameterSet]:
    """The product of the axes, all marked as exhaustive but for a covering by pairs.

    In the covering, each value of an axis meets each value of every other axis. A dtype counts
    as two values, its precision and whether it is complex: with dtypes alone, each value is left
    with two of them that differ in both.
    """
    places = [list(enumerate(axis)) for axis in axes]
    pairs: dict[tuple[int, ...], set[Any]] = {}
    values = {}
    for product in itertools.product(*places):
        key = tuple(at for at, _ in product)
        values[key] = [value for _, value in product]
        aspects = [
            (axis, part, aspect)
            for axis, (at, value) in enumerate(product)
            for part, aspect in enumerate(_aspects(value, at))
        ]
        pairs[key] = set(itertools.combinations(aspects, 2)) or set(aspects)
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        chosen.add(max(pairs, key=lambda key: len(pairs[key] & missing)))
        missing -= set().union(*(pairs[key] for key in chosen))
    return [
        pytest.param(
            *given,
            id="-".join(str(getattr(value, "__name__", value)) for value in given),
            marks=() if key in chosen else pytest.mark.exhaustive,
        )
        for key, given in values.items()
    ]


def spread(parameters: Iterable[ParameterSet]) -> list[ParameterSet]:
    """The same parameters, each of a tuple's values one of its own."""
    return [
        pytest.param(
            *itertools.chain.from_iterable(
                value if isinstance(value, tuple) else (value,) for value in given.values
            ),
            id=given.id,
            marks=given.marks,
        )
        for given in parameters
    ]


def random(m: int, n: int | None = None, dtype: DTypeLike = "float64", seed: int = 0) -> NDArray:
    """A column-major matrix without ties between pivots."""
    return generate("rands", m, n, dtype=dtype, seed=seed)


def with_dependent_rows(n: int) -> Iterator[NDArray]:
    """Matrices of small integers, of which a row is a simple combination of two others."""
    rng = np.random.default_rng(n)
    for factors in ((1, 1), (0.5, 0.5), (2, -1), (1, 0), (3, -2)):
        for _ in range(20):
            i, j, k = rng.choice(n, 3, replace=False)
            a = rng.integers(-9, 10, (n, n)).astype(float)
            a[i] = factors[0] * a[j] + factors[1] * a[k]
            yield a


def host(*arrays: Any) -> Any:
    """NumPy arrays of what may be on a GPU."""
    found = [to_host(a) for a in arrays]
    return found[0] if len(found) == 1 else found


def assert_close(found: Any, expected: Any, **tolerance: float) -> None:
    """Equal dtype and shape, and values to within `CLOSE` of the largest; integers equal."""
    found, expected = host(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    scale = np.abs(expected).max(initial=0)
    limit = tolerance.get("limit", CLOSE.get(expected.dtype.name, 0.0)) * scale
    assert np.abs(found - expected).max(initial=0) <= limit


# --- problems


def positive(n: int, dtype: DTypeLike = "float64", seed: int = 0) -> NDArray:
    """A Hermitian positive definite matrix, well conditioned."""
    g = random(n, dtype=dtype, seed=seed)
    a = g @ g.conj().T + n * np.eye(n, dtype=dtype)
    return np.asfortranarray((a + a.conj().T) / 2, dtype=dtype)


class Problem(NamedTuple):
    """What a routine is given, and the array that it has to return."""

    routine: str
    layout: TileLayout
    a: NDArray
    b: NDArray | None
    expected: NDArray


#: Routines whose right-hand sides are made by themselves.
_MAKE_COLUMNS = ("inverse", "explicit_q")


def problem(routine: str, layout: TileLayout, dtype: DTypeLike = "float64") -> Problem:
    """A random matrix, right-hand sides where there are any, and SciPy's answer."""
    m, n, nrhs = layout.m, layout.n, layout.nrhs
    a = random(m, n, dtype, seed=m + n)
    if routine in ("cholesky", "solve_positive"):
        a = positive(n, dtype)
    b = None
    if nrhs and routine not in _MAKE_COLUMNS:
        b = random(m, nrhs, dtype, seed=7)
        if routine == "minimum_norm":
            b[n:] = 0
    expected = np.hstack(_answer(routine, a, random(m, 0, dtype) if b is None else b, nrhs))
    assert (expected.shape, expected.dtype) == ((m, layout.width), a.dtype)
    return Problem(routine, layout, a, b, expected)


def _answer(routine: str, a: NDArray, b: NDArray, nrhs: int) -> list[NDArray]:
    """The factors, and what stands beside them."""
    m, n = a.shape
    if m == 0 or n == 0:
        return [a, np.eye(m, nrhs, dtype=a.dtype) if routine in _MAKE_COLUMNS else b]
    if routine in ("lu", "solve", "inverse"):
        right = {"lu": b, "solve": np.linalg.solve(a, b) if m == n else b}
        lu = scipy.linalg.lu_factor(a)[0]
        return [lu, right[routine] if routine in right else np.linalg.inv(a)[:, :nrhs]]
    if routine in ("cholesky", "solve_positive"):
        factor = np.linalg.cholesky(a)
        right = np.linalg.solve(factor if routine == "cholesky" else a, b)
        return [factor + np.triu(a, 1), right]
    (qr, _), r = scipy.linalg.qr(a, mode="raw")
    q = scipy.linalg.qr(a)[0]
    if routine == "explicit_q":
        return [qr, q[:, :nrhs]]
    if routine == "minimum_norm":
        return [qr, q[:, :n] @ np.linalg.solve(r.conj().T, b[:n])]
    c = q.conj().T @ b
    if routine == "lstsq":
        c[:n] = np.linalg.solve(r, c[:n])
    return [qr, c]


def random_order(graph: TaskGraph, seed: int) -> list[int]:
    """A topological order: of the tasks that are ready, any."""
    rng = np.random.default_rng(seed)
    missing = [len(task.after) for task in graph.tasks]
    following: list[list[int]] = [[] for _ in graph.tasks]
    for task in graph.tasks:
        for before in task.after:
            following[before].append(task.index)
    ready = [task.index for task in graph.tasks if not task.after]
    order = []
    while ready:
        order.append(ready.pop(int(rng.integers(len(ready)))))
        for index in following[order[-1]]:
            missing[index] -= 1
            if not missing[index]:
                ready.append(index)
    return order


# --- LAPACK's ratios: correct results stay below `LIMIT`

LIMIT = 30


def _ratio(error: NDArray, *sizes: float, a: NDArray) -> float:
    """The 1-norm of an error, over the sizes and LAPACK's eps."""
    if error.size == 0:
        return 0.0
    size = np.abs(error).sum(axis=0).max()
    for divisor in (*sizes, float(np.finfo(a.dtype).eps) / 2):  # one by one: none overflows
        size = size / divisor if size else 0.0
    assert np.isfinite(size)
    return float(size)


def _norm(a: NDArray) -> float:
    return float(np.abs(a).sum(axis=0).max(initial=0))


def _wide(a: NDArray) -> NDArray:
    """In the type of doubles, so that the ratios' own rounding does not count."""
    return a.astype(np.result_type(a, np.float64))


def cholesky_ratio(a: NDArray, factor: NDArray) -> float:
    """||L L^H - A|| / (n ||A|| eps), of a lower triangle L."""
    exact, low = _wide(a), _wide(factor)
    return _ratio(low @ low.conj().T - exact, len(a), _norm(exact), a=a)


def qr_ratio(a: NDArray, q: NDArray, r: NDArray) -> float:
    """||R - Q^H A|| / (m ||A|| eps)."""
    exact = _wide(a)
    return _ratio(_wide(r) - _wide(q).conj().T @ exact, len(a), _norm(exact), a=a)


def orthogonality_ratio(q: NDArray) -> float:
    """||I - Q^H Q|| / (m eps)."""
    exact = _wide(q)
    return _ratio(np.eye(q.shape[1]) - exact.conj().T @ exact, len(q), a=q)


def lstsq_ratio(a: NDArray, x: NDArray, b: NDArray) -> float:
    """||(A X - B)^H A|| / (max(m, n, nrhs) ||A|| ||B|| eps)."""
    exact, right = _wide(a), _wide(b).reshape(len(b), -1)
    size = _norm(exact) or 1.0
    rest = exact @ _wide(x).reshape(len(x), -1) - right
    error = rest.conj().T @ (exact / size)
    return _ratio(error, max(*a.shape, right.shape[1]), _norm(right), a=a)


# --- programs without Dask


class Setup(NamedTuple):
    """A placed graph, and what was made of it."""

    graph: TaskGraph
    distribution: Distribution
    placement: Placement
    programs: list[Program]
    traffic: Traffic


def priorities(order: Order, graph: TaskGraph) -> list[Priority]:
    """The sort keys of a graph's tasks."""
    found = [
        (block.index(column), order.key(block, column))
        for block in graph.blocks
        for column in range(block.start, block.stop)
    ]
    return [key for _, key in sorted(found)]


def arriving(layout: TileLayout, pace: int = 2) -> Callable[[int], int]:
    """Columns that come in one after the other, slower than they are needed, before the last step.

    `pace` is the number of steps from one to the next.
    """
    return lambda column: min(pace * column, layout.kt - 1)


def call_seconds(
    device: DeviceModel, call: CallKernel, graph: TaskGraph, width: int | None
) -> float:
    """Predicted time of a call in float64, all its kernel calls together."""
    shapes = call.shapes(graph, width)
    return sum(device.kernel_seconds(call.kind, each, "float64") for each in shapes)


def set_up(
    layout: TileLayout,
    workers: int,
    *,
    panel_worker: bool = False,
    depth: int = 1,
    shared: bool | Collection[int] = False,
    arrival: Callable[[int], int] | None = None,
    routine: str | None = None,
    checkpoints: Sequence[int] = (),
    done: int = 0,
    speeds: Sequence[float] = (),
) -> Setup:
    """Programs of `workers` owners of columns, and of one more that factors panels.

    The steps before `done` are left out.  The workers in `shared` have their columns in one array,
    and `speeds`, by default equal, say how many columns each of the owners gets.
    """
    graph = ROUTINES[routine or ("solve" if layout.nrhs else "lu")].tasks(layout)
    if done:
        graph = graph.remaining(done)
    speeds = [*(speeds or [1.0] * workers), *[0.0] * panel_worker]
    if isinstance(shared, bool):
        shared = range(workers) if shared else ()
    distribution = Distribution.cyclic(layout.nt + layout.rt, speeds)
    placement = Placement(graph, distribution, workers if panel_worker else None)
    programs, traffic = build_programs(
        graph, placement, distribution, len(speeds), depth=depth, arrival=arrival,
        shared=shared, checkpoints=checkpoints,
        panels_alone=workers > 1 and not panel_worker and not shared,
    )  # fmt: skip
    return Setup(graph, distribution, placement, programs, traffic)


Values = dict[Name, NDArray]


def job_of(made: Setup, a: NDArray, given: Values | None = None) -> Job:
    """The run of programs on a matrix."""
    return Job(
        "test", made.programs, made.traffic.messages, (), made.graph.layout, a.dtype,
        KernelOptions(), 1, given=given or {},
    )  # fmt: skip


def run_in_threads(
    made: Setup, devices: Sequence[Device], a: NDArray, b: NDArray | None = None
) -> tuple[NDArray, Values]:
    """Run programs, one thread a device, with a table of messages between them."""
    layout, table = made.graph.layout, WaitTable(patience=20.0)
    enqueuer = Enqueuer(table)
    target = np.full((layout.m, layout.width), np.nan, a.dtype, order="F")
    storage = ArrayStorage(a, target, b)
    values: Values = {}
    job = job_of(made, a)

    def work(program: Program, device: Device) -> None:
        try:
            port = ThreadPort(table, enqueuer, program.worker, device)
            runner = Runner(job, program.worker, device, storage, port)
            runner.run(0, len(program.instructions))
            values.update(runner.finish())
        except BaseException as error:
            table.abort(error)

    in_threads(work, made.programs, devices)
    if table.error is not None:
        raise table.error
    return target, values


def in_threads(work: Callable[..., None], *arguments: Sequence[Any]) -> None:
    """Call `work` in a thread for each of some groups of arguments."""
    threads = [
        threading.Thread(target=work, args=each, daemon=True)
        for each in zip(*arguments, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)


class CopiesOnly:
    """In the place of a `RunGroup`: one worker whose messages to others are copies."""

    def __init__(self, worker: int, everybody: list[CopiesOnly]) -> None:
        self.worker, self._everybody = worker, everybody
        self.inbox = WaitTable(patience=20.0)
        self.channels: dict[int, GpuChannel] = {}
        self.order = ExchangeOrder((), ())
        everybody.append(self)

    def post(self, worker: int, key: Any, arrays: Sequence[NDArray]) -> None:
        copies = [array.copy(order="F") for array in arrays]
        release = partial(self._spoil, copies)
        self._everybody[worker].inbox.put(key, Arrived(copies, release))

    @staticmethod
    def call(use: Callable[[], None]) -> None:
        use()

    @staticmethod
    def _spoil(copies: list[NDArray]) -> None:
        """The memory of a message belongs to the next one."""
        for copy in copies:
            copy[...] = -99


class Pipe:
    """In the place of NCCL: what is sent first has to be received first."""

    def __init__(self, reader: Device) -> None:
        self._sent: SimpleQueue[list[NDArray]] = SimpleQueue()
        self._reader = reader

    def send(self, arrays: Sequence[NDArray], ready: Any) -> None:
        assert ready is None
        self._sent.put([array.copy(order="F") for array in arrays])

    def receive(self, targets: Sequence[NDArray]) -> None:
        for target, array in zip(targets, self._sent.get(timeout=20), strict=True):
            self._reader.copy(target, array, Queue.COPY)

    def flush(self) -> None:
        pass


def connect(made: Setup, groups: list[CopiesOnly], devices: Sequence[Device]) -> None:
    """Let workers exchange messages as by NCCL."""
    pipes = {(a, b): Pipe(devices[b]) for a, b in itertools.permutations(range(len(groups)), 2)}
    orders = exchange_orders(made.programs, made.traffic.messages)
    for group, order in zip(groups, orders, strict=True):
        for other in set(range(len(groups))) - {group.worker}:
            there, back = pipes[group.worker, other], pipes[other, group.worker]
            group.channels[other] = GpuChannel(there, back)
        group.order = ExchangeOrder(order, group.channels)


def run_by_messages(
    made: Setup,
    a: NDArray,
    b: NDArray | None = None,
    *,
    in_order: bool = False,
    devices: Sequence[Device] | None = None,
    given: Values | None = None,
    saved: dict[int, Values] | None = None,
) -> tuple[NDArray, Values]:
    """Run programs whose workers share nothing: messages are copies, if `in_order` as by NCCL.

    Puts what the programs save in `saved`.
    """
    layout = made.graph.layout
    right = np.full((layout.m, layout.nrhs), np.nan, a.dtype) if b is None else b
    source = np.asfortranarray(np.hstack([a, right]))
    devices = devices or [CpuDevice() for _ in made.programs]
    groups: list[CopiesOnly] = []
    runners: list[Runner] = []
    for program, device in zip(made.programs, devices, strict=True):
        blocks = {
            layout.columns(j)[0]: source[slice(*map(layout.row, rows)), slice(*layout.columns(j))]
            for _, j, *rows in (load.region for load in program.select(LoadColumn))
        }
        width = local_width(layout, program.columns)
        own = np.full((layout.m, width), np.nan, a.dtype, order="F")
        storage = LocalStorage(own, local_spans(layout, program.columns), GivenColumns(blocks))
        group: Any = CopiesOnly(program.worker, groups)
        port = ProcessPort(group, device)
        runners.append(Runner(job_of(made, a, given), program.worker, device, storage, port))
    if in_order:
        connect(made, groups, devices)
    values: Values = {}

    def work(runner: Runner) -> None:
        try:
            runner.run(0, len(runner.program.instructions))
            values.update(runner.finish())
        except BaseException as error:
            for group in groups:
                group.inbox.abort(error)

    in_threads(work, runners)
    for group in groups:
        if group.inbox.error is not None:
            raise group.inbox.error
    target = source.copy(order="F")  # with the rows that no task touches
    for runner in runners:
        for step, part in runner.saved.items() if saved is not None else ():
            saved.setdefault(step, {}).update(part)
        for start, stop, block, rows in runner.storage.columns():
            target[rows, start:stop] = block
    return target, values


def pivots(values: Values, layout: TileLayout) -> NDArray:
    """LAPACK's pivots, 0-based, from those of the panels."""
    parts = [values["ipiv", k] + layout.row(k) for k in range(layout.kt)]
    return np.concatenate([*parts, np.empty(0, np.int32)])


def assert_lu_of_scipy(given: Problem, found: np.ndarray, values: Values) -> None:
    """The array is what was expected, and the pivots are SciPy's."""
    limit = 1e-10 if np.finfo(found.dtype).eps < 1e-10 else 2e-2
    assert_close(found, given.expected, limit=limit)
    assert np.array_equal(pivots(values, given.layout), scipy.linalg.lu_factor(given.a)[1])


# --- a device that only enqueues, and whose queues then run in an unkind order


@dataclass(eq=False)
class _Stream:
    """An in-order queue: what is to be done, after which events, and how much was done."""

    jobs: deque[tuple[LazyEvent | None, Callable[[], None] | None]] = field(default_factory=deque)
    issued: int = 0
    done: int = 0


@dataclass(frozen=True, eq=False)
class LazyEvent:
    """The point that a queue had reached when it was recorded."""

    engine: Engine
    stream: _Stream
    count: int

    def reached(self) -> bool:
        return self.stream.done >= self.count

    def synchronize(self) -> None:
        self.engine.run_until(self.reached)


class Engine:
    """Runs what is enqueued as late as it can, favouring queues in a random order.

    Whatever program order does not fix by an event is done in the wrong order by one
    seed or another.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lock = threading.RLock()
        self.rank: dict[int, float] = {}
        self.streams: list[_Stream] = []

    def stream(self) -> _Stream:
        with self.lock:
            self.streams.append(_Stream())
            self.rank[id(self.streams[-1])] = self.rng.random()
            return self.streams[-1]

    def run_until(self, finished: Callable[[], bool]) -> None:
        with self.lock:
            while not finished():
                ready = [
                    stream
                    for stream in self.streams
                    if stream.jobs and (stream.jobs[0][0] is None or stream.jobs[0][0].reached())
                ]
                assert ready, "what is enqueued waits for itself"
                if self.rng.random() < 0.1:
                    self.rank = {key: self.rng.random() for key in self.rank}
                stream = min(ready, key=lambda stream: self.rank[id(stream)])
                _, job = stream.jobs.popleft()
                if job is not None:
                    job()
                stream.done += 1


class LazyGpu(CpuDevice):
    """A GPU's semantics without one: calls return before anything has happened."""

    kind = "gpu"
    by_reference = False
    _numbers = itertools.count()

    def __init__(self, engine: Engine, *, enqueues: bool = True) -> None:
        super().__init__(f"lazy{next(self._numbers)}")
        self.enqueues = enqueues
        self._engine = engine
        self._streams = {queue: engine.stream() for queue in Queue}

    def _enqueue(
        self, queue: Queue, job: Callable[[], None] | None, event: LazyEvent | None = None
    ) -> None:
        with self._engine.lock:
            stream = self._streams[queue]
            stream.jobs.append((event, job))
            stream.issued += 1

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray:
        """Memory full of what is wrong but harmless: ones, and swaps with row 0."""
        return np.full(shape, np.dtype(dtype).kind in "fc", dtype, order="F")

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[NDArray], options: KernelOptions
    ) -> None:
        self._enqueue(queue, lambda: CpuDevice.call(self, kernel, queue, arrays, options))

    def record(self, queue: Queue) -> LazyEvent:
        with self._engine.lock:
            return LazyEvent(self._engine, self._streams[queue], self._streams[queue].issued)

    def wait(self, queue: Queue, event: LazyEvent | None) -> None:
        if event is not None:
            self._enqueue(queue, None, event)

    def copy(self, target: NDArray, source: NDArray, queue: Queue) -> None:
        self._enqueue(queue, lambda: np.copyto(target, source))

    def synchronize(self) -> None:
        for stream in self._streams.values():
            LazyEvent(self._engine, stream, stream.issued).synchronize()

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        yield


def run_in_all_ways(
    routine: str, given: Problem, owners: int, panel: bool, depth: int,
    arrival: Callable[[int], int] | None = None,
) -> Iterator[tuple[NDArray, Values]]:  # fmt: skip
    """Run a routine's programs by threads, on lazy GPUs, by messages, and in shared memory."""
    made = set_up(
        given.layout, owners, panel_worker=panel, depth=depth, routine=routine, arrival=arrival
    )
    engine, cpu = Engine(depth), [CpuDevice()] * panel
    for devices in (
        [*(VirtualGpu() for _ in range(owners)), *cpu],
        [*(LazyGpu(engine) for _ in range(owners)), *cpu],
    ):
        yield run_in_threads(made, devices, given.a, given.b)
    yield run_by_messages(made, given.a, given.b, in_order=depth == 1)
    made = set_up(given.layout, owners, depth=depth, shared=True, routine=routine)
    yield run_in_threads(made, [CpuDevice() for _ in range(owners)], given.a, given.b)
