"""QR side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/qr.py                     the CPU: SciPy
python benchmarks/qr.py --gpu 16384 32768   one GPU: cuSOLVER's geqrf
python benchmarks/qr.py --gpus 4 65536      several GPUs, with and without Dask
"""

from __future__ import annotations

import sys

import harness

from hetero_la.studies.factorizations.problems import QR

if __name__ == "__main__":
    sys.exit(harness.run(QR, __doc__))
