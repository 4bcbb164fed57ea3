"""Cholesky side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/cholesky.py                     the CPU: SciPy and dask.array.linalg
python benchmarks/cholesky.py --gpu 16384 32768   one GPU: cuSOLVER
python benchmarks/cholesky.py --gpus 4 65536      several GPUs: cuSOLVERMg, and without Dask
"""

from __future__ import annotations

import sys

import harness
import peers
from device_residuals import cholesky_residual

import hetero_la
from hetero_la.testing.residuals import cholesky_ratio

CHOLESKY = harness.Benchmark(
    "cholesky",
    hetero_la.cho_factor,
    lambda a, factors: cholesky_ratio(a, factors.c, factors.lower),
    cholesky_residual,
    peers.scipy_cholesky,
    lambda a: {
        f"dask.array chunks {chunk}": lambda chunk=chunk: peers.dask_cholesky(a, chunk, 1)
        for chunk in (len(a) // 8, len(a) // 4)
    },
    peers.cusolver_potrf,
    "Potrf",
    definite=True,
)

if __name__ == "__main__":
    sys.exit(harness.run(CHOLESKY, __doc__))
