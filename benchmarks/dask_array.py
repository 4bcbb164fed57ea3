"""Dask arrays: hetero_la's lazy functions beside `dask.array.linalg`, medians of repeats.

    python benchmarks/dask_array.py
    python benchmarks/dask_array.py --n 8192 --repeats 3 --json rows.json

hetero_la runs once on Dask's threaded scheduler and once on the workers of a
`hetero_la.Cluster`; dask.array.linalg on the threaded scheduler with one BLAS thread a task, in
the best of its chunk sizes.  "error" is the scaled residual (LAPACK accepts 30) of a random
matrix, and "scaled" that of the same matrix with its leading quarter times 1e-8.  "memory" is the
most that a run added to the process's resident memory, in matrices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import psutil
from threadpoolctl import threadpool_limits

import hetero_la

Row = dict[str, Any]


class Routine(NamedTuple):
    """What is computed, by ours and by theirs, and how far off an answer is."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    error: Callable[[np.ndarray, Any], float]
    chunks: Callable[[tuple[int, int], int], tuple[int, int]]
    tall: int = 1
    definite: bool = False


def _scaled(residual: np.ndarray, *factors: np.ndarray) -> float:
    """Residual over the norms of what it is made of, n and the machine's epsilon."""
    size = np.prod([np.linalg.norm(factor, 1) for factor in factors])
    return float(np.linalg.norm(residual, 1) / (size * len(residual) * np.finfo(float).eps))


def _lu_error(a: np.ndarray, plu: Any) -> float:
    p, lower, upper = plu
    return _scaled(p @ (lower @ upper) - a, a)


def _cholesky_error(a: np.ndarray, upper: np.ndarray) -> float:
    return _scaled(upper.T @ upper - a, a)


def _qr_error(a: np.ndarray, qr: Any) -> float:
    q, r = qr
    return _scaled(q @ r - a, a)


def _solve_error(a: np.ndarray, x: np.ndarray) -> float:
    return _scaled((a @ x - 1)[:, None], a, x[:, None])


def _square(shape: tuple[int, int], parts: int) -> tuple[int, int]:
    return shape[0] // parts, shape[1] // parts


def _rows(shape: tuple[int, int], parts: int) -> tuple[int, int]:
    return shape[0] // parts, shape[1]


def _ones(x: da.Array) -> da.Array:
    return da.ones(x.shape[0], chunks=x.chunks[0][0])


ROUTINES = {
    "lu": Routine(hetero_la.lu, da.linalg.lu, _lu_error, _square),
    "cholesky": Routine(
        hetero_la.cholesky, da.linalg.cholesky, _cholesky_error, _square, definite=True
    ),
    "solve": Routine(
        lambda x: hetero_la.solve(x, _ones(x)),
        lambda x: da.linalg.solve(x, _ones(x)),
        _solve_error,
        _square,
    ),
    "qr": Routine(lambda x: hetero_la.qr(x, mode="economic"), da.linalg.qr, _qr_error, _rows),
    "qr, tall": Routine(
        lambda x: hetero_la.qr(x, mode="economic"), da.linalg.qr, _qr_error, _rows, tall=16
    ),
}


def matrix(routine: Routine, n: int, leading: float) -> np.ndarray:
    """A random matrix with its leading block times `leading`; as large for tall ones."""
    height = int(n * routine.tall**0.5)
    a = np.random.default_rng(0).standard_normal((height, n * n // height))
    if routine.definite:
        return (a + a.T) / 2 + n * np.eye(n)
    block = n // 4
    a[:block, :block] *= leading
    return a


@contextmanager
def most_memory() -> Iterator[list[float]]:
    """Bytes that the process has grown by at most, after the block."""
    process, grown, ended = psutil.Process(), [0.0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not ended.wait(0.005):
            grown[0] = max(grown[0], process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()


def contenders(routine: Routine, a: np.ndarray, client: Any) -> dict[str, Callable[[], Any]]:
    """Ways to compute it, by name."""

    def theirs(parts: int) -> Any:
        x = da.from_array(a, chunks=routine.chunks(a.shape, parts))
        with threadpool_limits(1, user_api="blas"):
            return dask.compute(routine.theirs(x), scheduler="threads")[0]

    def ours(parts: int, **where: Any) -> Any:
        x = da.from_array(a, chunks=routine.chunks(a.shape, parts))
        return dask.compute(routine.ours(x), **where)[0]

    def on_cluster() -> Any:
        with client.as_current():
            return ours(8, scheduler=client)

    return {
        "hetero_la, threads": lambda: ours(8, scheduler="threads"),
        "hetero_la, Cluster": on_cluster,
        "dask.array, 8 chunks a side": lambda: theirs(8),
        "dask.array, 4 chunks a side": lambda: theirs(4),
    }


def measure(name: str, n: int, repeats: int, client: Any) -> list[Row]:
    """Rows of one routine: all contenders in turn, after a warm-up."""
    routine = ROUTINES[name]
    a, graded = matrix(routine, n, 1.0), matrix(routine, n, 1e-8)
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for who, run in contenders(routine, a, client).items():
            with most_memory() as grown:
                began = time.perf_counter()
                run()
                taken = time.perf_counter() - began
            if repeat:
                seconds.setdefault(who, []).append(taken)
                memory[who] = max(memory.get(who, 0), grown[0] / a.nbytes)
    scaled = contenders(routine, graded, client)
    return [
        {
            "routine": name, "shape": a.shape, "who": who,
            "seconds": statistics.median(seconds[who]), "least": min(seconds[who]),
            "memory": memory[who], "error": routine.error(a, run()),
            "scaled": routine.error(graded, scaled[who]()),
        }
        for who, run in contenders(routine, a, client).items()
    ]  # fmt: skip


def show(rows: list[Row]) -> None:
    """Print the rows of one routine, with the time of Dask's best over theirs."""
    best = min(row["seconds"] for row in rows if row["who"].startswith("dask"))
    for row in rows:
        print(
            f"{row['routine']:<10}{'x'.join(map(str, row['shape'])):<12}{row['who']:<29}"
            f"{row['seconds']:>8.3f}{row['least']:>8.3f}{best / row['seconds']:>7.2f}"
            f"{row['memory']:>8.1f}{row['error']:>10.2g}{row['scaled']:>10.2g}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[4096])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    print(f"{'routine':<10}{'shape':<12}{'who':<29}{'median s':>8}{'least':>8}{'x best':>7}"
          f"{'memory':>8}{'error':>10}{'scaled':>10}")  # fmt: skip
    rows: list[Row] = []
    with hetero_la.Cluster(gpus=0) as cluster:
        client = cluster.private_client()
        for n in args.n:
            for name in args.routines:
                found = measure(name, n, args.repeats, client)
                show(found)
                rows += found
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
