"""LU and QR of tall matrices on one GPU, beside cuSOLVER.

python benchmarks/tall.py lu                        panels and tall matrices, float64
python benchmarks/tall.py qr 1000000x512 --dtype complex128

Seconds are medians of repeats, with the matrix on the GPU.

LU: cuSOLVER's getrf and our kernel getrf, in place; then the functions lu_factor, CuPy's and ours,
which keep their input.  The error is |P A x - L U x| / |A x| for random x, in units of eps.

QR: panels column by column, by CholeskyQR2 and as chosen by default, beside cuSOLVER's geqrf.
"by Cholesky" says how many of the panels CholeskyQR2 has factored where every panel was tried, and
"auto" which kind was chosen.  The error is the larger of |A x - Q R x| / |A x| and
|Q^H Q y - y| / |y| for random x and y, in units of eps, for the default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import hetero_la
from hetero_la.cli.common.values import size
from hetero_la.studies.factorizations import peers
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice

SHAPES = [
    (8192, 512), (32768, 512), (65536, 512), (131072, 512), (524288, 512), (1000000, 512),
    (262144, 2048), (131072, 8192),
]  # fmt: skip


def eps(a: Any) -> float:
    """The unit of errors."""
    return float(np.finfo(a.dtype).eps)


def matrix(m: int, n: int, dtype: str) -> Any:
    """Random numbers on the GPU, column-major."""
    import cupy

    real = cupy.random.standard_normal((m, n), dtype=np.float32)
    return cupy.asfortranarray(real.astype(dtype))


def median_of(run: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call on the GPU, after one that does not count."""
    import cupy

    def wait() -> None:
        run()
        cupy.cuda.Device().synchronize()

    return statistics.median([peers.seconds_of(wait) for _ in range(repeats + 1)][1:])


def panel_seconds(a: Any, repeats: int) -> float:
    """Median seconds of the kernel getrf, in place."""
    import cupy

    device, order, options = GpuDevice(a.device.id), min(a.shape), KernelOptions()
    work, taken = cupy.empty_like(a), []
    with device.activate():
        arguments = [work, device.empty((order,), np.int32), device.empty((1,), np.int32)]
        for _ in range(repeats + 1):
            device.copy(work, a, Queue.PANEL)
            device.synchronize()
            began = time.perf_counter()
            device.call("getrf", Queue.PANEL, arguments, options)
            device.synchronize()
            taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def lu_error(a: Any, packed: Any, piv: Any) -> float:
    """How wrong factors are, in units of eps."""
    import cupy

    m, n = a.shape
    x = cupy.random.standard_normal((n, 3)).astype(a.dtype)
    rows = np.arange(m)
    for i, p in enumerate(piv.get()):
        rows[[i, p]] = rows[[p, i]]
    product = cupy.triu(packed[:n]) @ x
    top = cupy.tril(packed[:n], -1) @ product + product
    found = cupy.vstack([top, packed[n:] @ product])
    expected = (a @ x)[cupy.asarray(rows)]
    return float(cupy.linalg.norm(found - expected) / cupy.linalg.norm(expected)) / eps(a)


def lu_row(m: int, n: int, dtype: str, repeats: int) -> str:
    """One line of the table of LU."""
    from cupyx.scipy.linalg import lu_factor

    a = matrix(m, n, dtype)
    theirs = statistics.median(
        [peers.cusolver_getrf(a.copy(order="F")) for _ in range(repeats + 1)][1:]
    )
    ours = panel_seconds(a, repeats)
    function = median_of(lambda: lu_factor(a, check_finite=False), repeats)
    public = median_of(lambda: hetero_la.lu_factor(a, check_finite=False), repeats)
    error = lu_error(a, *hetero_la.lu_factor(a, check_finite=False))
    return (
        f"{f'{m} x {n}':<16}{theirs:>11.5f}{ours:>10.5f}{theirs / ours:>8.2f}"
        f"{function:>14.5f}{public:>10.5f}{function / public:>8.2f}{error:>7.1f}"
    )


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


def qr_error(a: Any, factors: Any) -> float:
    """How wrong factors are, in units of eps."""
    import cupy

    m, n = a.shape
    x, y = (cupy.random.standard_normal((k, 3)).astype(a.dtype) for k in (n, m))
    product = cupy.zeros((m, 3), a.dtype)
    product[: min(m, n)] = factors.r @ x
    found = [
        (a @ x, factors.multiply(product)),
        (y, factors.multiply(factors.multiply(y), adjoint=True)),
    ]
    return max(
        float(cupy.linalg.norm(one - other) / cupy.linalg.norm(one)) / eps(a)
        for one, other in found
    )


def qr_row(m: int, n: int, dtype: str, repeats: int) -> str:
    """One line of the table of QR."""
    a = matrix(m, n, dtype)
    theirs = statistics.median(peers.cusolver_geqrf(a.copy(order="F")) for _ in range(repeats))
    columns, _ = measure(a, "householder", repeats)
    products, factors = measure(a, "cholesky", repeats)
    tried = Counter(factors.panels)["cholesky"]
    auto, factors = measure(a, "auto", repeats)
    chosen = "+".join(sorted(set(factors.panels)))
    return (
        f"{f'{m} x {n}':<16}{theirs:>10.4f}{columns:>13.4f}{products:>10.4f}"
        f"{f'{tried} of {len(factors.panels)}':>13}{auto:>9.4f}  {chosen:<12}"
        f"{theirs / auto:>8.2f}{qr_error(a, factors):>7.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("routine", choices=["lu", "qr"])
    parser.add_argument("shapes", nargs="*", type=size, default=SHAPES, metavar="MxN")
    parser.add_argument("--dtype", choices=["float32", "float64", "complex128"], default="float64")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    if not gpu_count():
        print("there is no GPU here", file=sys.stderr)
        return 1
    head, row = {
        "lu": (
            f"{'cuSOLVER':>11}{'panel':>10}{'x peer':>8}"
            f"{'cupyx':>14}{'lu_factor':>10}{'x peer':>8}{'error':>7}",
            lu_row,
        ),
        "qr": (
            f"{'cuSOLVER':>10}{'Householder':>13}{'Cholesky':>10}{'by Cholesky':>13}"
            f"{'auto':>9}  {'chosen':<12}{'x peer':>8}{'error':>7}",
            qr_row,
        ),
    }[args.routine]
    print(f"{args.dtype:<16}{head}")
    for m, n in args.shapes:
        print(row(m, n, args.dtype, args.repeats), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
