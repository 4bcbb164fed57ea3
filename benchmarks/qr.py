"""QR side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/qr.py                     the CPU: SciPy
python benchmarks/qr.py --gpu 16384 32768   one GPU: cuSOLVER's geqrf
python benchmarks/qr.py --gpus 4 65536      several GPUs, with and without Dask
"""

from __future__ import annotations

import sys

import harness
import peers
from device_residuals import qr_residual

import hetero_la
from hetero_la.testing.residuals import qr_factors_ratio

QR = harness.Benchmark(
    "qr",
    hetero_la.qr_factor,
    lambda a, factors: qr_factors_ratio(a, *factors),
    qr_residual,
    peers.scipy_qr,
    lambda a: {},
    peers.cusolver_geqrf,
)

if __name__ == "__main__":
    sys.exit(harness.run(QR, __doc__))
