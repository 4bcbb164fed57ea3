"""Columns that a worker's memory has room for, where the matrix is larger."""

from __future__ import annotations

import bisect
from functools import partial

from hetero_la.planning.given import Given
from hetero_la.planning.memory import require_room
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import over_processes
from hetero_la.scheduler.program.instructions import Program
from hetero_la.scheduler.program.streaming import BUFFERS
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.storage.shard import local_width


def needs_streaming(plan: Plan, limit: int) -> bool:
    """Return whether some worker of a run needs more than `limit` allows for all its columns."""
    needed = zip(plan.bytes_needed(), _limits(plan, limit), strict=True)
    return any(nbytes > most for nbytes, most in needed)


def shard_widths(plan: Plan, limit: int) -> list[int]:
    """Return the most element columns for which each worker has room beside its buffers.

    Parameters
    ----------
    plan : Plan
        Plan of the run with all columns in memory.
    limit : int
        Bytes of memory of each GPU, and of the host for CPU workers.

    Raises
    ------
    InsufficientMemoryError
        If there is no room for one tile column and its buffers.
    """
    widest, widths = max(plan.layout.column_widths), []
    for program, most in zip(plan.programs, _limits(plan, limit), strict=True):
        shape, device = (plan.layout.m, plan.layout.n), plan.workers[program.worker].device
        least = _bytes(plan, program, widest)
        require_room(plan.routine, shape, plan.dtype, device, least, most)
        able = range(widest, max(local_width(plan.layout, program.columns), widest) + 1)
        fits = bisect.bisect_right(able, most, key=partial(_bytes, plan, program))
        widths.append(able[fits - 1])
    return widths


def _limits(plan: Plan, limit: int) -> list[int]:
    """Return the bytes that each worker may use: CPU workers share the host's."""
    cpus = sum(worker.kind == "cpu" for worker in plan.workers)
    return [limit // cpus if worker.kind == "cpu" else limit for worker in plan.workers]


def _bytes(plan: Plan, program: Program, width: int) -> int:
    """Return the bytes that a worker needs with so many element columns in memory at a time."""
    layout = plan.layout
    read_back = BUFFERS * layout.m * max(layout.column_widths)
    columns = (layout.m * width + read_back) * plan.dtype.itemsize
    return columns + plan.received_bytes(program) + plan.work_bytes(program, width)


def require_streaming(plan: Plan, limit: int, given: Given) -> None:
    """Raise InsufficientMemoryError if a run needs all columns in memory."""
    why = ""
    if given.blocks:
        why = "a Dask array is factored with all columns in memory"
    elif over_processes(plan.workers):
        why = "workers of one process stream columns, not those of several"
    elif plan.checked:
        why = "what follows needs the matrix beside its factors"
    elif plan.panel_worker is not None:
        why = "panel='cpu' needs all columns in memory"
    if why:
        limits = _limits(plan, limit)
        needed, most = max(zip(plan.bytes_needed(), limits, strict=True), key=lambda n: n[0] - n[1])
        raise InsufficientMemoryError(
            f"{plan.title} needs {needed:,} bytes on a worker, where memory allows {most:,}: {why}"
        )
