"""Simulation of programs on the machine model, without kernels.

A discrete-event simulation of the executors, by the rules of `events`.  Programs that would
deadlock raise an error that names the stuck instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import MachineModel, Source
from hetero_la.scheduler.predict.events import SimulationState
from hetero_la.scheduler.program.instructions import Program
from hetero_la.scheduler.program.messages import Traffic
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.device import Queue


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """Result of a simulated run; times in seconds from its start.

    Attributes
    ----------
    makespan : float
        Time at which the last instruction has ended.
    start, stop : list of numpy.ndarray
        For each worker, start and end of its instructions on their queues.
    issued : list of numpy.ndarray
        For each worker, the times at which its host thread had enqueued them.
    busy : numpy.ndarray, shape (workers, 3)
        Time in which each queue had something running.
    computing : numpy.ndarray, shape (workers,)
        Time in which a worker's PANEL or UPDATE queue, or both, ran something.
    bytes_sent : numpy.ndarray, shape (workers, workers)
        Bytes moved from worker (row) to worker (column).
    bytes_host : numpy.ndarray, shape (workers,)
        Bytes loaded from and stored to the user's array.
    peak_bytes : numpy.ndarray, shape (workers,)
        Most memory that each worker needs at once: its columns, panels received, values
        and workspace.  Empty where only programs were simulated, and not a plan.
    """

    makespan: float
    start: list[np.ndarray]
    stop: list[np.ndarray]
    issued: list[np.ndarray]
    busy: np.ndarray
    computing: np.ndarray
    bytes_sent: np.ndarray
    bytes_host: np.ndarray
    peak_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    _repr_html_ = as_html

    def __repr__(self) -> str:
        moved = f"{in_bytes(self.bytes_moved)} moved" if self.bytes_moved else ""
        workers = counted(len(self.start), "worker")
        return one_line("Simulation", in_seconds(self.makespan), workers, moved)

    @property
    def idle(self) -> np.ndarray:
        """Time in which each worker computed nothing, shape (workers,)."""
        return self.makespan - self.computing

    @property
    def bytes_moved(self) -> int:
        """Number of bytes transferred between workers."""
        return int(self.bytes_sent.sum())


def simulate(
    programs: Sequence[Program],
    traffic: Traffic,
    graph: TaskGraph,
    model: MachineModel,
    dtype: Any = np.float64,
    *,
    host_arrays: bool = False,
    source: Source = "row-major",
    absent: int = 0,
    windows: Sequence[Sequence[int]] = (),
) -> Simulation:
    """Predict a run.

    Parameters
    ----------
    programs : sequence of Program
        One per worker.
    traffic : Traffic
        The messages between them.
    graph : TaskGraph
        The graph of the programs.
    model : MachineModel
        One device per program, and the links.
    dtype : dtype, optional
        Element type.
    host_arrays : bool, optional
        Whether the loads and stores of GPUs cost time; otherwise their data are in place.
    source : {"row-major", "column-major", "in place", "pinned"}, optional
        Memory order of the array from which CPUs load the matrix.
    absent : int, optional
        Leading tile columns that stay with the workers, which do not store them.
    windows : sequence, optional
        For each worker, where in its program Dask's tasks begin; empty: without Dask.

    Returns
    -------
    Simulation

    Raises
    ------
    RuntimeError
        If the programs wait for each other; it names the instructions that are stuck.

    Examples
    --------
    >>> from hetero_la.scheduler.machine.device import H200
    >>> from hetero_la.scheduler.placement.distribution import Distribution
    >>> from hetero_la.scheduler.placement.placement import Placement
    >>> from hetero_la.scheduler.program.build import build_programs
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = TaskGraph(TileLayout(8192, 8192, 4096))
    >>> A = graph.matrix("A")
    >>> task = graph.add(
    ...     "gemm", step=0, column=1, reads=[A[1, 0], A[0, 1]], updates=[A[1, 1]]
    ... )
    >>> columns = Distribution.cyclic(2, [1, 1])
    >>> programs, traffic = build_programs(graph, Placement(graph, columns), columns, 2, depth=1)
    >>> run = simulate(programs, traffic, graph, MachineModel((H200, H200)))
    >>> bool(0.002 < run.makespan < 0.01)
    True
    """
    if len(model.devices) != len(programs):
        raise ValueError(f"{len(programs)} programs need as many devices, not {len(model.devices)}")
    state = SimulationState(programs, model)
    state.set_costs(traffic, graph, np.dtype(dtype), host_arrays, source, absent)
    state.connect()
    state.add_dask_delays(windows, model.dask.start, model.dask.hop)
    state.run()
    state.check_finished()
    return _summary(state)


def _summary(state: SimulationState) -> Simulation:
    """Cut the times into one array per worker."""
    devices = state.model.devices

    def cut(times: list[float]) -> list[np.ndarray]:
        return [_slowed(np.array(times[a:b]), devices) for a, b in pairwise(state.first)]

    start, stop = cut(state.start), cut(state.stop)
    busy, computing = np.zeros((len(start), len(Queue))), np.zeros(len(start))
    for w, program in enumerate(state.programs):
        queues = np.array([i.queue for i in program.instructions], np.intp)
        np.add.at(busy[w], queues, stop[w] - start[w])
        mine = queues < Queue.COPY
        computing[w] = _covered(start[w][mine], stop[w][mine])
    makespan = max((float(ended.max(initial=0.0)) for ended in stop), default=0.0)
    return Simulation(
        makespan, start, stop, cut(state.issued), busy, computing,
        state.bytes_sent, state.bytes_host,
    )  # fmt: skip


def _slowed(times: np.ndarray, devices: Sequence[DeviceModel]) -> np.ndarray:
    """Convert times of a run at full clock to times at the clock under sustained load.

    The GPUs of a run are of one kind, and everything else waits for them.
    """
    slowest = min(devices, key=lambda device: device.sustained)
    late = np.maximum(times - slowest.burst, 0.0)
    return times + late * (1 / slowest.sustained - 1)


def _covered(start: np.ndarray, stop: np.ndarray) -> float:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(stop[order])
    return float(until[-1] - start[0] - np.maximum(start[1:] - until[:-1], 0.0).sum())
