"""The first calls of a process on a GPU, beside the next ones.

    python benchmarks/first_call.py --functions lu_factor solve --orders 1024 4096 16384

Each row is a process of its own, forked from one that has imported everything and used no GPU.
`context` is what CUDA takes before the first call.  Run it twice: what is compiled for the first
time is in CuPy's cache afterwards.  CuPy's own functions, of CuPy arrays, stand beside.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import cupy
import cupyx.scipy.linalg
import numpy as np

import hetero_la

#: Calls by name, of a library, a matrix and right-hand sides.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "lu_factor": lambda la, a, b: la.lu_factor(a),
    "cho_factor": lambda la, a, b: la.cho_factor(a, lower=True),
    "qr": lambda la, a, b: la.qr(a, mode="economic"),
    "solve": lambda la, a, b: la.solve(a, b),
}
#: CuPy's own functions of these names.
PEERS: dict[str, Callable[[Any, Any], Any]] = {
    "lu_factor": lambda a, b: cupyx.scipy.linalg.lu_factor(a),
    "cho_factor": lambda a, b: cupy.linalg.cholesky(a),
    "qr": lambda a, b: cupy.linalg.qr(a),
    "solve": lambda a, b: cupy.linalg.solve(a, b),
}


def matrix(n: int) -> np.ndarray:
    """A symmetric positive definite matrix, soon made."""
    a = np.minimum.outer(np.arange(n), np.arange(n)) / n
    a[np.diag_indices(n)] += 1
    return a


def measure(name: str, n: int, who: str, calls: int) -> None:
    """Time CUDA's context and some calls; print a row."""
    a, b = matrix(n), np.ones((n, 4))
    began = time.perf_counter()
    cupy.empty(1)
    cupy.cuda.Device().synchronize()
    context = time.perf_counter() - began
    if who != "NumPy":
        a, b = cupy.asarray(a), cupy.asarray(b)
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        result = PEERS[name](a, b) if who == "CuPy's own" else CALLS[name](hetero_la, a, b)
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - began)
        del result
    times = " ".join(f"{1e3 * taken:8.1f}" for taken in seconds)
    ratio, with_context = seconds[0] / seconds[1], (context + seconds[0]) / seconds[1]
    print(
        f"{name:11}{n:6} {who:11} context {1e3 * context:6.0f}   calls {times} ms   "
        f"first over second {ratio:7.2f}, with context {with_context:7.2f}",
        flush=True,
    )


def main() -> None:
    """Run each case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", nargs="+", choices=CALLS, default=list(CALLS))
    parser.add_argument("--orders", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--calls", type=int, default=3)
    args = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    for name in args.functions:
        for n in args.orders:
            for who in ("NumPy", "CuPy", "CuPy's own"):
                process = fork.Process(target=measure, args=(name, n, who, args.calls))
                process.start()
                process.join()


if __name__ == "__main__":
    main()
