"""Dask arrays: hetero_la's lazy functions beside `dask.array.linalg`, medians of repeats.

    python benchmarks/dask_array.py
    python benchmarks/dask_array.py --n 8192 --repeats 1 --routines lu --json rows.json

Both get the same Dask array, whose blocks are in memory, and run on Dask's threaded scheduler and
on the workers of a `hetero_la.Cluster`; dask.array.linalg with one BLAS thread a task, in several
chunk sizes.  They are timed until all blocks of the results are in memory (`dask.persist`), and
until these are NumPy arrays (`dask.compute`).  "error" is the scaled residual (LAPACK accepts 30)
of a random matrix, from some of its columns, and "scaled" that of the same matrix with its leading
quarter times 1e-8.  "memory" is the most that a run adds to what a new process holds that has the
input, in matrices; "lazy" is the same in blocks where the input is random numbers that are made in
the run, so that nobody else holds them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import dask
import dask.array as da
import distributed
import numpy as np
import psutil
from dask_routines import ROUTINES, Routine, matrix, random_matrix, shape_of
from harness import write_json
from threadpoolctl import threadpool_limits

import hetero_la

Row = dict[str, Any]
Timed = tuple[float, Any]  #: seconds, and a result
FORMS = {"blocks": dask.persist, "NumPy": dask.compute}


class Contender(NamedTuple):
    """Who computes, where, and from how many chunks a side."""

    ours: bool
    cluster: bool
    parts: int

    def __str__(self) -> str:
        return (
            f"{'hetero_la' if self.ours else 'dask.array'}, "
            f"{'Cluster' if self.cluster else 'threads'}, {self.parts} chunks"
        )

    @contextmanager
    def ready(
        self, routine: Routine, a: np.ndarray | tuple[int, int]
    ) -> Iterator[Callable[[str], Timed]]:
        """What computes, in a form, from an input that is in memory, or random of some shape."""
        if isinstance(a, tuple):
            x = random_matrix(routine, a, routine.chunks(a, self.parts))
        else:
            x = da.from_array(a, chunks=routine.chunks(a.shape, self.parts))
        function = routine.ours if self.ours else routine.theirs
        with contextlib.ExitStack() as stack:
            scheduler: Any = "threads"
            if self.cluster:
                scheduler = stack.enter_context(hetero_la.Cluster(gpus=0)).private_client()
                stack.enter_context(scheduler.as_current())
                if not isinstance(a, tuple):
                    x = scheduler.persist(x)
                    distributed.wait(x)
                inputs = scheduler.run_on_scheduler(_tasks)
            if not self.ours:
                stack.enter_context(threadpool_limits(1, user_api="blas"))

            def run(form: str) -> Timed:
                while self.cluster and scheduler.run_on_scheduler(_tasks) > inputs:
                    time.sleep(0.01)  # an earlier result is still there, to be found again
                began = time.perf_counter()
                (result,) = FORMS[form](function(x), scheduler=scheduler)
                if form == "blocks" and self.cluster:
                    arrays = [result] if isinstance(result, da.Array) else list(result)
                    distributed.wait(distributed.futures_of(arrays))
                return time.perf_counter() - began, result

            yield run


def _tasks(dask_scheduler: distributed.Scheduler) -> int:
    return len(dask_scheduler.tasks)


CONTENDERS = {
    "hetero_la": Contender(True, False, 8),
    "hetero_la-cluster": Contender(True, True, 8),
    "dask-16": Contender(False, False, 16),
    "dask-8": Contender(False, False, 8),
    "dask-4": Contender(False, False, 4),
    "dask-cluster": Contender(False, True, 8),
}


@contextmanager
def most_memory() -> Iterator[list[float]]:
    """Bytes that the process has grown by at most, after the block."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # what is free would be used without growth
        ctypes.CDLL(None).malloc_trim(0)
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


def memory_of(name: str, n: int, contender: Contender, form: str, lazy: bool) -> float:
    """Matrices by which one run lets a process grow that has done a small one before."""
    routine = ROUTINES[name]

    def given(n: int) -> np.ndarray | tuple[int, int]:
        return shape_of(routine, n) if lazy else matrix(routine, n, 1.0)

    with contender.ready(routine, given(256)) as run:
        run(form)
    with contender.ready(routine, given(n)) as run, most_memory() as grown:
        _, result = run(form)
    del result
    return grown[0] / (8 * n * n)


def in_new_process(function: Callable[..., float], *args: Any) -> float:
    """What a function returns there."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def measure(name: str, n: int, repeats: int, contender: Contender) -> Row:
    """The row of one contender, after a warm-up."""
    routine = ROUTINES[name]
    a, graded = matrix(routine, n, 1.0), matrix(routine, n, 1e-8)
    row: Row = {"routine": name, "shape": a.shape, "who": str(contender)}
    with contender.ready(routine, a) as run:
        for form in FORMS:
            seconds = []
            for _ in range(repeats + 1):
                taken, result = run(form)
                seconds.append(taken)
                if form == "NumPy":
                    row["error"] = routine.error(a, result, contender.ours)
                del result
            row[f"{form}_seconds"] = statistics.median(seconds[1:])
    with contender.ready(routine, graded) as run:
        row["scaled"] = routine.error(graded, run("NumPy")[1], contender.ours)
    for form in FORMS:
        row[f"{form}_memory"] = in_new_process(memory_of, name, n, contender, form, False)
    row["lazy_memory"] = in_new_process(memory_of, name, n, contender, "blocks", True)
    return row


def show(row: Row) -> None:
    """Print a row."""
    print(
        f"{row['routine']:<10}{'x'.join(map(str, row['shape'])):<12}{row['who']:<31}"
        f"{row['blocks_seconds']:>9.3f}{row['NumPy_seconds']:>9.3f}"
        f"{row['blocks_memory']:>8.2f}{row['NumPy_memory']:>8.2f}{row['lazy_memory']:>8.2f}"
        f"{row['error']:>10.2g}{row['scaled']:>10.2g}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[4096])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--who", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    print(
        f"{'':<53}{'seconds':>18}{'memory':>24}\n{'routine':<10}{'shape':<12}{'who':<31}"
        f"{'blocks':>9}{'NumPy':>9}{'blocks':>8}{'NumPy':>8}{'lazy':>8}{'error':>10}{'scaled':>10}"
    )
    rows: list[Row] = []
    for n in args.n:
        for name in args.routines:
            for who in args.who:
                rows.append(measure(name, n, args.repeats, CONTENDERS[who]))
                show(rows[-1])
    write_json(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
