"""Check of the memory that a plan needs."""

from __future__ import annotations

import platform
from collections import Counter

from hetero_la.planning.memory import require_room
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.tiles.kernels.cpu.device import available_memory


def check_memory(
    plan: Plan, memory: dict[str, int], target: int, *, new_columns: int, checkpoints: int = 2
) -> None:
    """Raise `InsufficientMemoryError` unless the workers have the memory that a run needs.

    Parameters
    ----------
    plan : Plan
        Plan of the run.
    memory : dict
        Bytes free for each worker, by name; workers of one host share its memory.
    target : int
        Device of the result: a GPU's index, or -1 for the host.
    new_columns : int
        Columns of the result for which memory has yet to be allocated.
    checkpoints : int, optional
        Copies of the matrix that checkpoints in the client's memory may need: the latest
        checkpoint, and the one that is about to replace it.
    """
    host = platform.node()
    needed: Counter[tuple[str, int | str]] = Counter({(host, -1): 0})
    there: dict[tuple[str, int | str], int] = {(host, -1): available_memory()}
    there |= {_memory_of(worker): memory[worker.name] for worker in plan.workers}
    needed[host, target] = plan.layout.m * new_columns * plan.dtype.itemsize
    if over_processes(plan.workers) and not plan.options.checkpoint_folder:
        copies = checkpoints if plan.options.checkpoint else 0
        needed[host, -1] += copies * plan.layout.m * plan.layout.width * plan.dtype.itemsize
    for program in plan.programs:
        worker = plan.workers[program.worker]
        place = _memory_of(worker)
        shard = plan.shard_bytes(program)
        if not worker.here:  # besides its shard: columns shipped to it, and back
            needed[worker.host, -1] += shard
        elif worker.device == target and (
            program.worker in plan.shared or len(program.columns) == plan.layout.nt + plan.layout.rt
        ):
            shard = 0  # it works in the memory of the result
        needed[place] += shard + plan.work_bytes(program)
    for place, required in needed.items():
        free = there.get(place, required)
        shape = (plan.layout.m, plan.layout.n)
        require_room(plan.routine, shape, plan.dtype, place[1], required, free)


def _memory_of(worker: WorkerInfo) -> tuple[str, int | str]:
    """Return host and device whose memory a worker uses: -1 for the host, or a GPU."""
    return worker.host, worker.gpu or worker.device
