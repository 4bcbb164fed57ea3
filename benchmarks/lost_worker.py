"""What losing a worker half-way costs, with and without checkpoints.

LU on a cluster of worker processes.  In turn: undisturbed, undisturbed with checkpoints, and
both with one worker process killed in the middle one of its panels.  Ratios are to the
first; every answer is checked.  Prints a table and JSON.

    python benchmarks/lost_worker.py
    python benchmarks/lost_worker.py --n 4000 --workers 4 --checkpoint 4
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import tempfile
import time
from typing import Any

import dask
import numpy as np
from dask.distributed import Client, LocalCluster

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio


def die_in_panel(count: int) -> None:
    """In a worker: end the process, as kill -9 does, in the `count`-th panel that it factors."""
    from hetero_la.tiles.kernels import registry

    real, calls = registry.implementation("getrf", "cpu"), [0]

    def panel(*arrays: Any, options: Any) -> None:
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arrays, options=options)

    registry._IMPLEMENTATIONS["cpu", "getrf"] = panel


def run(client: Client, a: np.ndarray, panel: int | None, options: Any) -> tuple[float, int]:
    """Seconds of one run, and the step from which it went on after the loss, or -1."""
    if panel is not None:
        victim = worker_infos(client)[-1].address
        client.run(die_in_panel, panel, workers=[victim])
    began = time.perf_counter()
    factors = hetero_la.lu_factor(a, client=client, **options)
    seconds = time.perf_counter() - began
    ratio = lu_ratio(a, factors.lu, factors.piv)
    if ratio >= RATIO_LIMIT:
        raise ArithmeticError(f"error ratio {ratio:.3g}")
    return seconds, max((loss.step for loss in factors.timing.losses), default=-1)


def wait_for_workers(client: Client, count: int) -> None:
    """Wait until the lost worker is back."""
    deadline = time.monotonic() + 60
    while len(client.run(os.getpid, on_error="ignore")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there are not {count} workers")
        time.sleep(0.1)


Rows = dict[tuple[str, bool], list[tuple[float, int]]]


def measure(client: Client, a: np.ndarray, args: argparse.Namespace, folder: str) -> Rows:
    """All ways in turn: kind of checkpoints, whether a worker is lost -> runs."""
    plain = {"nb": args.nb}
    memory = {**plain, "checkpoint": args.checkpoint}
    ways = {"none": plain, "memory": memory, "folder": {**memory, "checkpoint_folder": folder}}
    run(client, a, None, plain)
    rows: Rows = {}
    for _ in range(args.repeats):
        for way, options in ways.items():
            rows.setdefault((way, False), []).append(run(client, a, None, options))
        half = max(args.n // args.nb // (2 * args.workers), 1)  # of the panels of one worker
        for way, options in ways.items():
            rows.setdefault((way, True), []).append(run(client, a, half, options))
            wait_for_workers(client, args.workers)
    return rows


def show(rows: Rows, args: argparse.Namespace) -> None:
    """Print a table, and JSON."""
    base = statistics.median(seconds for seconds, _ in rows["none", False])
    print("checkpoints  lost   seconds   least    most   ratio  from step")
    found = []
    for (way, lost), results in rows.items():
        seconds = sorted(taken for taken, _ in results)
        middle, steps = statistics.median(seconds), sorted(step for _, step in results)
        print(
            f"{way:<13}{'yes' if lost else 'no':<6}{middle:>8.3f}{seconds[0]:>8.3f}"
            f"{seconds[-1]:>8.3f}{middle / base:>8.2f}  {steps if lost else ''}"
        )
        found.append({"checkpoints": way, "lost": lost, "seconds": seconds, "ratio": middle / base})
    print(json.dumps({**vars(args), "rows": found}))


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the loss of a worker.")
    parser.add_argument("--n", type=int, default=2000, help="order of the matrix")
    parser.add_argument("--nb", type=int, default=64, help="tile size")
    parser.add_argument("--workers", type=int, default=3, help="worker processes")
    parser.add_argument("--checkpoint", type=int, default=4, help="steps between checkpoints")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with (
        # A name that is away twice within 15 s would be given up.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        LocalCluster(
            n_workers=args.workers, threads_per_worker=1, dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
        tempfile.TemporaryDirectory() as folder,
    ):  # fmt: skip
        logging.getLogger("hetero_la").setLevel(logging.ERROR)
        rows = measure(client, generate("rand", args.n), args, folder)
    show(rows, args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
