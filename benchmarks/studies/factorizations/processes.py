"""Runs on clusters of processes, of Dask arrays whose columns are with the workers beforehand."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, futures_of, wait
from distributed.system import MEMORY_LIMIT

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.studies.factorizations.device_data import random_columns

#: Functions of Dask arrays of which no result is more than the factors.
LAZY: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cholesky, "qr": partial(hetero_la.qr, mode="r")
}  # fmt: skip
#: What the names of the arrays that are factored begin with.
MATRIX = "matrix-"
#: Seconds to wait for the results of the run before to go.
_GONE = 60


def memory_limit() -> int:
    """Return the bytes of the host's memory that this process and its children may have."""
    return int(MEMORY_LIMIT)


@contextlib.contextmanager
def processes(count: int, *, gpus: bool) -> Iterator[Client]:
    """Start processes of a worker each, of a GPU or a core; yield their client, the current one."""
    cluster: SpecCluster
    if gpus:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        workers = {
            f"gpu{i}": {"cls": Nanny, "options": {
                "nthreads": 1, "resources": {"GPU": 1}, "env": {"CUDA_VISIBLE_DEVICES": device},
                # With a limit, Dask would count arrays on the GPU, and write them to disk.
                "memory_limit": 0, "silence_logs": logging.WARNING,
            }}
            for i, device in enumerate(seen.split(",")[:count])
        }  # fmt: skip
        nowhere = {"dashboard": False, "dashboard_address": ":0", "host": "127.0.0.1"}
        scheduler = {"cls": Scheduler, "options": nowhere}
        cluster = SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.WARNING)
    else:
        cluster = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        yield client


def columns(routine: str, n: int, start: int, width: int, gpu: int) -> Any:
    """Return columns of a random matrix, positive definite for Cholesky, on a GPU or the host."""
    diagonal = 2.0 * n if routine == "cholesky" else 0.0
    if gpu < 0:
        block = np.asfortranarray(np.random.default_rng(start).random((n, width)) - 0.5)
        block[start + np.arange(width), np.arange(width)] += diagonal
        return block
    import cupy

    with cupy.cuda.Device(gpu):
        block = random_columns(start, (n, width), "float64", diagonal)
        cupy.cuda.get_current_stream().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()  # of its making
        return block


def blocks(client: Client, routine: str, n: int, count: int) -> da.Array:
    """Return a Dask array of blocks of columns, which are with the workers by turns."""
    infos = worker_infos(client)
    infos = [info for info in infos if info.has_gpu] or infos
    (sizes,) = da.core.normalize_chunks(-(-n // count), (n,))
    starts = itertools.accumulate(sizes, initial=0)
    name = f"{MATRIX}{uuid.uuid4()}"
    made = {
        (name, 0, j): client.submit(
            columns, routine, n, start, width, info.device, key=(name, 0, j),
            workers=[info.address],
        )
        for j, (start, width, info) in enumerate(zip(starts, sizes, itertools.cycle(infos)))
    }  # fmt: skip
    wait(list(made.values()))
    meta = client.submit(lambda block: block[:0, :0], next(iter(made.values()))).result()
    return da.Array(made, name, ((n,), sizes), meta=meta)


def lazily(client: Client, routine: str, x: da.Array) -> float:
    """Return the seconds until the factors of a Dask array are with the workers."""
    wait_until_gone(client, but=MATRIX)
    began = time.perf_counter()
    lazy = LAZY[routine](x, check_finite=False, client=client)
    there = client.persist(list(lazy) if isinstance(lazy, tuple) else [lazy])
    wait(there)
    seconds = time.perf_counter() - began
    for block in futures_of(there):
        if block.status == "error":
            # The client keeps the exception itself, and with it what its frames refer to.
            raise copy.copy(block.exception())
    return seconds


def wait_until_gone(client: Client, but: str | None = None) -> None:
    """Wait until results of the runs before, but for those with `but` in their keys, are gone."""
    until = time.monotonic() + _GONE
    while any(but is None or but not in key for key in _keys(client)):
        if time.monotonic() > until:
            raise TimeoutError(f"results of the run before are still there after {_GONE} s")
        time.sleep(0.01)


def _keys(client: Client) -> list[str]:
    found: list[str] = client.run_on_scheduler(
        lambda dask_scheduler: [*map(str, dask_scheduler.tasks)]
    )
    return found


def free_memory() -> None:
    """In a worker: give back what is left of the runs before."""
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
