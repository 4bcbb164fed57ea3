"""
A cluster of processes
======================

Solve on a Dask cluster that is already running.

Any `dask.distributed.Client` can be passed.  Each worker process owns some of the tile columns
and keeps them; factored panels travel from worker to worker.  The script starts a `LocalCluster`
of processes in place of a cluster that runs elsewhere, and fails unless the answer is the same as
without a cluster. ::

    python examples/04_cluster.py

The code under ``if __name__ == "__main__"`` is not run by the worker processes, which import this
file.
"""

# %%
# Without the cluster
# -------------------

import numpy as np
from dask.distributed import Client, LocalCluster
from matplotlib import pyplot

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio

N, WORKERS = 1200, 2

if __name__ == "__main__":
    a, b = generate("rands", N), generate("rands", N, 3, seed=1)
    alone = hetero_la.solve(a, b)

# %%
# With the cluster
# ----------------
# Without ``client=``, a running client is found, and used if the run is long enough.

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        hetero_la.trace() as trace,
    ):
        x, report = hetero_la.solve_with_report(a, b, client=client)
    print(report.plan, report.timing, sep="\n")

# %%
# What each process did, and for how long
# ---------------------------------------

if __name__ == "__main__":
    run = max(trace.runs, key=lambda run: run.seconds)
    figure, axes = pyplot.subplots(figsize=(7, 2.4), layout="constrained")
    left = np.zeros(len(run.plan.workers))
    for part in run.parts()[0]:
        seconds = np.array([parts[part] for parts in run.parts()])
        axes.barh([worker.name for worker in run.plan.workers], seconds, left=left, label=part)
        left += seconds
    axes.set(xlabel="seconds", title="parts of each worker's time")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))

# %%
# The same answer
# ---------------

if __name__ == "__main__":
    ratio = solve_ratio(a, x, b)
    apart = float(np.abs(x - alone).max() / np.abs(alone).max())
    print(f"error ratio {ratio:.3g}; differs from the run without the cluster by {apart:.1e}")
    assert ratio < RATIO_LIMIT
    assert np.allclose(x, alone, rtol=1e-6)
    print("the same answer")
