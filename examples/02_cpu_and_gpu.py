"""
Panels on the CPU or on the GPU
===============================

CPU and GPUs on one matrix: who factors the panels, and who does what.

LU spends nearly all of its operations in matrix products, which suit a GPU, and takes nearly all
of its decisions in panels, narrow columns that suit a CPU.  The hybrid of Volkov and Demmel (SC
2008) and of MAGMA gives each its own part: the GPUs own the columns and update them, and the
panels are factored

* with ``panel="gpu"`` by the GPU that owns the column,
* with ``panel="cpu"`` by a CPU worker, while the GPUs update,
* with ``panel="auto"`` where the cost model predicts the shorter run; where GPUs are slow, CPU
  workers may then own columns, too.

Where there is no GPU, two CPU workers take the role of GPUs: the graph and the messages are the
same, and nothing is gained in speed. ::

    python examples/02_cpu_and_gpu.py
"""

# %%
# One matrix, factored in all three ways
# --------------------------------------

import numpy as np
from matplotlib import pyplot

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio
from hetero_la.tiles.arrays.transfer import gpu_count

N = 1500

gpus = gpu_count()
if gpus == 0:
    print("there is no GPU: two virtual ones take its place")
a = generate("rands", N)
runs = {}
with hetero_la.Cluster(cpus=1, gpus=gpus, virtual_gpus=0 if gpus else 2) as cluster:
    for panel in ("gpu", "cpu", "auto"):
        runs[panel] = hetero_la.lu_factor(a, client=cluster, panel=panel)

# %%
# Who does what
# -------------

for panel, factors in runs.items():
    print(f"panel={panel!r}", factors.timing, "", sep="\n")

# %%
# Seconds that each worker spends in kernels.

figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
for row, factors in enumerate(runs.values()):
    names = [worker.name for worker in factors.plan.workers]
    for name, worker in zip(names, factors.timing.workers, strict=True):
        place = row + 0.25 * names.index(name)
        axes.barh(place, worker.busy, 0.22, color=f"C{int(name.startswith('cpu'))}")
        axes.text(worker.busy, place, f" {name}", va="center", fontsize=8)
axes.set(xlabel="seconds in kernels", yticks=np.arange(3) + 0.25)
axes.set_yticklabels([f'panel="{panel}"' for panel in runs])
axes.invert_yaxis()

# %%
# All three give the same factors
# -------------------------------

reference = runs["gpu"]
for panel, factors in runs.items():
    ratio = lu_ratio(a, *factors)
    apart = np.abs(factors.lu - reference.lu).max()
    print(f"panel={panel!r}: error ratio {ratio:.3g}, factors differ by {apart:.1e}")
    assert ratio < RATIO_LIMIT
    assert np.array_equal(factors.piv, reference.piv)
    assert np.allclose(factors.lu, reference.lu)
print("all three agree")
