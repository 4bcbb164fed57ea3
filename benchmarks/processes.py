"""LU, Cholesky and QR: workers of one process beside workers of several.

python benchmarks/processes.py --n 2048 4096           NumPy: two threads, and two processes
python benchmarks/processes.py --workers 4 --json rows.json
python benchmarks/processes.py --gpus 2 --n 16384      NumPy: two GPUs of one process, and of two
python benchmarks/processes.py --gpus 2 --blocks 8 --n 32768 65536       blocks that are on the GPUs
python benchmarks/processes.py --scheduler tcp://10.0.0.1:8786 --gpus 2

The contenders run in turns, and the medians of the repeats are compared.  With `--scheduler`, the
processes are the workers of a running cluster.  With `--gpus`, workers have a GPU each, and a third
contender exchanges messages through host memory, not by NCCL, unless `--no-host` leaves it out.
With `--blocks`, the matrix is a Dask array of so many blocks of columns, which are with the
workers, as the factors are then; "predicted" is what the plan says of several processes, once
`--probe` has measured their links and Dask.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from device_data import random_columns
from distributed import Client, LocalCluster, futures_of, wait
from harness import write_json
from peers import seconds_of

import hetero_la
from hetero_la.cli.main import main as main_of_cli
from hetero_la.scheduler.cluster.clients import client_at, worker_infos

ROUTINES: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cho_factor, "qr": hetero_la.qr_factor
}  # fmt: skip
#: Of Dask arrays: functions of which no result is more than the factors.
LAZY: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cholesky, "qr": partial(hetero_la.qr, mode="r")
}  # fmt: skip


@contextlib.contextmanager
def processes(args: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster at `--scheduler`, or of one that is started."""
    if args.scheduler:
        with client_at(args.scheduler) as client:
            yield client
        return
    if args.gpus:
        from dask_cuda import LocalCUDACluster

        start = partial(LocalCUDACluster, n_workers=args.gpus)
    else:
        start = partial(LocalCluster, args.workers, threads_per_worker=1)
    with start(dashboard_address=None) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def use_nccl(used: bool) -> None:
    """In a worker: have GPUs exchange messages by NCCL, or through host memory."""
    from hetero_la.tiles.kernels.gpu.device import GpuDevice as Gpu

    if not hasattr(Gpu, "kept_address"):
        Gpu.kept_address = Gpu.nccl_address  # type: ignore[attr-defined]
    Gpu.nccl_address = Gpu.kept_address if used else ""  # type: ignore


def matrix(routine: str, n: int) -> np.ndarray:
    """A random matrix, positive definite for Cholesky."""
    a = np.random.default_rng(n).random((n, n)) - 0.5
    if routine == "cholesky":
        a += a.T
        a.flat[:: n + 1] += 2 * n
    return np.asfortranarray(a)


def columns(routine: str, n: int, start: int, width: int, gpu: int) -> Any:
    """Columns of such a matrix, on a GPU or on the host."""
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


def blocks(client: Any, routine: str, n: int, count: int) -> da.Array:
    """A Dask array of blocks of columns, which are with the workers by turns."""
    infos = worker_infos(client)
    infos = [info for info in infos if info.has_gpu] or infos
    (sizes,) = da.core.normalize_chunks(-(-n // count), (n,))
    starts = itertools.accumulate(sizes, initial=0)
    name = f"matrix-{uuid.uuid4()}"
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


def lazily(client: Any, routine: str, x: da.Array) -> float:
    """Seconds until the factors of a Dask array are with the workers."""
    until = time.monotonic() + 60
    while any("hetero-la" in key for key in _keys(client)):  # results of the run before
        if time.monotonic() > until:
            raise TimeoutError("the factors of the run before are still there after 60 s")
        time.sleep(0.01)
    began = time.perf_counter()
    lazy = LAZY[routine](x, check_finite=False, client=client)
    there = client.persist(list(lazy) if isinstance(lazy, tuple) else [lazy])
    wait(there)
    seconds = time.perf_counter() - began
    for block in futures_of(there):
        if block.status == "error":
            raise block.exception()
    return seconds


def _keys(client: Any) -> list[str]:
    return client.run_on_scheduler(lambda dask_scheduler: [*map(str, dask_scheduler.tasks)])


def contenders(
    routine: str, n: int, one: Any, several: Any, args: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """What is timed, by name."""
    ways: dict[str, Callable[[], float]] = {}
    if args.blocks:
        for name, client in (("one process", one), ("several", several)):
            x = blocks(client, routine, n, args.blocks)
            ways[name] = partial(lazily, client, routine, x)
    else:
        a, function = matrix(routine, n), ROUTINES[routine]
        for name, client in (("one process", one), ("several", several)):
            ways[name] = partial(seconds_of, partial(function, a, client=client))
    if args.gpus and not args.no_host:
        by_nccl = ways["several"]

        def through_host() -> float:
            several.run(use_nccl, False)
            try:
                return by_nccl()
            finally:
                several.run(use_nccl, True)

        ways["through the host"] = through_host
    return ways


def row(routine: str, n: int, ways: dict[str, Callable[[], float]], repeats: int) -> dict[str, Any]:
    """One line of the table: medians, and of each turn the ratio of several processes to one."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):  # the first is a warm-up
        for name, way in ways.items():
            times[name].append(way())
    medians = {name: statistics.median(some[1:]) for name, some in times.items()}
    turns = zip(times["several"][1:], times["one process"][1:], strict=True)
    return {"routine": routine, "n": n, **medians,
            "ratio": medians["several"] / medians["one process"],
            "ratios": " ".join(f"{a / b:.3f}" for a, b in turns)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--n", nargs="+", type=int, default=[1024, 2048, 4096])
    parser.add_argument("--workers", type=int, default=2, help="processes, and threads")
    parser.add_argument("--scheduler", help="a running cluster, in the place of processes")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs, in the place of CPUs")
    parser.add_argument("--blocks", type=int, default=0, help="blocks of a Dask array")
    parser.add_argument("--no-host", action="store_true", help="not through host memory")
    parser.add_argument("--probe", action="store_true", help="measure links and Dask before")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    own = {"gpus": args.gpus} if args.gpus else {"cpus": args.workers}
    rows = []
    with (
        hetero_la.Cluster(**own) as cluster,
        cluster.get_client() as one,
        processes(args) as several,
    ):
        if args.probe:
            main_of_cli(["probe", "--scheduler", several.scheduler.address])
        for routine in args.routines:
            for n in args.n:
                ways = contenders(routine, n, one, several, args)
                found = row(routine, n, ways, args.repeats)
                if args.blocks:
                    planned = hetero_la.plan(routine, (n, n), workers=worker_infos(several))
                    found["predicted"] = planned.predicted_seconds
                rows.append(found)
                del ways
                if len(rows) == 1:
                    print("| " + " | ".join(found) + " |\n|" + "---|" * len(found))
                shown = (v if isinstance(v, str | int) else f"{v:.3f}" for v in found.values())
                print("| " + " | ".join(map(str, shown)) + " |", flush=True)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
