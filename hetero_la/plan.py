"""Plans: everything that is decided before a run, and visible."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_la.algorithms.lu import lu_tasks
from hetero_la.algorithms.solve import solve_tasks
from hetero_la.options import Options, PanelDevice
from hetero_la.scheduler.costs import MachineModel, window_steps
from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.job import Job
from hetero_la.scheduler.messages import Traffic
from hetero_la.scheduler.placement import place
from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.programs import build_programs
from hetero_la.scheduler.simulate import Simulation, simulate
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.errors import DeviceUnavailableError, InsufficientMemoryError
from hetero_la.tiles.kernels.cpu import available_memory
from hetero_la.tiles.layout import TileLayout
from hetero_la.tiles.shard import local_width

ROUTINES = {"lu": lu_tasks, "solve": solve_tasks}

#: The calling thread, as the only worker of a small problem.
CALLER = WorkerInfo(
    "caller", "cpu", pid=os.getpid(), host=platform.node(), blas_threads=os.cpu_count() or 1
)


@dataclass(frozen=True, eq=False)
class Plan:
    """What will run where.

    Attributes
    ----------
    routine : str
        "lu" or "solve".
    layout : TileLayout
        How the matrix is cut.
    dtype : numpy.dtype
        Element type.
    options : Options
        As asked for.
    workers : tuple of WorkerInfo
        Who takes part.
    distribution : Distribution
        Owner of each tile column.
    panel_worker : int or None
        The worker that factors every panel; None leaves panels to the owners.
    lookahead : int
        How many panels are factored ahead.
    graph : TaskGraph
        The tasks.
    programs : list of Program
        What each worker does.
    traffic : Traffic
        What travels between them.
    model : MachineModel
        What predictions are based on.
    """

    routine: str
    layout: TileLayout
    dtype: np.dtype[Any]
    options: Options
    workers: tuple[WorkerInfo, ...]
    distribution: Distribution
    panel_worker: int | None
    lookahead: int
    graph: TaskGraph
    programs: list[Program]
    traffic: Traffic
    model: MachineModel

    @property
    def nb(self) -> int:
        """Tile size."""
        return self.layout.nb

    @property
    def shared(self) -> bool:
        """Whether the workers work in the result's own memory."""
        return _share_memory(self.workers)

    @property
    def panel(self) -> str:
        """Where panels are factored: "cpu" or "gpu"."""
        return self.workers[self.panel_worker or 0].kind

    @property
    def flops(self) -> float:
        """Real floating-point operations of the routine, as LAPACK counts them."""
        m, n, k = self.layout.m, self.layout.n, min(self.layout.m, self.layout.n)
        lu = 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3
        total = lu + 2 * n**2 * self.layout.nrhs
        return total * (4 if self.dtype.kind == "c" else 1)

    def simulate(self) -> Simulation:
        """Run the programs on the machine model, without kernels."""
        return simulate(self.programs, self.traffic, self.graph, self.model, self.dtype)

    @functools.cached_property
    def predicted_seconds(self) -> float:
        """Predicted time of the run, in seconds, with the data in place."""
        return self.simulate().makespan

    @functools.cached_property
    def window(self) -> int:
        """Steps in one Dask task, where the workers share the client's process."""
        if len(self.workers) == 1:
            return self.layout.kt + 1
        return window_steps(self.predicted_seconds, self.layout.kt, len(self.workers))

    def bytes_needed(self) -> list[int]:
        """Peak bytes on each worker: its shard, panels received, values and workspace."""
        return [self._bytes_of(program) for program in self.programs]

    def _bytes_of(self, program: Program) -> int:
        m, nb = self.layout.m, self.layout.nb
        width = local_width(self.layout, program.columns)
        received = any(i.op == "receive" for i in program.instructions)
        elements = m * width + (program.slots * (m + nb) * nb if received else 0)
        elements += sum(
            int(np.prod(shape)) for shape, dtype in program.values.values() if dtype is None
        )
        if self.workers[program.worker].kind == "gpu":
            elements += 2 * nb * width  # the triangular solve is out of place, on two queues
        return elements * self.dtype.itemsize

    def check_memory(self, host_bytes: int = 0) -> None:
        """Raise `InsufficientMemoryError` unless there is the memory that the run needs.

        Parameters
        ----------
        host_bytes : int, optional
            Memory that the result needs on the host, besides what the workers need.
        """
        host = (CALLER.host, -1)
        needed = {host: host_bytes}
        there = {host: available_memory()}
        for worker, required in zip(self.workers, self.bytes_needed(), strict=True):
            place = (worker.host, worker.device)
            needed[place] = needed.get(place, 0) + required
            there[place] = worker.memory
        for place, required in needed.items():
            if required > there[place]:
                where = "the host" if place[1] < 0 else f"GPU {place[1]}"
                raise InsufficientMemoryError(
                    f"{self.routine} of a {self.layout.m} x {self.layout.n} {self.dtype.name} "
                    f"matrix needs {required:,} bytes on {where}, which has {there[place]:,}"
                )

    def job(self) -> Job:
        """The plan as the executors take it."""
        return Job(
            self.routine, self.programs, self.traffic.messages, self.workers, self.layout,
            self.dtype, self.options.kernel, self.window,
        )  # fmt: skip

    def _windows(self) -> str:
        if not self.workers[0].address:
            return "none, runs in the calling thread"
        if any(worker.pid != os.getpid() for worker in self.workers):
            return "a Dask task ends wherever a message leaves its worker"
        return f"{min(self.window, self.layout.kt + 1)} steps in one Dask task"

    def explain(self) -> str:
        """Say what was decided, and what it is expected to take."""
        layout = self.layout
        rhs = f" with {layout.nrhs} right-hand sides" if layout.nrhs else ""
        lines = [
            f"{self.routine} of a {layout.m} x {layout.n} {self.dtype.name} matrix{rhs}",
            f"tiles: nb = {layout.nb}, {layout.mt} x {layout.nt} tiles, {layout.kt} steps",
            f"graph: {len(self.graph)} tasks, {self.flops:.3g} flops",
            f"look-ahead: {self.lookahead} panels; panels on the {self.panel}",
            f"windows: {self._windows()}",
            f"predicted: {self.predicted_seconds:.3g} s, "
            f"{self.flops / max(self.predicted_seconds, 1e-12) / 1e9:.3g} Gflop/s",
        ]
        for worker, program, needed in zip(
            self.workers, self.programs, self.bytes_needed(), strict=True
        ):
            role = f"{len(program.columns)} tile columns"
            if program.worker == self.panel_worker:
                role = "panels"
            lines.append(
                f"  {worker.name} ({worker.kind}{', virtual' if worker.virtual else ''}): {role}, "
                f"{len(program.instructions)} instructions, {needed / 1e6:.1f} MB"
            )
        return "\n".join(lines)


def plan(
    routine: str,
    shape: tuple[int, int],
    dtype: Any = np.float64,
    *,
    nrhs: int = 0,
    workers: Sequence[WorkerInfo] | None = None,
    **options: Any,
) -> Plan:
    """Decide how a factorization would run, without running it.

    Parameters
    ----------
    routine : {"lu", "solve"}
        What is to be done.
    shape : tuple of int
        Rows and columns of the matrix.
    dtype : dtype, optional
        Element type: float32, float64, complex64 or complex128.
    nrhs : int, optional
        Right-hand sides, for "solve".
    workers : sequence of WorkerInfo, optional
        Who takes part; by default the calling thread alone.
    **options
        See `Options`.

    Returns
    -------
    Plan

    Examples
    --------
    >>> p = plan("lu", (1000, 1000), nb=250)
    >>> p.layout.kt, len(p.graph), p.workers[0].name
    (4, 34, 'caller')
    >>> print(p.explain().splitlines()[0])
    lu of a 1000 x 1000 float64 matrix
    """
    if routine not in ROUTINES:
        raise ValueError(f"unknown routine {routine!r}; known are {', '.join(ROUTINES)}")
    infos = tuple(workers) if workers is not None else (CALLER,)
    return make_plan(routine, *shape, nrhs, np.dtype(dtype), Options.choose(options), infos)


def make_plan(
    routine: str,
    m: int,
    n: int,
    nrhs: int,
    dtype: np.dtype[Any],
    options: Options,
    workers: tuple[WorkerInfo, ...],
) -> Plan:
    """Plan a run, or find the plan of an equal one; the workers' memory is taken as it is."""
    key = tuple(replace(worker, memory=0) for worker in workers)
    found = _cached_plan(routine, m, n, nrhs, dtype, options, key)
    memory = {worker.name: worker.memory for worker in workers}
    return replace(found, workers=tuple(replace(w, memory=memory[w.name]) for w in found.workers))


@functools.lru_cache(maxsize=16)
def _cached_plan(
    routine: str,
    m: int,
    n: int,
    nrhs: int,
    dtype: np.dtype[Any],
    options: Options,
    workers: tuple[WorkerInfo, ...],
) -> Plan:
    owners, helper = _roles(workers, options)
    nb = options.nb or default_nb(m, n, owners)
    depth = 1 if options.lookahead is None else options.lookahead
    layout = TileLayout(m, n, nb, nrhs)
    graph = ROUTINES[routine](layout)
    shared = _share_memory(owners)

    def candidate(panel_worker: WorkerInfo | None) -> Plan:
        team = owners if panel_worker is None else (*owners, panel_worker)
        model = MachineModel.nominal(team)
        weights = [_speed(model, g) if w in owners else 0.0 for g, w in enumerate(team)]
        distribution = Distribution.cyclic(layout.nt + layout.rt, weights)
        at = None if panel_worker is None else len(owners)
        placement = place(graph, distribution, at)
        programs, traffic = build_programs(
            graph, placement, distribution, len(team), depth=depth, shared=shared
        )
        return Plan(
            routine, layout, dtype, options, team, distribution, at, depth, graph, programs,
            traffic, model,
        )  # fmt: skip

    if helper is None:
        return candidate(None)
    if options.panel is PanelDevice.CPU:
        return candidate(helper)
    return min(candidate(None), candidate(helper), key=lambda p: p.predicted_seconds)


def _roles(
    workers: tuple[WorkerInfo, ...], options: Options
) -> tuple[tuple[WorkerInfo, ...], WorkerInfo | None]:
    """Owners of columns, and the CPU worker that may factor panels for them."""
    gpus = tuple(worker for worker in workers if worker.kind == "gpu")
    cpus = tuple(worker for worker in workers if worker.kind == "cpu")
    if not gpus:
        if options.panel is PanelDevice.GPU:
            raise DeviceUnavailableError("panel='gpu' needs a GPU worker, and there is none")
        return cpus, None
    if options.panel is PanelDevice.CPU and not cpus:
        raise DeviceUnavailableError("panel='cpu' needs a CPU worker besides the GPU workers")
    if options.panel is PanelDevice.GPU or not cpus:
        return gpus, None
    return gpus, cpus[0]


def _speed(model: MachineModel, worker: int) -> float:
    """Relative speed of a worker, by a typical trailing update."""
    return 1 / model.devices[worker].multiply_seconds(4096, 4096, 256)


def _share_memory(owners: tuple[WorkerInfo, ...]) -> bool:
    """Whether the owners work in the result's own memory, as threads of this process."""
    return all(
        worker.kind == "cpu" and not worker.virtual and worker.pid == os.getpid()
        for worker in owners
    )


def default_nb(m: int, n: int, owners: Sequence[WorkerInfo]) -> int:
    """Tile size, from measurements: see ``docs/performance.md``."""
    size = max(min(m, n), 1)
    if owners[0].kind == "gpu" and not owners[0].virtual:
        if size >= 49152:
            return 1024
        return 512 if size > 8192 else 256
    if len(owners) == 1 and size <= 384:
        return size
    return 128 if size < 2048 else 256
