"""A Dask cluster of processes that is there already: the same answer.

Any `dask.distributed` client will do.  Each worker process owns some of the tile columns
and keeps them; factored panels travel between the workers as the results of Dask tasks.
The program starts a `LocalCluster` of processes as a stand-in for a cluster that runs
elsewhere, solves with it, and fails unless the answer is the one found without it.

    python examples/04_cluster.py
    python examples/04_cluster.py --n 3000 --workers 4
"""

from __future__ import annotations

import argparse

import numpy as np
from dask.distributed import Client, LocalCluster

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio


def main() -> int:
    parser = argparse.ArgumentParser(description="Solve on a cluster of processes.")
    parser.add_argument("--n", type=int, default=1500, help="order of the matrix")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    args = parser.parse_args()

    a, b = generate("rands", args.n), generate("rands", args.n, 3, seed=1)
    alone, _ = hetero_la.solve_with_report(a, b)
    with (
        LocalCluster(
            n_workers=args.workers, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        # Without `client=`, a running client is found, and used where a run is long enough.
        x, report = hetero_la.solve_with_report(a, b, client=client)
    print(report.plan.explain(), report.timing, sep="\n")

    ratio = solve_ratio(a, x, b)
    apart = float(np.abs(x - alone).max() / np.abs(alone).max())
    print(f"error ratio {ratio:.3g}; differs from the run without the cluster by {apart:.1e}")
    passed = ratio < RATIO_LIMIT and bool(np.allclose(x, alone, rtol=1e-6))
    print("the same answer" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
