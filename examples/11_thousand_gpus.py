"""
A thousand GPUs that are not there
==================================

How long a factorization would take on a large machine, how efficient it would be, and what to
change first.

The script predicts LU of a matrix that fills a cluster of DGX nodes.  It first checks the
prediction on four GPUs, where the real programs can be executed without kernels; then it says
what bounds the large run, and what other ways to pass panels on inside a node would change. ::

    python examples/11_thousand_gpus.py
"""

# %%
# Four GPUs, predicted in two ways
# --------------------------------
# By the programs that would run, and step by step.

from dataclasses import replace

from matplotlib import pyplot

import hetero_la
from hetero_la.predict.scaling import forecast, read_machine
from hetero_la.scheduler.machine.cluster_model import Broadcast, Fabric
from hetero_la.scheduler.placement.workers import WorkerInfo

ROUTINE, N, GPUS = "lu", 1_000_000, 1024
NB = 512  # without it, the best of 256, 512 and 1024 is found

machine = read_machine("dgx-h200-x128")
workers = [WorkerInfo(f"gpu{i}", "gpu", device=i) for i in range(4)]
plan = hetero_la.plan(ROUTINE, (32768, 32768), nb=1024, workers=workers)
programs = plan.simulate().makespan
# The plan's model lets every GPU copy a panel as fast as if it were alone.
link = plan.model.peer_link
alone = Fabric(link.latency, link.bandwidth, broadcast=Broadcast.INDEPENDENT)
node = replace(machine, gpu=plan.model.devices[0], node=alone)
steps = forecast(ROUTINE, (32768, 32768), node, 4, nb=1024).seconds
print(f"n = 32768 on 4 GPUs: {programs:.4f} s by programs, {steps:.4f} s by steps")
assert abs(steps / programs - 1) < 0.05
print("both predictions agree")

# %%
# The large machine
# -----------------

print(forecast(ROUTINE, (N, N), machine, GPUS, nb=NB).explain())

# %%
# Other ways to pass panels on inside a node.

times = {}
for rule in (Broadcast.DIRECT, Broadcast.FIRST, Broadcast.TREE, Broadcast.PIPELINE):
    changed = replace(machine, node=replace(machine.node, broadcast=rule))
    found = forecast(ROUTINE, (N, N), changed, GPUS, nb=NB)
    times[str(rule)] = found.seconds
    print(f"panels inside a node {rule:<9} {found.seconds:8.2f} s, bound by {found.bound}")

figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
axes.barh(list(times), list(times.values()))
axes.set(xlabel="predicted seconds", title=f"{ROUTINE} of order {N} on {GPUS} GPUs")
axes.invert_yaxis()
