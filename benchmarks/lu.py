"""LU side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/lu.py                     the CPU: SciPy and dask.array.linalg
python benchmarks/lu.py --gpu 16384 32768   one GPU: cuSOLVER
python benchmarks/lu.py --gpus 4 65536      several GPUs: cuSOLVERMg, and without Dask
"""

from __future__ import annotations

import sys

import harness
import peers
from device_residuals import lu_residual

import hetero_la
from hetero_la.testing.residuals import lu_ratio

LU = harness.Benchmark(
    "lu",
    hetero_la.lu_factor,
    lambda a, factors: lu_ratio(a, *factors),
    lu_residual,
    peers.scipy_lu,
    lambda a: {
        f"dask.array chunks {chunk}": lambda chunk=chunk: peers.dask_lu(a, chunk, 1)
        for chunk in (len(a) // 8, len(a) // 4)
    },
    peers.cusolver_getrf,
    "Getrf",
)

if __name__ == "__main__":
    sys.exit(harness.run(LU, __doc__))
