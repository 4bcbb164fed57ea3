"""LU, Cholesky and QR: workers of one process beside workers of several.

python benchmarks/processes.py --n 2048 4096           NumPy: two threads, and two processes
python benchmarks/processes.py --workers 4 --json rows.json
python benchmarks/processes.py --gpus 2 --n 16384      NumPy: two GPUs of one process, and of two
python benchmarks/processes.py --gpus 2 --blocks 8 --n 32768 65536       blocks that are on the GPUs
python benchmarks/processes.py --scheduler tcp://10.0.0.1:8786 --gpus 2

The contenders have processes of their own and run in turns, and the medians of the repeats are
compared.  With `--scheduler`, the processes are the workers of a running cluster.  With `--gpus`,
workers have a GPU each, and a third contender exchanges messages through host memory, not by NCCL,
unless `--no-host` leaves it out.  With `--blocks`, the matrix is a Dask array of so many blocks of
columns, which are with the workers, as the factors are then; "predicted" is what the plan says of
several processes, once `--probe` has measured their links and Dask.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from harness import write_json

import hetero_la
from hetero_la.cli.main import main as main_of_cli
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.scheduler.cluster.clients import client_at
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.processes import blocks, free_memory, lazily, processes

ROUTINES: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cho_factor, "qr": hetero_la.qr_factor
}  # fmt: skip


@contextlib.contextmanager
def cluster_of_processes(args: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster at `--scheduler`, or of one that is started."""
    if args.scheduler:
        with client_at(args.scheduler) as client:
            yield client
        return
    with processes(args.gpus or args.workers, gpus=bool(args.gpus)) as client:
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


class Contender:
    """A cluster, and a client that has a process for itself, as programs have."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(name, args, theirs))
        self._process.start()
        theirs.close()

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the process's client and of what it keeps, there."""
        self._ours.send((function, args))
        found = self._ours.recv()  # EOFError if it has ended
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """End the process and the cluster."""
        self._ours.close()
        self._process.join()


def serve(name: str, args: argparse.Namespace, calls: Any) -> None:
    """Process of a contender."""
    kept: dict[str, Any] = {}
    with (
        cluster_of(name, args) as client, client.as_current(), contextlib.suppress(EOFError),
    ):  # fmt: skip
        while True:
            function, given = calls.recv()
            try:
                calls.send(function(client, kept, *given))
            except Exception as error:
                calls.send(error)


@contextlib.contextmanager
def cluster_of(name: str, args: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster of a contender."""
    if name == "several":
        with cluster_of_processes(args) as client:
            yield client
        return
    own = {"gpus": args.gpus} if args.gpus else {"cpus": args.workers}
    with hetero_la.Cluster(**own) as cluster, cluster.get_client() as client:
        yield client


def prepare(client: Any, kept: dict[str, Any], routine: str, n: int, count: int) -> None:
    """Make the matrix: `count` blocks of a Dask array, or a NumPy array if that is 0."""
    kept["x"] = None
    client.run(free_memory)
    kept["x"] = blocks(client, routine, n, count) if count else matrix(routine, n)


def timed(client: Any, kept: dict[str, Any], routine: str, through_host: bool = False) -> float:
    """Seconds of one run."""
    if through_host:
        client.run(use_nccl, False)
    try:
        if isinstance(kept["x"], da.Array):
            return lazily(client, routine, kept["x"])
        return seconds_of(partial(ROUTINES[routine], kept["x"], client=client))
    finally:
        if through_host:
            client.run(use_nccl, True)


def probe(client: Any, kept: dict[str, Any]) -> None:
    """Measure the links and Dask, for predictions."""
    main_of_cli(["probe", "--scheduler", client.scheduler.address])


def predicted(client: Any, kept: dict[str, Any], routine: str) -> float:
    """Seconds that the plan for the Dask array says."""
    return LazyRun(routine, kept["x"], client=client).plan.predicted_seconds


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
    rows = []
    with contextlib.ExitStack() as ended:
        one, several = (Contender(name, args) for name in ("one process", "several"))
        for contender in (one, several):
            ended.callback(contender.close)
        if args.probe:
            several(probe)
        for routine, n in itertools.product(args.routines, args.n):
            for contender in (one, several):
                contender(prepare, routine, n, args.blocks)
            ways = {
                "one process": partial(one, timed, routine),
                "several": partial(several, timed, routine),
            }
            if args.gpus and not args.no_host:
                ways["through the host"] = partial(several, timed, routine, True)
            found = row(routine, n, ways, args.repeats)
            if args.blocks:
                found["predicted"] = several(predicted, routine)
            rows.append(found)
            if len(rows) == 1:
                print("| " + " | ".join(found) + " |\n|" + "---|" * len(found))
            shown = (v if isinstance(v, str | int) else f"{v:.3f}" for v in found.values())
            print("| " + " | ".join(map(str, shown)) + " |", flush=True)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
