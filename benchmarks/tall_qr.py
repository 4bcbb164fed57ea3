"""QR of tall matrices on one GPU, by both kinds of panel and by cuSOLVER's geqrf.

python benchmarks/tall_qr.py                        panels and tall matrices, float64
python benchmarks/tall_qr.py 1000000x512 --dtype complex128

Seconds are medians of repeats, with the matrix on the GPU; "by Cholesky" says how many of the
panels CholeskyQR2 has factored where every panel was tried, and "auto" which kind was chosen
by default.  The error is the larger of |A x - Q R x| / |A x| and |Q^H Q y - y| / |y| for random
x and y, in units of eps, for the default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import peers

import hetero_la
from hetero_la.cli.common.values import size
from hetero_la.tiles.arrays.transfer import gpu_count

SHAPES = [
    (8192, 512), (32768, 512), (65536, 512), (131072, 512), (524288, 512), (1000000, 512),
    (262144, 2048), (131072, 8192),
]  # fmt: skip


def measure(a: Any, qr_panel: str, repeats: int) -> tuple[float, Any]:
    """Median seconds of a factorization on the GPU, and the factors."""
    import cupy

    taken = []
    for _ in range(repeats + 1):
        work = a.copy(order="F")
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        factors = hetero_la.qr_factor(work, True, check_finite=False, qr_panel=qr_panel)
        cupy.cuda.Device().synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:]), factors


def error(a: Any, factors: Any) -> float:
    """How wrong factors are, in units of eps."""
    import cupy

    (m, n), eps = a.shape, np.finfo(a.dtype).eps
    x, y = (cupy.random.standard_normal((k, 3)).astype(a.dtype) for k in (n, m))
    product = cupy.zeros((m, 3), a.dtype)
    product[: min(m, n)] = factors.r @ x
    found = [
        (a @ x, factors.multiply(product)),
        (y, factors.multiply(factors.multiply(y), adjoint=True)),
    ]
    return max(
        float(cupy.linalg.norm(one - other) / cupy.linalg.norm(one)) / eps for one, other in found
    )


def row(m: int, n: int, dtype: str, repeats: int) -> str:
    """One line of the table."""
    import cupy

    real = cupy.random.standard_normal((m, n), dtype=np.float32)
    a = cupy.asfortranarray(real.astype(dtype))
    del real
    theirs = statistics.median(peers.cusolver_geqrf(a.copy(order="F")) for _ in range(repeats))
    columns, _ = measure(a, "householder", repeats)
    products, factors = measure(a, "cholesky", repeats)
    tried = Counter(factors.panels)["cholesky"]
    auto, factors = measure(a, "auto", repeats)
    chosen = "+".join(sorted(set(factors.panels)))
    return (
        f"{f'{m} x {n}':<16}{theirs:>10.4f}{columns:>13.4f}{products:>10.4f}"
        f"{f'{tried} of {len(factors.panels)}':>13}{auto:>9.4f}  {chosen:<12}"
        f"{theirs / auto:>8.2f}{error(a, factors):>7.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", type=size, default=SHAPES, metavar="MxN")
    parser.add_argument("--dtype", choices=["float32", "float64", "complex128"], default="float64")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    if not gpu_count():
        print("there is no GPU here", file=sys.stderr)
        return 1
    print(
        f"{args.dtype:<16}{'cuSOLVER':>10}{'Householder':>13}{'Cholesky':>10}{'by Cholesky':>13}"
        f"{'auto':>9}  {'chosen':<12}{'x peer':>8}{'error':>7}"
    )
    for m, n in args.shapes:
        print(row(m, n, args.dtype, args.repeats), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
