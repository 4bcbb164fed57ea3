"""LU side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/lu.py                     the CPU: SciPy and dask.array.linalg
python benchmarks/lu.py --gpu 16384 32768   one GPU: cuSOLVER
python benchmarks/lu.py --gpus 4 65536      several GPUs: cuSOLVERMg, and without Dask
"""

from __future__ import annotations

import sys

import harness

from hetero_la.studies.factorizations.problems import LU

if __name__ == "__main__":
    sys.exit(harness.run(LU, __doc__))
