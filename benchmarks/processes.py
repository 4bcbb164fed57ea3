"""LU, Cholesky and QR of NumPy arrays: workers of one process beside workers of several.

python benchmarks/processes.py --n 2048 4096           two threads, and two processes
python benchmarks/processes.py --workers 4 --json rows.json
python benchmarks/processes.py --scheduler tcp://10.0.0.1:8786 --gpus 2

The contenders run in turns, and the medians of the repeats are compared.  With `--scheduler`, the
processes are the workers of a running cluster.  With `--gpus`, the workers of one process are GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from harness import write_json
from peers import seconds_of

import hetero_la
from hetero_la.scheduler.cluster.clients import client_at

ROUTINES: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cho_factor, "qr": hetero_la.qr_factor
}  # fmt: skip


@contextlib.contextmanager
def processes(args: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster at `--scheduler`, or of one that is started."""
    if args.scheduler:
        with client_at(args.scheduler) as client:
            yield client
        return
    with (
        LocalCluster(args.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def matrix(routine: str, n: int) -> np.ndarray:
    """A random matrix, positive definite for Cholesky."""
    a = np.random.default_rng(n).random((n, n)) - 0.5
    if routine == "cholesky":
        a += a.T
        a.flat[:: n + 1] += 2 * n
    return np.asfortranarray(a)


def row(routine: str, n: int, clients: dict[str, Any], repeats: int) -> dict[str, Any]:
    """One line of the table."""
    a, function = matrix(routine, n), ROUTINES[routine]
    times: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(repeats + 1):  # the first is a warm-up
        for name, client in clients.items():
            times[name].append(seconds_of(lambda client=client: function(a, client=client)))
    medians = {name: statistics.median(some[1:]) for name, some in times.items()}
    one, several = medians.values()
    return {"routine": routine, "n": n, **medians, "ratio": several / one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--n", nargs="+", type=int, default=[1024, 2048, 4096])
    parser.add_argument("--workers", type=int, default=2, help="processes, and threads")
    parser.add_argument("--scheduler", help="a running cluster, in the place of processes")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of this process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    own = {"gpus": args.gpus} if args.gpus else {"cpus": args.workers}
    rows = []
    print("| routine | n | one process | several | ratio |\n|---|---|---|---|---|")
    with hetero_la.Cluster(**own) as one, processes(args) as several:
        for routine in args.routines:
            for n in args.n:
                found = row(routine, n, {"one process": one, "several": several}, args.repeats)
                rows.append(found)
                print(
                    f"| {routine} | {n} | {found['one process']:.3f} s | {found['several']:.3f} s "
                    f"| {found['ratio']:.2f} |",
                    flush=True,
                )
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
