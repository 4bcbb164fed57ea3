"""Measurement of the profile of this machine, and of a cluster."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import replace

from hetero_la.scheduler.cluster.clients import ClientLike, running_client, worker_infos
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.machine.identity import machine_identity
from hetero_la.scheduler.machine.model import DaskCosts
from hetero_la.scheduler.machine.profile import Profile
from hetero_la.scheduler.machine.this_machine import ProfileWarning
from hetero_la.scheduler.on_dask.pairs import message_seconds
from hetero_la.scheduler.placement.workers import over_processes
from hetero_la.scheduler.probe.copies import measure_pairs
from hetero_la.scheduler.probe.dask_latency import (
    measure_cluster_dask,
    measure_dask,
)
from hetero_la.scheduler.probe.machine import (
    CpuWorkers,
    ProbeSettings,
    measure_cpus,
    measure_gpu,
    measure_gpu_links,
)
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.kernels.cpu.device import usable_cores

#: Load per core above which other processes disturb the measurements.
_BUSY_LOAD = 0.5


def make_profile(size: ClusterSize, settings: ProbeSettings) -> Profile:
    """Measure the workers of a cluster, and the calling thread.

    Times in other element types than that of the settings are scaled from it.

    Returns
    -------
    Profile
        The profile; equal workers share one entry.
    """
    _warn_if_busy()
    gpus, names = list(range(size.gpus)), machine_identity()["gpus"]
    different = [index for index in gpus if names.index(names[index]) == index]
    devices = [measure_gpu(index, settings) for index in different]
    for team in _teams(size):
        # The calling thread, which has all cores, runs small problems: few sizes will do.
        few = settings.quick or team.threads == usable_cores()
        devices.append(measure_cpus(team, replace(settings, quick=few)))
    settings.report("links")
    links = measure_gpu_links(gpus, settings.dtype)
    settings.report("Dask")
    return Profile(machine_identity(), _now(), tuple(devices), links, _dask(size))


def profile_with_cluster(
    profile: Profile | None,
    client: ClientLike,
    report: Callable[[str], None] = lambda what: None,
) -> Profile:
    """Measure what runs on a cluster of other processes need besides their workers' speed.

    These are the links between workers of different processes, and Dask's overhead.

    Parameters
    ----------
    profile : Profile or None
        This machine's, if there is one.
    client : Client
        Of the cluster.
    report : callable, optional
        Called with a text before each part.

    Returns
    -------
    Profile
        The profile with them.

    Raises
    ------
    ValueError
        If there are no workers in other processes.
    """
    running = running_client(client)
    workers = [] if running is None else worker_infos(running)
    if not over_processes(workers):
        raise ValueError("the cluster must have workers in other processes than this one")
    links = measure_pairs(workers, functools.partial(message_seconds, running), report)
    report("Dask")
    dask = measure_cluster_dask(running, [worker.address for worker in workers])
    known = profile or Profile(machine_identity(), _now(), ())
    return known.with_cluster(links, dask)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _warn_if_busy() -> None:
    """Warn if other processes would slow down threads that wait for each other."""
    load, cores = os.getloadavg()[0], machine_identity()["cores"]
    if load > _BUSY_LOAD * cores:
        warnings.warn(
            f"this machine is busy (a load of {load:.1f} on {counted(cores, 'core')}): measured "
            "rates may be too low, especially with several threads",
            ProfileWarning,
            stacklevel=3,
        )


def _teams(size: ClusterSize) -> list[CpuWorkers]:
    """Return the CPU workers for each number of threads; the calling thread has all cores."""
    teams = {usable_cores(): 1}
    if workers := size.cpus + size.virtual_gpus:
        teams[size.blas_threads] = workers
    return [CpuWorkers(workers, threads) for threads, workers in teams.items()]


def _dask(size: ClusterSize) -> DaskCosts:
    """Measure Dask's costs on a cluster of all the workers."""
    with Cluster(**dataclasses.asdict(size)) as cluster:
        client = cluster.private_client()
        return measure_dask(client, [info.address for info in worker_infos(client)])
