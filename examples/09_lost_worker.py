"""A cluster of processes with one worker killed on purpose: the right answer all the same.

The matrix is kept by the workers, each of which owns some of its tile columns; with
`checkpoint=` its state is saved every few steps.  While the system is being solved, the program
kills one worker process, as `kill -9` would.  The run goes on from its latest checkpoint, on
the workers that are left or on the restarted one too.

    python examples/09_lost_worker.py
    python examples/09_lost_worker.py --n 4000 --workers 4 --checkpoint 4 --after 1.5
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading

from dask.distributed import Client, LocalCluster

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio


def main() -> int:
    parser = argparse.ArgumentParser(description="Solve, and lose a worker on the way.")
    parser.add_argument("--n", type=int, default=2000, help="order of the matrix")
    parser.add_argument("--workers", type=int, default=3, help="worker processes")
    parser.add_argument("--checkpoint", type=int, default=2, help="steps between checkpoints")
    parser.add_argument("--after", type=float, default=0.4, help="seconds until the kill")
    args = parser.parse_args()

    a, b = generate("rands", args.n), generate("rands", args.n, 3, seed=1)
    with (
        LocalCluster(
            n_workers=args.workers, threads_per_worker=1, dashboard_address=None,
            silence_logs=logging.CRITICAL,  # Dask tells at length of the connections that broke
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        victim = list(client.run(os.getpid).values())[-1]
        killer = threading.Timer(args.after, os.kill, (victim, signal.SIGKILL))
        killer.start()
        x, report = hetero_la.solve_with_report(a, b, client=client, checkpoint=args.checkpoint)
        killer.join()
    for loss in report.timing.losses:
        print(f"{loss.reason}; {len(loss.workers)} workers went on from step {loss.step}")
    if not report.timing.losses:
        print("the run was over before the worker was killed: --after was too late")

    ratio = solve_ratio(a, x, b)
    print(f"error ratio {ratio:.3g} after {report.timing.seconds:.2f} s")
    print("the right answer" if ratio < RATIO_LIMIT else "FAILED")
    return 0 if ratio < RATIO_LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
