"""LU with and without pivoting, in place on one GPU, beside cuSOLVER without: medians of series.

python benchmarks/lu_nopivot.py 4096 8192 16384
"""

from __future__ import annotations

import statistics
import sys

import cupy

import hetero_la
from hetero_la.studies.factorizations import peers

SERIES, REPEATS = 5, 5


def seconds(a: cupy.ndarray, given: cupy.ndarray, pivot: str) -> float:
    """Seconds of one factorization of `given` in the memory of `a`."""
    a[...] = given
    cupy.cuda.Device().synchronize()

    def run() -> None:
        hetero_la.lu_factor(a, overwrite_a=True, check_finite=False, pivot=pivot)
        cupy.cuda.Device().synchronize()

    return peers.seconds_of(run)


def series(n: int) -> tuple[float, float, float]:
    """Medians of partial pivoting, none, and cuSOLVER's none, in milliseconds."""
    given = cupy.asfortranarray(cupy.random.random((n, n)) + n * cupy.eye(n))
    a, found = cupy.empty_like(given), []
    for _ in range(REPEATS + 1):  # the first compiles
        row = [seconds(a, given, pivot) for pivot in ("partial", "none")]
        a[...] = given
        found.append((*row, peers.cusolver_getrf_nopivot(a)))
    partial, none, peer = (1e3 * statistics.median(times) for times in zip(*found[1:], strict=True))
    return partial, none, peer


if __name__ == "__main__":
    print(f"{'n':>6}{'partial ms':>12}{'none ms':>10}{'cuSOLVER none ms':>18}{'partial/none':>14}")
    for n in map(int, sys.argv[1:] or ["8192"]):
        for _ in range(SERIES):
            partial, none, peer = series(n)
            print(f"{n:>6}{partial:>12.2f}{none:>10.2f}{peer:>18.2f}{partial / none:>14.2f}")
