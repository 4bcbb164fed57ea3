"""Mixed precision beside full precision: times, steps, and the kinds of matrices that fall back.

    python benchmarks/mixed.py --n 1000 2000 4000              # solve, Cholesky, least squares
    python benchmarks/mixed.py --n 2000 --kinds                # solve of every kind of matrix
    python benchmarks/mixed.py --n 8192 16384 --gpu            # CuPy arrays

The two take turns; times are medians.  With --kinds, mixed precision is also tried where it is not
predicted to pay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.mixed import prediction
from hetero_la.testing.kinds import KINDS
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lstsq_ratio, solve_ratio
from hetero_la.tiles.arrays.transfer import array_module, to_host, wait_for_writes

#: Name of a case -> kind of the matrix, rows over columns, the call.
CASES: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "solve": ("rands", 1, hetero_la.solve),
    "solve, graded to 1e12": ("svd", 1, hetero_la.solve),
    "solve, one tiny singular value": ("tiny", 1, hetero_la.solve),
    "Cholesky": ("definite", 1, lambda a, b, **how: hetero_la.solve(a, b, assume_a="pos", **how)),
    "least squares": ("rands", 2, lambda a, b, **how: _least_squares(a, b, **how)),
}


def _least_squares(a: Any, b: Any, **how: Any) -> Any:
    found = hetero_la.lstsq(a, b, lapack_driver="gels", **how)
    return (found[0], found[-1]) if how.get("report") else found[0]


def matrix(kind: str, m: int, n: int, dtype: str) -> np.ndarray:
    """Return a matrix of a kind of the tests, or of two that are well known to be hard or easy."""
    a = generate("rands" if kind in ("tiny", "definite") else kind, m, n, dtype=dtype,
                 cond=1e12 if kind == "svd" else None)  # fmt: skip
    if kind == "tiny":  # the last column is nearly the sum of the others
        a[:, -1] = a[:, :-1].sum(axis=1) + 1e-12 * a[:, -1]
    if kind == "definite":
        a = a @ a.conj().T
        a[np.arange(n), np.arange(n)] += n / 10
    return np.asfortranarray(a)


def seconds(call: Callable[..., Any], a: Any, b: Any, precision: str) -> float:
    """Return what one call takes."""
    wait_for_writes(a)
    began = time.perf_counter()
    wait_for_writes(call(a, b, precision=precision))
    return time.perf_counter() - began


def measure(name: str, n: int, args: argparse.Namespace, xp: Any) -> dict[str, Any]:
    """Return medians of both, in turns, and what came of mixed precision."""
    kind, tall, call = CASES[name]
    a = xp.asarray(matrix(kind, tall * n, n, args.dtype), order="F")
    b = xp.asarray(generate("rands", tall * n, args.nrhs, dtype=args.dtype, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ill-conditioned matrices
        x, report = call(a, b, precision="mixed", report=True)
        call(a, b)
        times: dict[str, list[float]] = {"mixed": [], "full": []}
        for _ in range(args.repeat):
            for precision, spent in times.items():
                spent.append(seconds(call, a, b, precision))
    ratio = lstsq_ratio if tall > 1 else solve_ratio
    medians = {precision: statistics.median(spent) for precision, spent in times.items()}
    return {
        "case": name, "n": n, "dtype": args.dtype, "nrhs": args.nrhs, **medians,
        "share": medians["mixed"] / medians["full"], "outcome": str(report.mixed),
        "ratio": ratio(*map(to_host, (a, x, b))),
    }  # fmt: skip


def outcomes(n: int, dtype: str) -> list[dict[str, Any]]:
    """Return what comes of mixed precision for every kind of matrix, and the error ratio."""
    rows = []
    prediction.pays = lambda problem, gpu: True
    for kind in KINDS:
        a, b = generate(kind, n, dtype=dtype), generate("rands", n, 2, dtype=dtype, seed=1)
        row: dict[str, Any] = {"kind": kind, "n": n, "dtype": dtype}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                x, report = hetero_la.solve(a, b, precision="mixed", report=True)
                row |= {"outcome": str(report.mixed), "ratio": float(solve_ratio(a, x, b))}
            except np.linalg.LinAlgError:
                row |= {"outcome": "singular, in full precision as well", "ratio": None}
        rows.append(row)
    return rows


def main() -> None:
    """Measure, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[1000, 2000])
    parser.add_argument("--nrhs", type=int, default=1)
    parser.add_argument("--dtype", choices=("float64", "complex128"), default="float64")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kinds", action="store_true", help="what comes of it for every kind")
    parser.add_argument("--gpu", action="store_true", help="CuPy arrays")
    parser.add_argument("--json", type=Path, help="file for the rows")
    args = parser.parse_args()
    xp = np
    if args.gpu:
        from hetero_la.tiles.arrays.transfer import to_device

        xp = array_module(to_device(np.zeros(1)))
    rows: list[dict[str, Any]] = []
    for n in args.n:
        if args.kinds:
            for row in outcomes(n, args.dtype):
                shown = "" if row["ratio"] is None else f"{row['ratio']:.2g}"
                print(f"{row['kind']:<16}{n:>7}{shown:>9}  {row['outcome']}", flush=True)
                rows.append(row)
            continue
        for name in args.case:
            row = measure(name, n, args, xp)
            print(
                f"{name:<32}{n:>7}{1e3 * row['mixed']:>10.1f} ms{1e3 * row['full']:>10.1f} ms"
                f"{row['share']:>7.2f}{row['ratio']:>9.2g}  {row['outcome']}", flush=True,
            )  # fmt: skip
            rows.append(row)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
