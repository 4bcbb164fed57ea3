"""Factorizations with products from parts, or complex ones by 3M, beside native ones, on one GPU.

    python benchmarks/products.py --n 8192 32768                 # float32: native and split
    python benchmarks/products.py --n 16384 --dtype complex64
    python benchmarks/products.py --n 16384 --dtype complex128 --nb 512 --coarse 2048

    python benchmarks/products.py --n 8192 --errors              # of products, and of LU

The matrix, of random numbers, is on the GPU.  The contenders take turns, each in place on a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu.products import multiply
from hetero_la.tiles.kernels.gpu.queue import block
from hetero_la.tiles.storage.pivots import permutation

KINDS = {"float32": ["split"], "complex64": ["split", "3m"], "complex128": ["3m"]}
FUNCTIONS = {
    "lu": (hetero_la.lu_factor, 2 / 3), "cholesky": (hetero_la.cho_factor, 1 / 3),
    "qr": (hetero_la.qr_factor, 4 / 3),
}  # fmt: skip


def problem(xp: Any, n: int, dtype: str, definite: bool) -> Any:
    """Return a random matrix, column-major, on the GPU."""
    a = xp.empty((n, n), dtype, order="F")
    for first in range(0, n, 1024):
        part = a[:, first : first + 1024]
        part[...] = xp.random.standard_normal(part.shape, dtype=part.real.dtype)
        if a.dtype.kind == "c":
            part.imag[...] = xp.random.standard_normal(part.shape, dtype=part.real.dtype)
    if definite:  # diagonally dominant; only its lower triangle is read
        a[xp.arange(n), xp.arange(n)] = 2.0 * n
    return a


def seconds(xp: Any, function: Any, a: Any, how: dict[str, Any]) -> float:
    """Return what one call takes."""
    work = a.copy(order="F")
    xp.cuda.Device().synchronize()
    began = time.perf_counter()
    function(work, **how)
    xp.cuda.Device().synchronize()
    return time.perf_counter() - began


def measure(xp: Any, name: str, n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time one factorization with all products, in turns; print and return a row for each."""
    function, share = FUNCTIONS[name]
    a = problem(xp, n, args.dtype, name == "cholesky")
    flops = share * n**3 * (4 if a.dtype.kind == "c" else 1)
    given = {"nb": args.nb, **({"coarse": args.coarse} if name == "lu" else {})}
    how: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    how |= {"overwrite_a": True, "check_finite": False}
    if name == "cholesky":
        how["lower"] = True
    contenders = ["native", *KINDS[args.dtype]]
    taken: dict[str, list[float]] = {kind: [] for kind in contenders}
    for turn in range(args.repeats + 1):
        for kind in contenders:
            each = seconds(xp, function, a, {**how, "products": kind})
            if turn:
                taken[kind].append(each)
    rows = []
    for kind, times in taken.items():
        median = statistics.median(times)
        ratio = statistics.median(taken["native"]) / median
        row = {"routine": name, "n": n, "dtype": args.dtype, "products": kind, "seconds": times,
               "tflops": flops / median / 1e12, "rate over native": ratio}  # fmt: skip
        print(
            f"{name:9} {args.dtype} n = {n:6} {kind:7} {median:8.4f} s "
            f"{row['tflops']:6.1f} Tflop/s  {ratio:5.2f} of native's rate",
            flush=True,
        )
        rows.append(row)
    return rows


def product_errors(xp: Any, a: Any, b: Any, kind: Any) -> tuple[float, float]:
    """Return the normwise and the componentwise error of A B, in units of rounding.

    They are seen in 128 x 128 of its entries: the largest |C - A B| over the largest entry of
    |A| |B|, and over the own one, real and imaginary parts on their own.
    """
    (m, k), n = a.shape, b.shape[1]
    c, device = xp.zeros((m, n), a.dtype, order="F"), GpuDevice(a.device.id)
    with device.activate():
        q = device._queues[Queue.UPDATE]
        q.stream.use()
        options = KernelOptions(products=kind)
        multiply(q, 1, block(a), block(b), 0, block(c), (m, n, k), options)
        device.synchronize()
    few, wide = slice(None, None, max(m // 128, 1)), np.result_type(a.dtype, np.longdouble)
    columns = slice(None, None, max(n // 128, 1))
    left, right, found = (x.get().astype(wide) for x in (a[few], b[:, columns], c[few, columns]))
    difference = found - left @ right
    (ar, ai), (br, bi) = ((abs(x.real), abs(x.imag)) for x in (left, right))
    bounds = ar @ br + ai @ bi, ar @ bi + ai @ br
    parts = [difference.real, difference.imag][: 1 + (a.dtype.kind == "c")]
    seen = [(abs(part), own) for part, own in zip(parts, bounds, strict=False)]
    eps = float(np.finfo(a.dtype).eps) / 2
    normwise = max(float(error.max() / own.max()) for error, own in seen)
    return normwise / eps, max(float((error / own).max()) for error, own in seen) / eps


def errors(xp: Any, n: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure errors of products of inner size 512, and the ratio of LU; print and return them."""
    k, rows = min(512, n), []
    a, b = (
        problem(xp, n, args.dtype, False),
        xp.asfortranarray(problem(xp, n, args.dtype, False)[:k]),
    )
    wide, eps = np.result_type(args.dtype, np.float64), float(np.finfo(args.dtype).eps) / 2
    for kind in ["native", *KINDS[args.dtype]]:
        normwise, componentwise = product_errors(xp, a[:, :k], b, kind)
        packed, piv = hetero_la.lu_factor(a, products=kind, check_finite=False)
        lower, upper = xp.tril(packed, -1).astype(wide), xp.triu(packed).astype(wide)
        lower[xp.arange(n), xp.arange(n)] = 1
        order = xp.asarray(permutation(piv.get(), n))
        left_over = lower @ upper - a[order].astype(wide)
        ratio = float(xp.abs(left_over).sum(axis=0).max() / xp.abs(a).sum(axis=0).max()) / (n * eps)
        row = {"n": n, "dtype": args.dtype, "products": kind, "normwise": normwise,
               "componentwise": componentwise, "lu ratio": ratio}  # fmt: skip
        print(
            f"{args.dtype} n = {n:6} {kind:7} product: normwise {normwise:.3f} eps, "
            f"componentwise {componentwise:.3f} eps; LU: ratio {ratio:.4f}",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16384])
    parser.add_argument("--dtype", choices=KINDS, default="float32")
    parser.add_argument("--routines", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--nb", type=int)
    parser.add_argument("--coarse", type=int)
    parser.add_argument("--errors", action="store_true", help="measure errors, and no times")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import cupy

    if args.errors:
        rows = [row for n in args.n for row in errors(cupy, n, args)]
    else:
        rows = [r for n in args.n for name in args.routines for r in measure(cupy, name, n, args)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
