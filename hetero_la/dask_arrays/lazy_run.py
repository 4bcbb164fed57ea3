"""Runs on Dask arrays: the plan, the Dask graph, and the arrays of the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import dask.array as da
import distributed
import numpy as np
from dask._task_spec import List, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.system import CPU_COUNT
from dask.utils import cached_cumsum
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.warnings import (
    not_positive_message,
    singular_message,
    small_pivot_message,
    zero_pivot_message,
)
from hetero_la.dask_arrays.bands import band, row_chunks
from hetero_la.dask_arrays.blocks import largest_of
from hetero_la.dask_arrays.inputs import empty_like, on_gpu
from hetero_la.execution.executor_choice import INLINE_LIMIT, with_preset
from hetero_la.numerics.growth import require_little_growth
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.planning.decisions import Problem, quick_estimate
from hetero_la.planning.given import Given
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.cluster.clients import (
    install,
    running_client,
    watch_runs,
    worker_infos,
)
from hetero_la.scheduler.cluster.placement_plugin import (
    KeepPlacement,
    RunTask,
    annotations_of,
    task_name,
)
from hetero_la.scheduler.cluster.sizing import default_blas_threads, default_cpu_workers
from hetero_la.scheduler.on_dask.inputs import Declared
from hetero_la.scheduler.on_dask.run_graph import Chunk, RunGraph, on_devices
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.run.step_memory import StepVectors
from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.arrays.transfer import to_device

#: Most blocks per side of a triangle that lies in one array, on a cluster (where a task takes about
#: 1 ms) and in Dask's local schedulers (about 0.1 ms).
_CLUSTER_SIDE, _LOCAL_SIDE = 6, 16
#: Most blocks of a triangle that is spread over several processes.
_MOST_BLOCKS = 64
#: Of a triangle on GPUs: the share of the run that the tasks of its blocks may take, and the
#: seconds of each, with its launch and the wait for it.
_TRIANGLE_SHARE, _TRIANGLE_TASK = 0.1, 1e-3
#: Most blocks of factors that lie in one array on a GPU, where a task takes longer than many tiles.
_MOST_GPU_BLOCKS = 8
#: Adjacent tile columns of each GPU, which are one block of the factors.
_NEIGHBOURS = 2


class Singular(StrEnum):
    """Treatment of a run whose factors are singular, or do not exist."""

    RETURNED = "returned"
    WARNED_OF = "warned of"
    REFUSED = "refused"
    NOT_POSITIVE = "not positive"
    NOT_PIVOTED = "not pivoted"


class LazyRun:
    """A run that begins when Dask computes one of its results.

    Parameters
    ----------
    routine : str
        A key of `hetero_la.algorithms.routines.ROUTINES`.
    a : dask.array.Array, shape (m, n)
        The matrix.
    b : dask.array.Array, shape (m, nrhs), optional
        Right-hand sides, of the same dtype.
    columns : int, optional
        Number of columns that a routine without right-hand sides computes beside the matrix.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    names : sequence of str, optional
        Names of `a` and `b` in error messages.
    singular : Singular, optional
        Treatment of a singular matrix.
    solves : bool, optional
        Whether a system is solved, so that a nearly singular matrix gives a warning.
    client : Client, Cluster or None, optional
        The cluster whose workers to plan for.
    **options
        See `Options`.
    """

    def __init__(
        self, routine: str, a: da.Array, b: da.Array | None = None, *, columns: int = 0,
        check_finite: bool = False, names: Sequence[str] = ("a", "b"),
        singular: Singular = Singular.RETURNED, solves: bool = False, client: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        nrhs = columns if b is None else b.shape[1]
        inputs = [a] if b is None else [a, b]
        blocks = sum(math.prod(x.numblocks) for x in inputs)
        self.plan = plan = _plan(routine, a, nrhs, blocks, client, options)
        self._like, self._on_gpu, self._singular = a, on_gpu(a), singular
        self._token = tokenize(
            routine, [x.name for x in inputs], check_finite, tuple(names), plan.layout, plan.dtype,
            plan.options, plan.lookahead, plan.panel_worker, plan.distribution,
            [(worker.name, worker.kind, worker.address) for worker in plan.workers],
        )  # fmt: skip
        chunks = list(_chunks(inputs, names, check_finite))
        self._tasks = RunGraph(
            plan.packed_job, self._token, chunks, on_gpu=self._on_gpu, extent=solves
        )
        graph = HighLevelGraph.merge(*(x.dask for x in inputs))
        needed = {x.name for x in inputs}
        for what, tasks in (("cut", self._tasks.cuts), ("run", self._tasks.tasks)):
            if tasks:
                self._last = self._task_name(what, self._token)
                graph = _with_layer(graph, self._last, tasks, needed)
                needed = {*needed, self._last}
        self._steps = self._checked_steps(graph, singular, solves, a)

    def _task_name(self, what: str, token: str) -> str:
        return task_name(self._tasks.job.name, what, token)

    def _checked_steps(
        self, graph: HighLevelGraph, singular: Singular, solves: bool, a: da.Array
    ) -> da.Array:
        """Return the per-step values, an array of one object; computing it checks `info`."""
        layout, dtype = self.plan.layout, self.plan.dtype
        token = tokenize(self._token, singular, solves)
        name = self._task_name("check", token)
        values, needed, largest = List(*self._tasks.values), {self._last}, None
        if singular is Singular.NOT_PIVOTED:
            size = largest_of(a)
            graph = HighLevelGraph.merge(graph, size.dask)
            needed, largest = {self._last, size.name}, TaskRef((size.name,))
        task = RunTask(
            (name,), check_status, values, layout, dtype, singular, solves, largest,
            run=self._token,
        )  # fmt: skip
        return da.Array(_with_layer(graph, name, {task.key: task}, needed), name, (), dtype=object)

    @property
    def factors(self) -> da.Array:
        """The overwritten matrix, of shape (m, n), chunked by tile columns, or several."""
        columns = self.plan.layout.nt
        most = _MOST_GPU_BLOCKS if self._on_gpu else max(columns, 1)
        return self._columns("result", self._tasks.runs_of(range(columns), most), copy=False)

    def triangle(
        self, shape: tuple[int, int], *, lower: bool, ones: bool = False, turned: bool = False
    ) -> da.Array:
        """Return the lower or upper triangle of the leading part of the factors.

        Parameters
        ----------
        shape : tuple of int
            Shape of the part: all rows or all columns.
        lower : bool
            Whether to return the lower triangle.
        ones : bool, optional
            Whether to set the diagonal to ones.
        turned : bool, optional
            Whether to return the transpose of the triangle.
        """
        (m, n), layout, graph = shape, self.plan.layout, self._tasks
        k = min(m, n)
        entries = k * (m if lower else n) - k * k // 2
        above, below = (0, None) if lower else (None, 0)
        columns = graph.runs_of(range(layout.nt), len(self.row_chunks(layout.n)))
        return band(
            self._columns("parts", columns, copy=False)[:m, :n], above=above, below=below,
            ones=ones, rows=self.row_chunks(m), turned=turned,
            copy=2 * entries < layout.m * layout.width,  # a view would keep a whole shard alive
        )  # fmt: skip

    def row_chunks(self, rows: int, side: int | None = None) -> tuple[int, ...]:
        """Return the row chunks of triangles: the more there are, the less is copied.

        If one process holds all of the matrix in one array, there are at most `side` of them.
        """
        layout, blocks = self.plan.layout, _MOST_BLOCKS
        most = _CLUSTER_SIDE if self.plan.workers[0].address else _LOCAL_SIDE
        if self._on_gpu:
            blocks = int(_TRIANGLE_SHARE * self.plan.estimated_seconds / _TRIANGLE_TASK)
            most = min(most, max(math.isqrt(blocks), 2))
        if not self._tasks.adjacent:
            most = max(min(_MOST_BLOCKS, blocks) // max(layout.nt, 1), 1)
        elif side:
            most = min(side, most)
        return row_chunks(rows, layout.nb, most)

    @property
    def beside(self) -> da.Array:
        """The overwritten right-hand sides, of shape (m, nrhs)."""
        layout = self.plan.layout
        columns = range(layout.nt, layout.nt + layout.rt)
        return self._columns("right", [range(j, j + 1) for j in columns], copy=True)

    def vector(self, name: str) -> da.Array:
        """Concatenate the parts of a vector that the steps have computed; "ipiv" gives piv."""
        size = min(self.plan.layout.m, self.plan.layout.n)
        dtype = np.dtype(np.int32) if name == "ipiv" else self.plan.dtype
        label = self._task_name(name, tokenize(self._steps.name))
        task = RunTask(
            (label, 0), vector_of, TaskRef((self._steps.name,)), name, self._on_gpu,
            run=self._token,
        )  # fmt: skip
        graph = HighLevelGraph.from_collections(label, {task.key: task}, [self._steps])
        return da.Array(graph, label, ((size,),), meta=empty_like(self._like, (0,), dtype))

    def _columns(self, what: str, blocks: Sequence[range], *, copy: bool) -> da.Array:
        layout = self.plan.layout
        name = self._task_name(what, tokenize(self._steps.name))
        checked, ended = TaskRef((self._steps.name,)), List(*self._tasks.ended)
        # How many blocks need not wait for the check: with an error, none.  A warning concerns the
        # array as a whole: only its last block waits for it.
        early = {
            Singular.RETURNED: len(blocks), Singular.WARNED_OF: len(blocks) - 1
        }.get(self._singular, 0)  # fmt: skip
        tasks: dict[Any, Any] = {
            (name, 0, j): self._tasks.block(
                (name, 0, j), columns, ended if j < early else checked, copy=copy
            )
            for j, columns in enumerate(blocks)
        }
        widths = tuple(sum(map(layout.column_width, columns)) for columns in blocks)
        needed = {self._last, self._steps.name}
        graph = _with_layer(self._steps.dask, name, tasks, needed)
        if not widths:
            return da.empty_like(self._like, shape=(layout.m, 0), dtype=self.plan.dtype)
        meta = empty_like(self._like, (0, 0), self.plan.dtype)
        return da.Array(graph, name, ((layout.m,), widths), meta=meta)


def _with_layer(
    graph: HighLevelGraph, name: str, tasks: dict[Any, Any], needed: set[str]
) -> HighLevelGraph:
    """Return a graph with one more layer, which needs some of its layers."""
    layer = MaterializedLayer(tasks, annotations=annotations_of(tasks.values()))
    return HighLevelGraph({**graph.layers, name: layer}, {**graph.dependencies, name: needed})


def _chunks(inputs: Sequence[da.Array], names: Sequence[str], finite: bool) -> Iterator[Chunk]:
    """Yield the blocks of matrices whose columns follow each other."""
    start = 0
    for x, name in zip(inputs, names, strict=False):
        rows, columns = (cached_cumsum(sizes, initial_zero=True) for sizes in x.chunks)
        for i, j in np.ndindex(x.numblocks):
            shape = x.chunks[0][i], x.chunks[1][j]
            if all(shape):
                span = start + columns[j], start + columns[j + 1]
                yield Chunk((x.name, i, j), rows[i], span, Declared(name, (i, j), shape, finite))
        start += x.shape[1]


def _plan(
    routine: str, a: da.Array, nrhs: int, blocks: int, client: Any, options: dict[str, Any]
) -> Plan:
    """Plan for the workers of `client`, or of the current client if the run is large enough."""
    explicit = running_client(client) if client is not None else None
    running = explicit or running_client()
    # There are no checkpoints: Dask computes lost results again from the graph.
    chosen = replace(with_preset(options, running), checkpoint=None)
    m, n = a.shape
    problem = Problem(routine, m, n, nrhs, a.dtype)
    caller = calling_thread()
    if on_gpu(a):
        caller = replace(caller, kind="gpu", device=0)
    small = quick_estimate(problem, chosen, caller) < INLINE_LIMIT[caller.kind]
    if running is None or (explicit is None and small):
        workers = (caller,) if small or on_gpu(a) else _threads(caller)
        return make_plan(problem, chosen, workers, Given(blocks=blocks))
    workers = tuple(worker_infos(running))
    if not workers:
        raise DeviceUnavailableError("the cluster has no workers")
    install(running, KeepPlacement)
    watch_runs(running)
    together = 1
    if on_devices(workers, on_gpu(a)) and not ROUTINES[routine].factored:
        together = _NEIGHBOURS
    given = Given(not on_gpu(a), together=together, blocks=blocks)
    return make_plan(problem, chosen, workers, given)


def _threads(caller: WorkerInfo) -> tuple[WorkerInfo, ...]:
    """Return the CPU workers for a run in this process, as on the embedded cluster."""
    count = default_cpu_workers(CPU_COUNT)
    blas = default_blas_threads(CPU_COUNT, count, 0)
    return tuple(replace(caller, name=f"cpu{i}", blas_threads=blas) for i in range(count))


def check_status(
    values: Sequence[dict[Any, Any]], layout: Any, dtype: Any, singular: Singular, solves: bool,
    largest: Any = None,
) -> StepValues:  # fmt: skip
    """Collect the per-step values of all workers; raise or warn if the matrix is singular."""
    together = StepVectors(item for one in values for item in one.items())
    steps = StepValues(together, layout, dtype)
    if singular is Singular.RETURNED:
        return steps
    if singular is Singular.NOT_PIVOTED:
        require_little_growth(steps, float(largest))
    if steps.info and singular is Singular.WARNED_OF:
        distributed.warn(zero_pivot_message(steps.info), LinAlgWarning)
    elif steps.info:
        refused = singular is Singular.REFUSED
        raise LinAlgError((singular_message if refused else not_positive_message)(steps.info))
    if solves and min(layout.m, layout.n):
        extents = [value for key, value in together.items() if key[0] == "diagonal"]
        ratio = min(least for least, _ in extents) / max(largest for _, largest in extents)
        if singular is Singular.NOT_POSITIVE:
            ratio **= 2  # the matrix is the product of two factors
        if not ratio >= np.finfo(dtype).eps:
            distributed.warn(small_pivot_message(ratio), LinAlgWarning)
    return steps


def vector_of(steps: StepValues, name: str, gpu: bool) -> Any:
    """Return one vector of the per-step values in LAPACK's form."""
    vector = steps.piv if name == "ipiv" else steps.vector(name)
    return to_device(vector) if gpu else vector
