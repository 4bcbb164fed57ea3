"""How many bytes a plan needs where, and whether they are there."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.messages import buffer_elements
from hetero_la.scheduler.workers import WorkerInfo, over_processes
from hetero_la.tiles.errors import InsufficientMemoryError
from hetero_la.tiles.kernels.cpu import available_memory
from hetero_la.tiles.layout import TileLayout
from hetero_la.tiles.shard import local_width

if TYPE_CHECKING:
    from hetero_la.plan import Plan

#: Workspaces of the GPU kernels (gathers, triangular solves) and buffers of host transfers.
GPU_WORKSPACE = 1 << 28


def shard_bytes(plan: Plan, program: Program) -> int:
    """Bytes of a worker's share of the matrix."""
    width = local_width(plan.layout, program.columns)
    return plan.layout.m * width * plan.dtype.itemsize


def work_bytes(plan: Plan, program: Program) -> int:
    """Bytes that a worker needs besides its shard: panels received, values, workspace."""
    received = buffer_elements(plan.traffic.messages[key].parts for key in program.received)
    elements = program.slots * sum(received.values())
    elements += sum(math.prod(shape) for shape, dtype in program.values.values() if dtype is None)
    worker = plan.workers[program.worker]
    if worker.device >= 0:
        width = local_width(plan.layout, program.columns)
        tries = plan.options.qr_panel != "householder" and any(
            name == "method" for name, _ in program.values
        )
        elements += kernel_elements(plan.layout, width, cholesky_qr=tries)
        return elements * plan.dtype.itemsize + GPU_WORKSPACE
    return elements * plan.dtype.itemsize


def kernel_elements(layout: TileLayout, width: int, *, cholesky_qr: bool) -> int:
    """Elements of a GPU's workspaces that grow with the matrix, of which it has `width` columns.

    The triangular solve is out of place, on either of two queues, and so is CholeskyQR2, which
    needs ten squares beside a panel.
    """
    solved = panel = 0
    for k in range(layout.kt):
        start, nb = layout.row(k), layout.column_width(k)
        solved = max(solved, nb * min(width, layout.width - start - nb))
        panel = max(panel, (layout.m - start + 10 * nb) * nb)
    return 2 * solved + (panel if cholesky_qr else 0)


def check_memory(
    plan: Plan, memory: dict[str, int], target: int, *, new_columns: int, checkpoints: int = 2
) -> None:
    """Raise `InsufficientMemoryError` unless there is the memory that a run needs.

    Parameters
    ----------
    plan : Plan
        What is to run.
    memory : dict
        Bytes free for each worker, by name; workers of one host share its memory.
    target : int
        Where the result is: a GPU's index, or -1 for the host.
    new_columns : int
        Columns of the result for which memory has yet to be allocated.
    checkpoints : int, optional
        Copies of the matrix that checkpoints in the client's memory may need beside what is
        there: the latest, and the one that is about to take its place.
    """
    host = platform.node()
    needed: dict[tuple[str, int | str], int] = {(host, -1): 0}
    there: dict[tuple[str, int | str], int] = {(host, -1): available_memory()}
    for worker in plan.workers:
        there[_place(worker)] = memory[worker.name]
    needed[host, target] = plan.layout.m * new_columns * plan.dtype.itemsize
    if over_processes(plan.workers) and not plan.options.checkpoint_folder:
        copies = checkpoints if plan.options.checkpoint else 0
        needed[host, -1] += copies * plan.layout.m * plan.layout.width * plan.dtype.itemsize
    for program in plan.programs:
        worker = plan.workers[program.worker]
        place = _place(worker)
        shard = shard_bytes(plan, program)
        if not worker.here:  # beside the columns that are shipped to it, and back
            needed[worker.host, -1] = needed.get((worker.host, -1), 0) + shard
        elif worker.device == target and (
            plan.shared or len(program.columns) == plan.layout.nt + plan.layout.rt
        ):
            shard = 0  # it works in the result's own memory
        needed[place] = needed.get(place, 0) + shard + work_bytes(plan, program)
    for place, required in needed.items():
        free = there.get(place, required)
        shape = (plan.layout.m, plan.layout.n)
        require_room(plan.routine, shape, plan.dtype, place[1], required, free)


def _place(worker: WorkerInfo) -> tuple[str, int | str]:
    """Whose memory a worker uses: that of a host (-1) or of a GPU."""
    return worker.host, worker.gpu or worker.device


def require_room(
    routine: str, shape: tuple[int, int], dtype: Any, device: int | str, needed: int, free: int
) -> None:
    """Raise `InsufficientMemoryError` if more bytes are needed than there are.

    Parameters
    ----------
    routine : str
        What is to be done.
    shape, dtype
        With which matrix.
    device : int or str
        Where: a GPU's index or PCI address, or -1 for the host.
    needed, free : int
        Bytes.
    """
    if needed > free:
        where = "the host" if device == -1 else f"GPU {device}"
        error = InsufficientMemoryError(
            f"{routine} of a {shape[0]} x {shape[1]} {np.dtype(dtype).name} matrix needs "
            f"{needed:,} bytes on {where}, which has {free:,}"
        )
        error.on_gpu = device != -1
        raise error
