"""
A worker that is killed
=======================

A cluster of processes loses a worker during a run, and still returns the right answer.

The matrix is kept by the workers, each of which owns some of its tile columns; with
``checkpoint=`` its state is saved every few steps.  While the system is being solved, the script
kills one worker process, as ``kill -9`` would.  The run goes on from its latest checkpoint, on
the workers that are left, and on the restarted one if it is back soon enough. ::

    python examples/09_lost_worker.py

The code under ``if __name__ == "__main__"`` is not run by the worker processes, which import this
file.
"""

# %%
# A run without a loss
# --------------------

import logging
import os
import signal
import threading

from dask.distributed import Client, LocalCluster
from matplotlib import pyplot

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio

N, WORKERS = 2500, 3
CHECKPOINT = 2  # steps between checkpoints

if __name__ == "__main__":
    a, b = generate("rands", N), generate("rands", N, 3, seed=1)
    cluster = LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=None,
        silence_logs=logging.CRITICAL,  # Dask logs each connection that broke
    )  # fmt: skip
    client = Client(cluster)
    for _ in range(2):  # the first run connects the workers
        _, report = hetero_la.solve_with_report(a, b, client=client, checkpoint=CHECKPOINT)
    undisturbed = report.timing.seconds
    print(f"{undisturbed:.2f} s without a loss")

# %%
# A run that loses a worker
# -------------------------
# The kill comes in the middle of it.

if __name__ == "__main__":
    victim = list(client.run(os.getpid).values())[-1]
    killer = threading.Timer(undisturbed / 2, os.kill, (victim, signal.SIGKILL))
    killer.start()
    x, report = hetero_la.solve_with_report(a, b, client=client, checkpoint=CHECKPOINT)
    killer.join()
    client.close()
    cluster.close()

# %%
# What was lost
# -------------

if __name__ == "__main__":
    for loss in report.timing.losses:
        print(f"{loss.reason}; {len(loss.workers)} workers went on from step {loss.step}")
    if not report.timing.losses:
        print("no loss: the worker had done its part before it was killed")

    steps = report.plan.layout.kt
    figure, axes = pyplot.subplots(figsize=(7, 1.8), layout="constrained")
    axes.barh(0, steps, color="0.85", label="steps")
    for loss in report.timing.losses:
        axes.barh(0, loss.step, color="C0", label="saved, not repeated")
    saved = range(0, steps, CHECKPOINT)
    axes.plot(saved, [0] * len(saved), "|", color="k")
    axes.set(xlabel="step; a line for each checkpoint", yticks=[], title="where the run went on")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))

# %%
# The right answer
# ----------------

if __name__ == "__main__":
    ratio = solve_ratio(a, x, b)
    print(f"error ratio {ratio:.3g} after {report.timing.seconds:.2f} s")
    assert ratio < RATIO_LIMIT
    print("the right answer")
