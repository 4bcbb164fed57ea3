"""Plans: everything that is decided before a run, and visible."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hetero_la.memory import shard_bytes, work_bytes
from hetero_la.options import Options
from hetero_la.planned_graph import PlannedGraph
from hetero_la.routines import ROUTINES
from hetero_la.scheduler.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.costs import MachineModel, window_steps
from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.job import Job
from hetero_la.scheduler.messages import Traffic
from hetero_la.scheduler.simulate import Simulation, simulate
from hetero_la.scheduler.workers import WorkerInfo, over_processes
from hetero_la.tiles.layout import TileLayout


@dataclass(frozen=True, eq=False)
class Plan:
    """What will run where.

    Attributes
    ----------
    routine : str
        A key of `hetero_la.routines.ROUTINES`.
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
    graph : PlannedGraph
        The tasks.
    programs : list of Program
        What each worker does.
    traffic : Traffic
        What travels between them.
    model : MachineModel
        What predictions are based on.
    host_arrays : bool
        Whether the matrix is on the host while its columns' owners are GPUs, so that
        columns travel there and back.
    """

    routine: str
    layout: TileLayout
    dtype: np.dtype[Any]
    options: Options
    workers: tuple[WorkerInfo, ...]
    distribution: Distribution
    panel_worker: int | None
    lookahead: int
    graph: PlannedGraph
    programs: list[Program]
    traffic: Traffic
    model: MachineModel
    host_arrays: bool

    @property
    def nb(self) -> int:
        """Tile size."""
        return self.layout.nb

    @property
    def shared(self) -> bool:
        """Whether the workers work in the result's own memory."""
        return share_memory(self.workers)

    @property
    def panel(self) -> str:
        """Where panels are factored: "cpu" or "gpu"."""
        return self.workers[self.panel_worker or 0].kind

    @property
    def flops(self) -> float:
        """Real floating-point operations of the routine, as LAPACK counts them."""
        total = ROUTINES[self.routine].flops(self.layout.m, self.layout.n, self.layout.nrhs)
        return total * (4 if self.dtype.kind == "c" else 1)

    @property
    def placement(self) -> list[int]:
        """Worker of each task, as an index into `workers`."""
        return self.graph.placement

    @property
    def task_seconds(self) -> np.ndarray:
        """Predicted seconds of each task on its worker, shape (tasks,); transfers are not in it.

        Examples
        --------
        >>> import hetero_la
        >>> from hetero_la.scheduler.analysis import critical_path
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
        granularity: Literal["column", "tile"] = "column",
        collapse: bool | None = None,
    ) -> None:
        """Draw the graph with its workers and its critical path: ``plan.graph.draw``.

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
        self.graph.draw(path, granularity=granularity, collapse=collapse)

    def simulate(self) -> Simulation:
        """Run the programs on the machine model, without kernels."""
        return simulate(
            self.programs, self.traffic, self.graph, self.model, self.dtype,
            host_arrays=self.host_arrays,
        )  # fmt: skip

    @functools.cached_property
    def predicted_seconds(self) -> float:
        """Predicted time of the run, in seconds, from the first load to the last store."""
        return self.simulate().makespan

    @functools.cached_property
    def window(self) -> int:
        """Steps in one Dask task, where the workers share the client's process."""
        if len(self.workers) == 1:
            return self.layout.kt + 1
        return window_steps(self.predicted_seconds, self.layout.kt, len(self.workers))

    def bytes_needed(self) -> list[int]:
        """Peak bytes on each worker: its shard, panels received, values and workspace."""
        return [shard_bytes(self, p) + work_bytes(self, p) for p in self.programs]

    def job(self) -> Job:
        """The plan as the executors take it."""
        return Job(
            self.routine, self.programs, self.traffic.messages, self.workers, self.layout,
            self.dtype, self.options.kernel, self.window,
        )  # fmt: skip

    def _windows(self) -> str:
        if not self.workers[0].address:
            return "none, runs in the calling thread"
        if over_processes(self.workers):
            return "a Dask task ends wherever a message leaves its worker"
        return f"{min(self.window, self.layout.kt + 1)} steps in one Dask task"

    def _checkpoints(self) -> list[str]:
        if self.options.checkpoint is None or not over_processes(self.workers):
            return []
        where = self.options.checkpoint_folder or "the client's memory"
        return [f"checkpoints: every {self.options.checkpoint} steps, in {where}"]

    def _parallelism(self) -> str:
        seconds = self.task_seconds
        path = critical_path(self.graph, seconds)
        return (
            f"parallelism: {average_parallelism(self.graph, seconds):.3g} on average; "
            f"critical path: {len(path)} tasks, {seconds[path].sum():.3g} s "
            f"of {total_work(self.graph, seconds):.3g} s of work"
        )

    def explain(self) -> str:
        """Say what was decided, and what it is expected to take."""
        layout = self.layout
        what = "columns made" if self.graph.made_columns() else "right-hand sides"
        rhs = f" with {layout.nrhs} {what}" if layout.nrhs else ""
        lines = [
            f"{self.routine} of a {layout.m} x {layout.n} {self.dtype.name} matrix{rhs}",
            f"tiles: nb = {layout.nb}, {layout.mt} x {layout.nt} tiles, {layout.kt} steps",
            f"graph: {len(self.graph)} tasks, {self.flops:.3g} flops",
            self._parallelism(),
            f"look-ahead: {self.lookahead} panels; panels on the {self.panel}",
            f"windows: {self._windows()}",
            *self._checkpoints(),
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


def share_memory(workers: Sequence[WorkerInfo]) -> bool:
    """Whether workers work in the result's own memory, as threads of this process."""
    return all(w.kind == "cpu" and not w.virtual and w.pid == os.getpid() for w in workers)
