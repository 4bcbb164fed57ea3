"""
The task graph and the timeline
===============================

Look at a factorization: its graph before a run, and who did what when after it.

The script draws the tasks of an LU factorization on two workers: a small graph task by task, and a
large one collapsed, both as a picture and as a page that plays the predicted run.  Then it runs the
factorization, and draws the timeline, as a chart, a page and an animation.  Open the .html files in
a browser, and the .json in https://ui.perfetto.dev. ::

    python examples/10_pictures.py
"""


# %%
# The workers
# -----------
# All GPUs of the host, or two virtual ones if it has none.

import tempfile
from pathlib import Path

import numpy as np

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.graph.analysis import average_parallelism, critical_path, total_work, width
from hetero_la.tiles.arrays.transfer import gpu_count

N, NB = 1200, 128
FOLDER = Path(tempfile.mkdtemp(prefix="hetero-la-pictures-"))

cluster = hetero_la.Cluster(cpus=0) if gpu_count() else hetero_la.Cluster(cpus=0, virtual_gpus=2)
client = cluster.get_client()
workers = worker_infos(client)

# %%
# Before a run
# ------------
# A small graph, task by task.

small = hetero_la.plan("lu", (500, 500), nb=100, workers=workers)
small.draw(FOLDER / "graph.svg")
small.graph

# %%
# A large one, collapsed: what it is made of, and how much of it can go on at once.

large = hetero_la.plan("lu", (3000, 3000), nb=100, workers=workers)
large.draw(FOLDER / "large.svg")
large.draw(FOLDER / "large.html")  # plays the predicted run
seconds = large.task_seconds
path = critical_path(large.graph, seconds)
on_path = [large.graph.tasks[index].kind for index in path]
print(f"{len(large.graph)} tasks, {total_work(large.graph, seconds):.3g} s of work")
print(f"critical path: {len(path)} tasks, {on_path.count('getrf')} of them panels")
print(f"parallelism: {average_parallelism(large.graph, seconds):.3g} on average, "
      f"at most {width(large.graph, seconds).tasks.max()}")  # fmt: skip

# %%
# After a run
# -----------
# Who did what when.

a = np.random.default_rng(0).standard_normal((N, N))
hetero_la.lu_factor(a, nb=NB, client=client)  # the first run loads libraries
with hetero_la.trace() as trace:
    hetero_la.lu_factor(a, nb=NB, client=client)
client.close()
cluster.close()
for suffix in ("svg", "html", "json", "gif"):
    trace.write(FOLDER / f"timeline.{suffix}")
trace

# %%
# Where the time of each worker went.

(run,) = trace.runs
for worker, parts in zip(run.plan.workers, run.parts(), strict=True):
    shares = ", ".join(f"{part} {t / run.seconds:.0%}" for part, t in parts.items())
    print(f"{worker.name}: {shares}")
    assert abs(sum(parts.values()) - run.seconds) < 1e-9
print(f"the parts of every worker's time add up to the run's {run.seconds:.3f} s")
print(f"written to {FOLDER}: {', '.join(sorted(path.name for path in FOLDER.iterdir()))}")
# sphinx_gallery_thumbnail_path = 'pictures/timeline.svg'
