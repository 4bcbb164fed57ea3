"""Factorizations with products from parts, or complex ones by 3M, beside native ones, on one GPU.

    python benchmarks/products.py --n 8192 32768                 # float32: native and split
    python benchmarks/products.py --n 16384 --dtype complex64
    python benchmarks/products.py --n 16384 --dtype complex128 --nb 512 --coarse 2048

The matrix, of random numbers, is on the GPU.  The contenders take turns, each in place on a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import hetero_la

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
            f"{row['tflops']:6.1f} TFLOP/s  {ratio:5.2f} of native's rate",
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import cupy

    rows = [row for n in args.n for name in args.routines for row in measure(cupy, name, n, args)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
