"""CPU and GPUs on one matrix: who factors the panels, and who did what.

LU spends nearly all of its operations in matrix products, which suit a GPU, and nearly
all of its data-dependent decisions in panels, narrow columns that suit a CPU: the hybrid
of Volkov and Demmel (SC 2008) and of MAGMA gives each its own.  Here the GPUs own the
columns and update them, and the panels are factored

    panel="gpu"    by the GPU that owns the column,
    panel="cpu"    by a CPU worker, while the GPUs update,
    panel="auto"   wherever the cost model expects the shorter run; where GPUs are slow, CPU workers
                   may then own columns, too.

The program factors one matrix in all three ways, prints each plan and what each worker
did, and fails unless the factors agree.  Where there is no GPU, two CPU workers take the
role of GPUs: the same graph, the same messages, and no speed to be had.

    python examples/02_cpu_and_gpu.py
    python examples/02_cpu_and_gpu.py --n 16384 --gpus 1
"""

from __future__ import annotations

import argparse

import numpy as np

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio
from hetero_la.tiles.arrays.transfer import gpu_count


def main() -> int:
    parser = argparse.ArgumentParser(description="Hybrid LU on CPU and GPUs.")
    parser.add_argument("--n", type=int, default=3000, help="order of the matrix")
    parser.add_argument("--nb", type=int, help="tile size (default: the planner's)")
    parser.add_argument("--gpus", type=int, help="how many GPUs (default: all that there are)")
    args = parser.parse_args()

    gpus = gpu_count() if args.gpus is None else args.gpus
    if gpus == 0:
        print("no GPU is used: two virtual ones stand in\n")
    a = generate("rands", args.n)
    runs = {}
    with hetero_la.Cluster(cpus=1, gpus=gpus, virtual_gpus=0 if gpus else 2) as cluster:
        for panel in ("gpu", "cpu", "auto"):
            factors = hetero_la.lu_factor(a, client=cluster, panel=panel, nb=args.nb)
            print(f"panel={panel!r}", factors.plan.explain(), factors.timing, "", sep="\n")
            runs[panel] = factors

    reference = runs["gpu"]
    passed = True
    for panel, factors in runs.items():
        ratio = lu_ratio(a, *factors)
        same = np.array_equal(factors.piv, reference.piv)
        apart = np.abs(factors.lu - reference.lu).max()
        print(f"panel={panel!r}: error ratio {ratio:.3g}, same pivots: {same}, "
              f"factors differ by {apart:.1e}")  # fmt: skip
        passed &= ratio < RATIO_LIMIT and same and bool(np.allclose(factors.lu, reference.lu))
    print("all three agree" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
