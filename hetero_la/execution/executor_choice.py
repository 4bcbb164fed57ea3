"""Choice of the executor: calling thread or workers of a cluster, and the plan for them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hetero_la.execution.destination import Destination
from hetero_la.execution.resident_factors import Residency
from hetero_la.planning.check_memory import check_memory
from hetero_la.planning.decisions import Problem, can_check, quick_estimate
from hetero_la.planning.given import Given
from hetero_la.planning.memory import quickest_with_room, require_room
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.cluster.clients import (
    embedded_can_run,
    embedded_client,
    running_client,
    started_client,
    worker_infos,
)
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.tiles.arrays.errors import DeviceUnavailableError, InsufficientMemoryError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.kernels.cpu.device import available_memory
from hetero_la.tiles.kernels.gpu.device import GpuDevice

#: Predicted seconds up to which a run stays in the calling thread, on the host and on the caller's
#: own GPU: a shorter run is not worth a cluster, and a GPU gains nothing from another thread.
INLINE_LIMIT = {"cpu": 0.05, "gpu": 0.2}
#: Predicted seconds of a run on the caller's own GPU from which others may gain something.
_LEAST_SHARED = 0.05

#: Free memory is rounded down to multiples of so many bytes, so that plans can be used again.
_MEMORY_UNIT = 1 << 28
#: Part of the host's free memory that a run takes for columns of a matrix in a file: the rest is
#: for the file's pages, and others.
_PART_OF_MEMORY = 0.5

Planned = tuple[Plan, Any, Destination]


def choose(
    routine: str, destination: Destination, client: Any, options: Mapping[str, Any], *,
    may_stream: bool = False,
) -> Planned:  # fmt: skip
    """Plan a run, unless there is not enough memory for it.

    With `may_stream`, a matrix on the host may be larger than what GPUs have free.

    Returns
    -------
    plan : Plan
        The plan.
    client : Client or None
        Client of the workers that run it; None for the calling thread.
    destination : Destination
        Where its result goes.
    """
    explicit, client = client is not None, client or running_client()
    caller = _caller(destination.gpu)
    asked = _Asked(routine, destination, may_stream, caller)
    chosen = with_preset(_with_bound(options, destination), client)

    def alone() -> Planned:
        return asked.planned(chosen, (caller,), None)

    if not explicit:
        able = chosen.panel == "auto" or caller.kind == chosen.panel
        if able and client is None and not embedded_can_run():
            return alone()
        if able and asked.is_short(chosen):
            return asked.shared(chosen, client) or alone()
        client = client or embedded_client()
        chosen = with_preset(_with_bound(options, destination), client)
    workers = tuple(worker_infos(client, refresh=True))
    if not workers:
        raise DeviceUnavailableError("the cluster has no running workers")
    if destination.gpu is not None and not explicit and not _gpus_here(workers):
        return alone()
    there = partial(asked.planned, chosen, workers, client)
    if explicit or chosen.memory is None or any(worker.kind == "gpu" for worker in workers):
        return there()
    # One worker with all cores has all the memory, and reads each panel back once; several do that
    # beside other work.
    return quickest_with_room((there, alone), lambda planned: planned[0].predicted_seconds)


@dataclass(frozen=True)
class _Asked:
    """A run that is asked for, and the calling thread, which might do it."""

    routine: str
    destination: Destination
    may_stream: bool
    caller: WorkerInfo

    @property
    def problem(self) -> Problem:
        """What it computes."""
        a = self.destination.matrix
        m, n = a.shape
        return Problem(self.routine, m, n, self.destination.nrhs, a.dtype)

    def result_bytes(self, workers: tuple[WorkerInfo, ...]) -> int:
        """Return the bytes of new memory for its result, where the matrix is."""
        a = self.destination.matrix
        return int(a.shape[0] * self.destination.least_columns(workers) * a.dtype.itemsize)

    def is_short(self, options: Options) -> bool:
        """Return whether the calling thread has memory for it, and is not busy for long."""
        caller = self.caller
        fits = self.result_bytes((caller,)) <= caller.memory  # if not, skip the estimate
        return fits and quick_estimate(self.problem, options, caller) < INLINE_LIMIT[caller.kind]

    def shared(self, options: Options, client: Any) -> Planned | None:
        """Plan a short run on several GPUs of a cluster, if the one with the matrix gains by it.

        Without a client it is the process's own, if that is running: to start it takes longer.
        """
        if self.caller.kind == "cpu" or options.order == "left":
            return None
        if quick_estimate(self.problem, options, self.caller) < _LEAST_SHARED:
            return None
        client = client or started_client()
        if client is None:
            return None
        if not any(gpu.device == self.caller.device for gpu in _gpus_here(worker_infos(client))):
            return None
        gpus = _gpus_here(worker_infos(client, refresh=True))
        with contextlib.suppress(InsufficientMemoryError):
            if len(gpus) > 1:
                planned = self.planned(options, gpus, client)
                return planned if len(planned[0].workers) > 1 else None
        return None

    def planned(self, options: Options, workers: tuple[WorkerInfo, ...], client: Any) -> Planned:
        """Plan it for some workers; raise InsufficientMemoryError if they have too little."""
        goes, where = self.destination, self.destination.gpu
        a, place = goes.matrix, -1 if where is None else where
        # Check this first: planning for a huge matrix takes long.
        needed = self.result_bytes(workers)
        require_room(self.routine, a.shape, a.dtype, place, needed, self.caller.memory)
        on_host = where is None and client is not None
        how = _bounded(options, workers) if self.may_stream and on_host else options
        given = Given(on_host, goes.source, where, mapped=goes.mapped)
        memory = {worker.name: worker.memory for worker in workers}

        def attempt(checked: bool) -> Planned:
            plan = make_plan(self.problem, how, workers, given, checked=checked)
            placed = goes.planned(plan, client)
            check_memory(plan, memory, place, new_columns=placed.new_columns)
            return plan, client, placed

        unwanted = on_host and goes.residency is Residency.NOBODY
        if unwanted and can_check(self.problem, options, workers):
            with contextlib.suppress(InsufficientMemoryError):  # for the matrix beside its factors
                return attempt(checked=True)
        return attempt(checked=False)


def _gpus_here(workers: Iterable[WorkerInfo]) -> tuple[WorkerInfo, ...]:
    """Return the workers that have a real GPU in this process, and so read its CuPy arrays."""
    return tuple(worker for worker in workers if worker.device >= 0 and worker.here)


def _with_bound(options: Mapping[str, Any], destination: Destination) -> Mapping[str, Any]:
    """Return the options, of a matrix in a file with memory as a bound: no page has to be there."""
    if not destination.mapped or options.get("memory") is not None:
        return options
    free = int(_PART_OF_MEMORY * available_memory())
    return {**options, "memory": max(free // _MEMORY_UNIT, 1) * _MEMORY_UNIT}


def _bounded(options: Options, workers: tuple[WorkerInfo, ...]) -> Options:
    """Return the options with the memory that all GPUs have free as a bound, if there is none."""
    free = min((worker.memory for worker in workers if worker.kind == "gpu"), default=0)
    if options.memory is not None or not free:
        return options
    return replace(options, memory=free // _MEMORY_UNIT * _MEMORY_UNIT or free)


def with_preset(options: Mapping[str, Any], client: Any) -> Options:
    """Return the options; those not given are taken from the preset of the client's cluster."""
    return Options.choose(options, getattr(getattr(client, "cluster", None), "options", None))


def require_options(options: Mapping[str, Any], client: Any) -> None:
    """Check options and client of a call that needs no run."""
    with_preset(options, None if client is None else running_client(client))


#: A GPU's device object serves one thread at a time, and multi-threaded BLAS calls of
#: several threads only get in each other's way.
device_of_caller = ProcessLock()


@functools.cache
def caller_gpu(index: int) -> GpuDevice:
    """Return a GPU as a device of the calling thread."""
    return GpuDevice(index, "caller")


def _caller(index: int | None) -> WorkerInfo:
    """Return the calling thread as a worker, on the host or on the GPU that holds the data."""
    if index is None:
        return replace(calling_thread(), memory=available_memory())
    memory = caller_gpu(index).free_bytes()
    return replace(calling_thread(), kind="gpu", device=index, memory=memory)
