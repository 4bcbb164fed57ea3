"""
Which tile size is best here?
=============================

A sweep over tile sizes and look-ahead.

Small tiles make many small products, large ones make long panels that nothing hides: the best
size lies between, and depends on the machine.  Look-ahead pays where a panel and an update can
run at the same time: with GPUs, or with several workers.

Each combination is run several times, and the fastest run counts.  The last result
of each is checked by LAPACK's error ratio, ``||PA - LU|| / (n ||A|| eps)``. ::

    python examples/03_sweep.py

``hetero-la sweep`` does the same from the command line, with more columns and a CSV file, and
``hetero-la tune`` searches by prediction, without running anything.
"""

# %%
# The runs
# --------

from matplotlib import pyplot

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio

N = 1000
SIZES = (48, 64, 96, 128, 192, 256)
DEPTHS = (0, 1)
REPEATS = 3

a = generate("rands", N)
seconds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
with hetero_la.Cluster(gpus=0) as cluster:
    for depth in DEPTHS:
        for nb in SIZES:
            runs = [
                hetero_la.lu_factor(a, nb=nb, lookahead=depth, client=cluster)
                for _ in range(REPEATS)
            ]
            ratio = lu_ratio(a, *runs[-1])
            assert ratio < RATIO_LIMIT
            seconds[depth].append(min(run.timing.seconds for run in runs))
            print(f"nb = {nb:3}, look-ahead {depth}: {seconds[depth][-1] * 1e3:6.1f} ms, "
                  f"error ratio {ratio:.3g}")  # fmt: skip

# %%
# The rate against the tile size
# ------------------------------

figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
for depth in DEPTHS:
    rates = [2 / 3 * N**3 / time / 1e9 for time in seconds[depth]]
    axes.plot(SIZES, rates, "o-", label=f"look-ahead {depth}")
axes.set(xlabel="tile size nb", ylabel="Gflop/s", title=f"LU of order {N}", ylim=0)
axes.set_xscale("log", base=2)
axes.set_xticks(SIZES, SIZES)
axes.legend()

_, nb, depth = min(
    (time, nb, depth) for depth in DEPTHS for nb, time in zip(SIZES, seconds[depth], strict=True)
)
print(f"best for n = {N}: nb = {nb}, look-ahead {depth}")
