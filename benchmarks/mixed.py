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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.mixed import prediction
from hetero_la.numerics.conditioning import norm1
from hetero_la.testing.kinds import KINDS
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lstsq_ratio, solve_ratio
from hetero_la.tiles.arrays.transfer import array_module, to_host, wait_for_writes

#: Kinds of positive definite matrices.
DEFINITE = ("kms", "spd", "moler", "hilb")
#: Name of a case -> how the matrix is made, rows over columns, the call.
CASES: dict[str, tuple[dict[str, Any], int, Callable[..., Any]]] = {
    "solve": ({"kind": "rands"}, 1, hetero_la.solve),
    "solve, graded to 1e12": ({"kind": "svd", "cond": 1e12}, 1, hetero_la.solve),
    "solve, one tiny singular value": ({"kind": "tiny"}, 1, hetero_la.solve),
    "solve, sixteen of them tiny": ({"kind": "tiny", "tiny": 16}, 1, hetero_la.solve),
    "Cholesky": (
        {"kind": "definite"},
        1,
        lambda a, b, **how: hetero_la.solve(a, b, assume_a="pos", **how),
    ),
    "least squares": ({"kind": "rands"}, 2, lambda a, b, **how: _least_squares(a, b, **how)),
}


def _least_squares(a: Any, b: Any, **how: Any) -> Any:
    found = hetero_la.lstsq(a, b, lapack_driver="gels", **how)
    return (found[0], found[-1]) if how.get("report") else found[0]


def matrix(
    kind: str, m: int, n: int, dtype: str, cond: float | None = None, tiny: int = 1
) -> np.ndarray:
    """Return a matrix of a kind of the tests, or of two others."""
    own = "rands" if kind in ("tiny", "definite") else kind
    a = generate(own, m, n, dtype=dtype, cond=cond)
    if kind == "tiny":  # the last columns are nearly combinations of the others
        k = n - tiny
        a[:, k:] = a[:, :k] @ generate("rands", k, tiny, dtype=dtype, seed=2) + 1e-12 * a[:, k:]
    if kind == "definite":
        a = a @ a.conj().T
        a[np.arange(n), np.arange(n)] += n / 10
    return np.asfortranarray(a)


def on_device(xp: Any, kind: str, m: int, n: int, dtype: str) -> Any:
    """Return a random matrix of the current GPU, made there."""

    def part() -> Any:
        made = xp.random.random((n, m)).T
        made -= 0.5
        return made

    a = part() if dtype == "float64" else part() + 1j * part()
    if kind == "definite":
        a = xp.asfortranarray(a @ a.conj().T)
        a[xp.arange(n), xp.arange(n)] += n / 10
    return a


def seconds(call: Callable[..., Any], a: Any, b: Any, precision: str) -> float:
    """Return what one call takes."""
    wait_for_writes(a)
    began = time.perf_counter()
    wait_for_writes(call(a, b, precision=precision))
    return time.perf_counter() - began


def ratio(a: Any, x: Any, b: Any) -> float:
    """Return the largest error ratio of a column, as `solve_ratio` does, where the arrays are."""
    if a.shape[0] != a.shape[1]:
        return lstsq_ratio(*map(to_host, (a, x, b)))
    sizes = norm1(a) * abs(x).sum(axis=0) * float(np.finfo(b.dtype).eps)
    return float((abs(b - a @ x).sum(axis=0) / sizes).max())


def measure(name: str, n: int, args: argparse.Namespace, xp: Any) -> dict[str, Any]:
    """Return medians of both, in turns, and what came of mixed precision."""
    how, tall, call = CASES[name]
    simple = how["kind"] in ("rands", "definite")
    if xp is not np and simple:
        a = on_device(xp, how["kind"], tall * n, n, args.dtype)
    else:
        a = xp.asarray(matrix(m=tall * n, n=n, dtype=args.dtype, **how), order="F")
    b = xp.asarray(generate("rands", tall * n, args.nrhs, dtype=args.dtype, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ill-conditioned matrices
        x, report = call(a, b, precision="mixed", report=True)
        call(a, b)
        times: dict[str, list[float]] = {"mixed": [], "full": []}
        for _ in range(args.repeat):
            for precision, spent in times.items():
                spent.append(seconds(call, a, b, precision))
    medians = {precision: statistics.median(spent) for precision, spent in times.items()}
    return {
        "case": name, "n": n, "dtype": args.dtype, "nrhs": args.nrhs, **medians,
        "share": medians["mixed"] / medians["full"], "outcome": str(report.mixed),
        "ratio": ratio(a, x, b),
    }  # fmt: skip


def kinds() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a name, the structure, and how the matrix is made."""
    for kind in KINDS:
        yield kind, "gen", {"kind": kind}
    for cond in (1e4, 1e5, 1e6, 1e7, 1e8):
        yield f"svd, {cond:.0e}", "gen", {"kind": "svd", "cond": cond}
    for tiny in (1, 4, 16):
        yield f"{tiny} tiny values", "gen", {"kind": "tiny", "tiny": tiny}
    for kind in DEFINITE:
        yield kind, "pos", {"kind": kind}
    for cond in (1e4, 1e6, 1e8):
        yield f"spd, {cond:.0e}", "pos", {"kind": "spd", "cond": cond}


def outcomes(n: int, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield what comes of mixed precision for every kind of matrix, and both error ratios."""
    prediction.pays = lambda problem, gpu: True
    b = generate("rands", n, 2, dtype=dtype, seed=1)
    for kind, structure, how in kinds():
        a = matrix(m=n, n=n, dtype=dtype, **how)
        row: dict[str, Any] = {"kind": kind, "structure": structure, "n": n, "dtype": dtype}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                x, report = hetero_la.solve(
                    a, b, assume_a=structure, precision="mixed", report=True
                )
                full = hetero_la.solve(a, b, assume_a=structure)
            except np.linalg.LinAlgError as error:
                yield row | {"outcome": str(error), "ratio": np.nan, "full": np.nan}
                continue
        ratios = {"ratio": float(solve_ratio(a, x, b)), "full": float(solve_ratio(a, full, b))}
        yield row | ratios | {"outcome": str(report.mixed)}


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
                print(
                    f"{row['kind']:<16}{row['structure']:<5}{n:>6}{row['ratio']:>9.2g}"
                    f"{row['full']:>9.2g}  {row['outcome']}", flush=True,
                )  # fmt: skip
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
