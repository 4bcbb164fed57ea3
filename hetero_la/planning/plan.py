"""Plans, which hold everything that is decided before a run."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES, title_of
from hetero_la.pictures.graph.files import draw, require_suffix
from hetero_la.pictures.runs.recording import Recording, predicted_traces
from hetero_la.planning.decisions import Decisions, saved_every
from hetero_la.planning.memory import CHUNKS, kernel_elements, parts_elements
from hetero_la.planning.planned_graph import PlannedGraph
from hetero_la.planning.routes import (
    copies_seconds,
    gpu_routes,
    host_call_seconds,
    host_routes,
)
from hetero_la.planning.teams import sharing_memory
from hetero_la.scheduler.graph.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.graph.task_graph import Granularity
from hetero_la.scheduler.machine.model import NOMINAL_LINKS, Source, window_steps
from hetero_la.scheduler.placement.column_groups import ColumnGroups
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.workers import Transport, over_processes
from hetero_la.scheduler.predict.simulate import Simulation, simulate
from hetero_la.scheduler.program.instructions import Program, ReceiveMessage
from hetero_la.scheduler.program.messages import Traffic, buffer_elements
from hetero_la.scheduler.run.job import Job, PackedJob
from hetero_la.scheduler.run.step_memory import elements_of
from hetero_la.scheduler.run.trace import WorkerTrace
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds, in_units
from hetero_la.tiles.arrays.displayed import as_html
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import local_width
from hetero_la.tiles.storage.tile_sizes import TileSizes

#: From how many panels to the next a run's time is estimated, for the length of its windows.
_STAGES = 8
#: Dask tasks of each worker in a run over processes: open, meet the others, run.
_TASKS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Decisions):
    """Complete plan of a run: tiles, owners, look-ahead, graph and programs.

    Attributes
    ----------
    routine : str
        A key of `hetero_la.algorithms.routines.ROUTINES`.
    layout : TileLayout
        Tiles of the matrix.
    dtype : numpy.dtype
        Element type.
    options : Options
        Options of the caller.
    workers : tuple of WorkerInfo
        Workers that take part.
    distribution : Distribution
        Owner of each tile column.
    panel_worker : int or None
        The worker that factors every panel; None leaves panels to the owners.
    speeds : tuple of float
        Predicted speeds of the workers, in proportion to which they own columns.
    lookahead : int
        Number of panels factored ahead.
    graph : PlannedGraph
        Task graph, with the worker of each task.
    programs : list of Program
        Instructions of each worker.
    traffic : Traffic
        Messages between the workers.
    model : MachineModel
        Machine model for predictions.
    host_arrays : bool
        Whether the matrix is on the host while GPUs own its columns, so that columns are
        copied there and back.
    source : {"row-major", "column-major", "in place", "pinned"}
        Memory order of the matrix in the user's array.
    checked : bool
        Whether the run also does what follows: of a solve, the condition and refinement; of LU, the
        diagonal of U.
    mapped : bool
        Whether the matrix is in a file, whose pages are not pinned.
    groups : ColumnGroups or None
        Groups of columns that are in memory one after the other; None if all are in memory.

    Examples
    --------
    >>> import hetero_la
    >>> plan = hetero_la.plan("lu", (1000, 1000), nb=250)
    >>> plan.layout.kt, len(plan.graph)  # steps, tasks
    (4, 34)
    >>> plan.predicted_seconds > 0
    True
    >>> print(plan.explain())
    lu of a 1000 x 1000 float64 matrix
    tiles: nb = 250, 4 x 4 tiles, 4 steps
    ...
    """

    distribution: Distribution
    graph: PlannedGraph
    programs: list[Program]
    traffic: Traffic
    groups: ColumnGroups | None = None

    _repr_html_ = as_html

    def __str__(self) -> str:
        return self.explain()

    @property
    def nb(self) -> TileSizes:
        """Tile size, or the size of each tile, the last of which repeats."""
        return self.layout.nb

    @property
    def shared(self) -> list[int]:
        """The workers that compute in the memory of the result, if that is on the host."""
        return [] if self.groups else sharing_memory(self.workers)

    @property
    def panel(self) -> str:
        """Device kind that factors panels: "cpu", "gpu", or "gpu and cpu" if both own columns."""
        at = self.owners if self.panel_worker is None else [self.panel_worker]
        return " and ".join(dict.fromkeys(self.workers[g].kind for g in at))

    @property
    def flops(self) -> float:
        """Real floating-point operations of the routine, as LAPACK counts them."""
        return self._operations * (4 if self.dtype.kind == "c" else 1)

    @property
    def _operations(self) -> float:
        return ROUTINES[self.routine].flops(self.layout.m, self.layout.n, self.layout.nrhs)

    @property
    def placement(self) -> list[int]:
        """Worker of each task, as an index into `workers`."""
        return self.graph.placement

    @property
    def task_seconds(self) -> np.ndarray:
        """Predicted seconds of each task on its worker, without transfers; shape (tasks,).

        Examples
        --------
        >>> import hetero_la
        >>> from hetero_la.scheduler.graph.analysis import critical_path
        >>> p = hetero_la.plan("cholesky", (1000, 1000), nb=250)
        >>> path = critical_path(p.graph, p.task_seconds)
        >>> [p.graph.tasks[i].kind for i in path][:4]
        ['potrf', 'trtri_n', 'trmm_rc', 'herk']
        """
        return self.graph.seconds

    def draw(
        self,
        path: str | os.PathLike[str],
        *,
        granularity: Granularity = "column",
        collapse: bool | None = None,
    ) -> None:
        """Draw the graph with its workers and its critical path, as ``plan.graph.draw`` does.

        A page (``.html``) also plays the run that the plan predicts, and ``.gif`` is its animation:
        of columns of tiles, as in a run.

        Parameters
        ----------
        path, granularity, collapse
            See `PlannedGraph.draw`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import hetero_la
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "qr.dot"
        ...     hetero_la.plan("qr", (400, 400), nb=100).draw(path)
        ...     path.read_text().startswith("digraph")
        True
        """
        require_suffix(path)  # before the graph is built
        placed = self.graph.placed(granularity)
        draw(placed, path, collapse=collapse, runs=lambda: self.played(granularity))

    def played(self, granularity: Granularity = "column") -> list[Recording]:
        """Return what pictures of the graph play: the predicted run, whose tasks are columns."""
        return [self.predicted_recording()] if granularity == "column" and len(self.graph) else []

    def simulate(self) -> Simulation:
        """Simulate the programs on the machine model, without running kernels.

        Returns
        -------
        Simulation
            Makespan, timeline, busy and idle time, and peak memory of each worker.

        Examples
        --------
        >>> import hetero_la
        >>> run = hetero_la.plan("qr", (1000, 1000), nb=250).simulate()
        >>> bool(0 < run.computing[0] < run.makespan), run.peak_bytes.tolist()
        (True, [12010496])
        """
        windows: list[list[int]] = []
        if self.workers[0].address:
            whole = over_processes(self.workers)
            for program in self.programs:
                spans = [(0, 0)] * _TASKS if whole else program.windows(self.window)
                windows.append([start for start, _ in spans])
        run = self._simulated(windows)
        return replace(run, peak_bytes=np.array(self.bytes_needed(), np.int64))

    def _simulated(self, windows: Sequence[Sequence[int]]) -> Simulation:
        if not self.pins:
            return self._simulated_from(self.source, windows)
        return self._simulated_from("pinned", windows) if windows else self._pinned_run

    @functools.cached_property
    def _pinned_run(self) -> Simulation:
        """The run in plain threads if the user's memory is pinned."""
        return self._simulated_from("pinned", ())

    def _simulated_from(self, source: Source, windows: Sequence[Sequence[int]]) -> Simulation:
        return simulate(
            self.programs, self.traffic, self.graph, self.model, self.dtype,
            host_arrays=self.host_arrays, source=source, windows=windows,
            absent=self.layout.nt if self.checked else 0,
        )  # fmt: skip

    @functools.cached_property
    def predicted_seconds(self) -> float:
        """Predicted time, in seconds, from the first task until all is stored, and of pinning."""
        return self.simulate().makespan + self.pinning_seconds

    @functools.cached_property
    def pins(self) -> bool:
        """Whether the user's memory is pinned for the run, as its columns travel often enough."""
        gpus = [self.workers[owner].has_gpu for owner in self.owners]
        if self.groups is None or not self.host_arrays or not all(gpus):
            return False
        if self.mapped or self.source == "pinned":
            return False
        run = self._pinned_run
        # Else the host's threads copy, and each GPU has its share of their time.
        share = float(run.bytes_host.sum()) / len(gpus)
        copies = self.model.host_seconds(share, self.owners[0], source=self.source, streamed=True)
        return run.makespan + self._seconds_to_pin < max(run.makespan, copies)

    @property
    def pinning_seconds(self) -> float:
        """Predicted time to pin memory; 0 for runs that do not."""
        return self._seconds_to_pin if self.pins else 0.0

    @property
    def _seconds_to_pin(self) -> float:
        """Time to pin the matrix and what is beside it, and the result if that is new."""
        (m, n, width), model = (self.layout.m, self.layout.n, self.layout.width), self.model
        if self.source == "in place":
            return model.pinning.seconds(m * n * self.dtype.itemsize)
        made = m * width * self.dtype.itemsize
        return model.pinning.seconds(made) + model.pinning_new.seconds(made)

    @functools.cached_property
    def estimated_seconds(self) -> float:
        """Estimated time of the run in plain threads, in seconds: quicker than a prediction."""
        if ROUTINES[self.routine].factored or self.groups:
            return self._simulated(()).makespan
        return self.stages().seconds(every=max(self.layout.kt // _STAGES, 1))

    @functools.cached_property
    def window(self) -> int:
        """Number of steps per Dask task, if the workers share the client's process."""
        steps = max(program.last_step for program in self.programs)
        if len(self.workers) == 1:
            return max(steps, 1)
        # The window bounds Dask's share of the time of the run in plain threads.
        hop = max(self.model.dask.hop, 1e-4)
        return window_steps(self.estimated_seconds, steps, len(self.workers), task_seconds=hop)

    def recording(
        self, traces: Sequence[WorkerTrace], began: float, ended: float, *, predicted: bool
    ) -> Recording:
        """Return a run of the plan as pictures show it."""
        peak = self.bytes_needed()
        fixed = [
            bytes_ - self.buffer_bytes(p) - (self.shard_bytes(p) if p.streamed else 0)
            for bytes_, p in zip(peak, self.programs, strict=True)
        ]
        return Recording(
            self.heading, self.graph, self.task_seconds, [worker.name for worker in self.workers],
            self.programs, self.traffic.messages, self.dtype, traces, began, ended, predicted,
            fixed, peak,
        )  # fmt: skip

    def predicted_recording(self) -> Recording:
        """Return the run that the plan predicts, as pictures show it."""
        run = self.simulate()
        return self.recording(predicted_traces(run), 0.0, run.makespan, predicted=True)

    def bytes_needed(self) -> list[int]:
        """Return the peak bytes on each worker: shard, panels received, values and workspace."""
        return [self.shard_bytes(p) + self.work_bytes(p) for p in self.programs]

    def shard_bytes(self, program: Program) -> int:
        """Return the bytes of a worker's shard."""
        return self.layout.m * self._shard_width(program) * self.dtype.itemsize

    def _shard_width(self, program: Program) -> int:
        return program.capacity or local_width(self.layout, program.columns)

    def work_bytes(self, program: Program, width: int | None = None) -> int:
        """Return the bytes that a worker needs besides its shard: panels, values, workspace.

        With `width`, for a shard of so many element columns.
        """
        values = (self._bytes_of(*value) for value in program.values.values())
        bytes_, elements = self.buffer_bytes(program) + sum(values), 0
        if self.workers[program.worker].device < 0:
            return bytes_
        tries = self.options.qr_panel != "householder" and any(
            name == "method" for name, _ in program.values
        )
        width = self._shard_width(program) if width is None else width
        elements += kernel_elements(self.layout, width, cholesky_qr=tries)
        if self.options.products == "split":
            elements += parts_elements(self.layout, width, self.dtype)
        return bytes_ + elements * self.dtype.itemsize + CHUNKS * self.options.kernel.chunk

    def _bytes_of(self, shape: tuple[int, ...], dtype: Any) -> int:
        return elements_of(shape) * np.dtype(dtype or self.dtype).itemsize

    def buffer_bytes(self, program: Program) -> int:
        """Return the bytes of the buffers for panels that a worker receives, or reads back."""
        received = buffer_elements(
            self.traffic.messages[i.message].parts for i in program.select(ReceiveMessage)
        )
        elements = program.slots * sum(received.values())
        if not program.streamed:
            return elements * self.dtype.itemsize
        elements += program.read_back_elements(self.layout)
        return elements * self.dtype.itemsize + self.received_bytes(program)

    def received_bytes(self, program: Program) -> int:
        """Return the bytes of all per-step values that a worker receives."""
        return sum(
            self._bytes_of(part.shape, part.dtype)
            for message in self.traffic.messages.values()
            if program.worker in message.consumers
            for part in message.parts
            if part.row is None
        )

    def job(self) -> Job:
        """Return the part of the plan that the executors need."""
        return Job(
            title_of(self.routine), self.programs, self.traffic.messages, self.workers, self.layout,
            self.dtype, self.options.kernel, self.window, flops=self._operations, title=self.title,
            seconds=self.estimated_seconds if self.workers[0].address else 0.0,
        )  # fmt: skip

    @functools.cached_property
    def packed_job(self) -> PackedJob:
        """The same for Dask's tasks, which all runs of the plan share."""
        return PackedJob(self.job())

    def explain(self) -> str:
        """Return a text that tells what was decided, and the predicted time; `print` shows it.

        Examples
        --------
        >>> import hetero_la
        >>> print(hetero_la.plan("cholesky", (1000, 1000), nb=250).explain())
        cholesky of a 1000 x 1000 float64 matrix
        tiles: nb = 250, 4 x 4 tiles, 4 steps
        ...
        predicted: ...
          caller (cpu): 4 tile columns, ...
        """
        run = self.simulate()
        routes = [f"  {name}: {in_seconds(value)}" for name, value in routes_seconds(self).items()]
        lines = [
            f"{self.title}{_beside(self)}",
            *(f"{name} {text}" for name, text in plan_facts(self, run)),
            *["routes considered, with quick estimates:"] * bool(routes), *routes,
            f"predicted: {predicted_text(self, run)}, this plan simulated with its copies",
        ]  # fmt: skip
        return "\n".join(lines + [_worker(self, program, run) for program in self.programs])


# --- what `Plan.explain`, and notebooks, tell of a plan


def plan_facts(plan: Plan, run: Simulation) -> list[tuple[str, str]]:
    """Return what was decided, by name, as text."""
    layout, depth = plan.layout, counted(plan.lookahead, "panel")
    flops = in_units(math.ceil(plan.flops), "flop")
    return [
        (
            "tiles:",
            f"nb = {layout.tiles_text}, {layout.mt} x {layout.nt} tiles"
            f"{' of its adjoint' * ROUTINES[plan.routine].of_adjoint}, "
            f"{counted(layout.kt, 'step')}{_blocks(layout)}",
        ),
        ("graph:", f"{counted(len(plan.graph), 'task')}, {flops}"),
        ("parallelism:", _parallelism(plan)),
        *([("order:", "left-looking")] if plan.options.order == "left" else []),
        ("look-ahead:", f"{depth}; panels on the {plan.panel}{_inner_blocking(plan)}"),
        *([("products:", products)] if (products := plan.options.products) != "native" else []),
        ("windows:", _windows(plan)),
        *_streams(plan, run),
        *_transports(plan, run),
        *_checkpoints(plan),
        ("model:", _model(plan)),
    ]


def predicted_text(plan: Plan, run: Simulation) -> str:
    """Return the predicted time and rate of the run."""
    seconds = run.makespan + plan.pinning_seconds
    return f"{in_seconds(seconds)}, {in_units(plan.flops / max(seconds, 1e-12), 'flop/s')}"


def _beside(plan: Plan) -> str:
    columns, makes = plan.layout.nrhs, ROUTINES[plan.routine].makes
    what = f"{counted(columns, 'column')} made" if makes else counted(columns, "right-hand side")
    return f" with {what}" if columns else ""


def _inner_blocking(plan: Plan) -> str:
    ib = plan.options.ib
    return "" if ib is None or plan.panel == "cpu" else f", {counted(ib, 'column')} by one kernel"


def _blocks(layout: TileLayout) -> str:
    blocked, size = layout.blocked, layout.per_block
    return f"; the first {blocked} in blocks of {size}" if blocked else ""


def _parallelism(plan: Plan) -> str:
    seconds = plan.task_seconds
    path = critical_path(plan.graph, seconds)
    return (
        f"{average_parallelism(plan.graph, seconds):.3g} on average; "
        f"critical path: {counted(len(path), 'task')}, {in_seconds(seconds[path].sum())} "
        f"of {in_seconds(total_work(plan.graph, seconds))} of work"
    )


def _windows(plan: Plan) -> str:
    if not plan.workers[0].address:
        return "none, runs in the calling thread"
    if over_processes(plan.workers):
        until = "" if plan.options.checkpoint is None else ", cut at each checkpoint"
        return f"the whole program of a worker in one Dask task{until}"
    return f"{counted(plan.window, 'step')} in one Dask task"


def _transports(plan: Plan, run: Simulation) -> list[tuple[str, str]]:
    """Say how panels travel between processes, for each kind of link that they take."""
    ends: dict[str, set[tuple[str, int]]] = {}
    for pair in np.argwhere(run.bytes_sent).tolist():
        if (link := plan.model.link(*pair)) != Transport.ONE_PROCESS:
            ends.setdefault(link, set()).update(
                (worker.host, worker.pid) for worker in (plan.workers[place] for place in pair)
            )
    return [
        (
            f"panels by {name}",
            f"between {len(processes)} processes, {in_bytes(link.bandwidth)}/s, "
            f"{in_seconds(link.latency)}{' (nominal)' if link == NOMINAL_LINKS[name] else ''}",
        )
        for name, processes in ends.items()
        for link in [plan.model.links[name]]
    ]


def _streams(plan: Plan, run: Simulation) -> list[tuple[str, str]]:
    """Say how many columns are in memory at a time, and how much travels because of that."""
    if plan.groups is None:
        return []
    held = max(plan.groups.capacities) / max(plan.layout.width, 1)
    moved, once = int(run.bytes_host.sum()), plan.layout.m * plan.layout.width * plan.dtype.itemsize
    return [
        (
            "streamed:",
            f"columns in {counted(plan.groups.count, 'group')}, {held:.0%} of them in memory at a "
            f"time; {in_bytes(moved)} to and from the host, {moved / max(once, 1):.1f} times "
            f"the matrix{_pinning(plan)}",
        )
    ]


def _pinning(plan: Plan) -> str:
    return f"; {in_seconds(plan.pinning_seconds)} to pin memory for that" if plan.pins else ""


def _checkpoints(plan: Plan) -> list[tuple[str, str]]:
    interval = saved_every(plan.options, plan.workers)
    if interval is None:
        return []
    where = plan.options.checkpoint_folder or "the client's memory"
    return [("checkpoints:", f"every {counted(interval, 'step')}, in {where}")]


def _model(plan: Plan) -> str:
    if not plan.model.measured:
        return "nominal figures; 'hetero-la probe' measures this machine"
    names = ", ".join(plan.workers[place].name for place in plan.model.unmeasured)
    rest = f"; nominal figures for {names}" if names else ""
    return f"this machine's profile, measured {plan.model.measured}{rest}"


def routes_seconds(plan: Plan) -> dict[str, float]:
    """Return how long the routes without this plan are estimated to take."""
    if not ROUTINES[plan.routine].library or not plan.layout.m or not plan.layout.n:
        return {}
    layout, problem, (first, *_) = plan.layout, plan.problem, plan.workers
    gpu = first.device if first.has_gpu else None
    found = {} if gpu is None else gpu_routes(problem, gpu, plan.options)
    if gpu is None or plan.host_arrays:
        copies = copies_seconds(problem, layout.m * layout.width)
        found = {f"{name}, with copies": seconds + copies for name, seconds in found.items()}
        found = host_routes(problem, plan.options) | found
    else:
        found["one call of LAPACK, with copies"] = host_call_seconds(problem, 0)
    return found


def _worker(plan: Plan, program: Program, run: Simulation) -> str:
    """Describe the work of one worker."""
    at = program.worker
    worker = plan.workers[at]
    role = "panels" if at == plan.panel_worker else counted(len(program.columns), "tile column")
    return (
        f"  {worker.name} ({worker.kind_text}): {role}, "
        f"{counted(len(program.instructions), 'instruction')}, {in_bytes(run.peak_bytes[at])}, "
        f"computes for {in_seconds(run.computing[at])}, idle for {in_seconds(run.idle[at])}"
    )
