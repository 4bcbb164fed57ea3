"""From a validated problem to a run, by one executor or another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.destination import Destination, holds_result
from hetero_la.execution.executor_choice import caller_gpu, choose, device_of_caller
from hetero_la.execution.one_call import call_library, takes_one_call
from hetero_la.execution.report import Report, Timing
from hetero_la.execution.resident_factors import KeptFactors, Residency, release_copies
from hetero_la.execution.result import Result
from hetero_la.execution.timeline import traced
from hetero_la.io.overwritten import mapped_file, overwriting
from hetero_la.planning.check_memory import check_memory
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import resume
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.scheduler.recovery.restart import run_and_recover
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.arrays.around_run import before_run
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.arrays.transfer import wait_for_writes
from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.pinning import pinned
from hetero_la.tiles.storage.shard import ArrayStorage


def execute(
    routine: str,
    a: Any,
    b: Any = None,
    *,
    columns: int = 0,
    overwrite_a: bool = False,
    residency: Residency = Residency.CALLER,
    client: Any = None,
    **options: Any,
) -> Result:
    """Run `routine` on a validated matrix and right-hand sides.

    Parameters
    ----------
    routine : str
        A key of `hetero_la.algorithms.routines.ROUTINES`.
    a : array, shape (m, n)
        The matrix.
    b : array, shape (m, nrhs), optional
        Right-hand sides, of the same dtype and in the same place.
    columns : int, optional
        How many columns a routine that takes no right-hand sides makes beside the matrix.
    overwrite_a : bool, optional
        Whether the result may take the place of `a`.
    residency : Residency, optional
        Where the factors may be once the run is over, if the workers are GPUs of this process
        and the matrix is on the host.
    client : Client, Cluster or None, optional
        Whose workers to use.
    **options
        See `Options`; None means not given.
    """
    nrhs = columns if b is None else b.shape[1]
    in_place = overwrite_a and not nrhs and holds_result(a)
    plain = client is None and not options and (nrhs or b is None) and mapped_file(a) is None
    if plain and takes_one_call(routine, a, nrhs, in_place=in_place):
        try:  # `suppress` takes longer
            return call_library(routine, a, b, nrhs, in_place)
        except MemoryError:  # of a GPU: tasks say what they need, and free it
            pass
    before_run()
    began = time.perf_counter()
    wanted = Destination(a, nrhs, in_place, residency)
    client = running_client(client) if client is not None else None
    plan, client, destination = _choose(routine, wanted, client, options)
    stays = destination.residency is not Residency.CALLER and not plan.checked
    job = plan.job()
    job.absent = destination.absent
    job.keeps = ROUTINES[routine].keeps if stays else ()
    gpus = all(plan.workers[owner].kind == "gpu" for owner in plan.owners)
    fresh = gpus and plan.host_arrays and not in_place and not over_processes(plan.workers)
    target = destination.allocate()
    storage = ArrayStorage(a, target, b, destination.absent, fresh=fresh)
    with overwriting(a if in_place else None, plan.title), _pinned(plan, a, b, target):
        plan, outcome = _run(plan, job, storage, client, destination.gpu)
    timing = Timing.of(time.perf_counter() - began, plan, outcome)
    copies = destination.residency is Residency.BOTH
    kept = KeptFactors(plan, client, outcome, copies=copies) if stays else None
    report = Report(plan, timing)
    return Result(
        outcome.values,
        plan.layout,
        target.dtype,
        target,
        report,
        kept,
        destination.absent,
        checked=plan.checked,
    )


def _choose(
    routine: str, wanted: Destination, client: Any, options: dict[str, Any]
) -> tuple[Plan, Any, Destination]:
    """Plan a run; where GPUs lack memory, without copies of earlier factors, or streamed."""
    try:
        return choose(routine, wanted, client, options)
    except InsufficientMemoryError as error:
        if not error.on_gpu:
            raise
    if release_copies():
        with contextlib.suppress(InsufficientMemoryError):
            return choose(routine, wanted, client, options)
    return choose(routine, wanted, client, options, may_stream=True)


def _pinned(plan: Plan, a: Any, b: Any, target: Any) -> contextlib.AbstractContextManager[None]:
    """Pin the memory of the matrix, of what is beside it and of the result, if that is planned."""
    if not plan.pins:
        return contextlib.nullcontext()
    given = [x for x in (a, b) if x is not None]
    return pinned(given, fresh=[] if target is a else [target])


def _run(
    plan: Plan, job: Job, storage: ArrayStorage, client: Any, index: int | None
) -> tuple[Plan, Outcome]:
    """Run a plan's job; return the plan that was followed in the end, and what came out."""
    if client is None:
        device = CpuDevice("caller") if index is None else caller_gpu(index)
        with device_of_caller, traced(job) as keep:
            return keep(plan, _inline(job, device, storage))
    wait_for_writes(storage.source)
    wait_for_writes(storage.rhs)
    with traced(job) as keep:
        return keep(*_run_on_cluster(plan, job, storage, client))


def _run_on_cluster(
    plan: Plan, job: Job, storage: ArrayStorage, client: Any
) -> tuple[Plan, Outcome]:
    plans = [plan]

    def again(workers: Sequence[WorkerInfo], step: int) -> Job:
        plans.append(resume(plan, tuple(workers), step))
        memory = {worker.name: worker.memory for worker in workers}
        check_memory(plans[-1], memory, -1, new_columns=0, checkpoints=1)
        graph = plans[-1].graph
        flops = sum(map(graph.flops, graph.tasks))  # of the steps that are left
        return replace(
            plans[-1].job(), traced=job.traced, keeps=job.keeps, absent=job.absent, flops=flops
        )

    folder = plan.options.checkpoint_folder
    with _cores_of_those_who_take_part(plan):
        outcome = run_and_recover(
            client, job, storage, again, seconds=lambda: plans[-1].predicted_seconds,
            folder=None if folder is None else str(folder),
        )  # fmt: skip
    return plans[-1], outcome


def _cores_of_those_who_take_part(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """Return a bound on BLAS for the run: more than a task's own if CPU workers have no part."""
    threads = [worker.blas_threads for worker in plan.workers if worker.device < 0]
    if not threads or over_processes(plan.workers):
        return contextlib.nullcontext()
    return blas_bound(min(threads))


def _inline(job: Job, device: Device, storage: ArrayStorage) -> Outcome:
    runner = Runner(job, 0, device, storage)
    outcome = Outcome(run_inline(runner))
    runner.keep_record(outcome)
    return outcome
