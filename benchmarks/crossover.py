"""Every function at every size, contenders in turns: who is fastest where, and from which order.

    python benchmarks/crossover.py --json here.json --plot here.svg          # this machine's CPU
    python benchmarks/crossover.py --gpu --orders 1024 2048 4096             # and one GPU
    python benchmarks/crossover.py --stack 1000 --orders 32 64 128 256       # stacks of matrices
    python benchmarks/crossover.py --stack 1000 --gpu --orders 32 64         # and on one GPU
    python benchmarks/crossover.py --read here.json --plot here.svg          # draw it again

The contenders are those of `hetero_la.bench`, as in ``hetero-la bench``, at the orders that are
asked for, however long that takes.  Stacks: a loop over SciPy's function that keeps the results,
and hetero_la; on a GPU CuPy's batched function, or a loop over that for one matrix, and hetero_la.
A contender that takes more than 0.2 s and five times as long as the fastest at one order, or
cannot do it, is left out at larger ones.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.bench.chart import draw
from hetero_la.bench.contenders import (
    FUNCTIONS,
    POSITIVE,
    Call,
    complete_call,
    cupy_calls,
    random_problem,
)
from hetero_la.bench.measuring import OURS, Contest, Measured, contest, speed_up

ORDERS = [2**k for k in range(6, 14)]

#: More functions of stacks; those of factors get them as LAPACK leaves them.
STACKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cholesky": lambda la, m, b: la.cholesky(m, lower=True),
    "qr r": lambda la, m, b: la.qr(m, mode="r"),
    "qr raw": lambda la, m, b: la.qr(m, mode="raw"),
    "lu": lambda la, m, b: la.lu(m),
    "det": lambda la, m, b: la.det(m),
    "lu_solve": lambda la, m, b: la.lu_solve((m, pivots(m)), b),
    "cho_solve": lambda la, m, b: la.cho_solve((m, True), b),
    "solve symmetric": lambda la, m, b: la.solve(m, b, assume_a="sym"),
    "solve upper": lambda la, m, b: la.solve(m, b, assume_a="upper triangular"),
    "solve tridiagonal": lambda la, m, b: la.solve(m, b, assume_a="tridiagonal"),
    "solve banded": lambda la, m, b: la.solve(m, b, assume_a="banded"),
    "solve diagonal": lambda la, m, b: la.solve(m, b, assume_a="diagonal"),
}
POSITIVE_STACKS = (*POSITIVE, "cholesky", "cho_solve")
#: Functions whose matrices need a large diagonal, and their diagonals beside it.
DOMINANT = {"solve upper": None, "solve tridiagonal": 1, "solve banded": 3, "solve diagonal": 0}


def pivots(m: Any) -> Any:
    """Interchanges of no rows, for each matrix."""
    xp = np if isinstance(m, np.ndarray) else importlib.import_module("cupy")
    return xp.broadcast_to(xp.arange(m.shape[-1], dtype=np.int32), m.shape[:-1])


def cupy_stack_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """CuPy's functions on stacks; positive definite systems are solved by LU, too."""
    import cupy

    one = cupy_calls()
    batched: dict[str, Callable[[Any, Any], Any]] = {
        "solve": lambda m, b: cupy.linalg.solve(m, b),
        "solve positive": lambda m, b: cupy.linalg.solve(m, b),
        "inv": lambda m, b: cupy.linalg.inv(m),
        "cho_factor": lambda m, b: cupy.linalg.cholesky(m),
        "cholesky": lambda m, b: cupy.linalg.cholesky(m),
        "det": lambda m, b: cupy.linalg.det(m),
    }
    loops = {
        name: lambda m, b, name=name: [one[name](*pair) for pair in zip(m, b, strict=True)]
        for name in ("lu_factor", "qr", "lstsq")
    }
    return batched | loops


def stacked_problem(function: str, n: int, count: int, dtype: str) -> tuple[Any, Any]:
    """A stack of matrices that suit a function, and right-hand sides."""
    m, b = random_problem(function, n, positive=function in POSITIVE_STACKS, dtype=dtype)
    if function in DOMINANT:
        m = m + 2 * n * np.eye(n, dtype=dtype)
        width = DOMINANT[function]
        m = np.triu(m) if width is None else np.triu(np.tril(m, width), -width)
    scales = np.linspace(1, 2, count)[:, None, None]
    return np.ascontiguousarray(scales * m, dtype), np.ascontiguousarray(scales * b, dtype)


def of_stacks(where: str, function: str, args: argparse.Namespace, n: int) -> dict[str, Call]:
    """Contenders with a stack of matrices."""
    call = {**FUNCTIONS, **STACKS}[function]
    many, right = stacked_problem(function, n, args.stack, args.dtype)
    if where == "host":
        return {
            "SciPy": lambda: [call(scipy.linalg, *one) for one in zip(many, right, strict=True)],
            "hetero_la": lambda: call(hetero_la, many, right),
        }
    import cupy

    given, columns = cupy.asarray(many), cupy.asarray(right)
    found = {"hetero_la": complete_call(lambda: call(hetero_la, given, columns))}
    if theirs := cupy_stack_calls().get(function):
        found["CuPy"] = complete_call(lambda: theirs(given, columns))
    return found


def show(rows: list[Measured]) -> None:
    """Print the medians of a function at one order, in a line."""
    if not rows:
        return
    figures = [f"{row.who} {1e3 * row.median:.3f} ms" for row in rows]
    others = [min(row.seconds) for row in rows if row.who != OURS]
    ours = [min(row.seconds) for row in rows if row.who == OURS]
    if (factor := speed_up(rows)) is not None:
        figures.append(
            f"ours / best other {1 / factor:.2f} (least times: {ours[0] / min(others):.2f})"
        )
    first = rows[0]
    print(f"{first.where:<7}{first.function:<15}{first.n:>6}", *figures, sep="  ", flush=True)


def contests(args: argparse.Namespace) -> list[Contest]:
    """What to measure, for each function and kind of arrays."""
    functions = args.functions or [*FUNCTIONS, *(STACKS if args.stack else ())]
    places = ["host", "device"] if args.gpu else ["host"]
    if args.stack:
        return [
            Contest(where, one, partial(of_stacks, where, one, args), print)
            for where in places for one in functions
        ]  # fmt: skip
    return [contest(where, one, args.gpu, print) for where in places for one in functions]


def main() -> None:
    """Measure or read, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--functions", nargs="+", choices=[*FUNCTIONS, *STACKS])
    parser.add_argument("--gpu", action="store_true", help="with one GPU beside, and on it")
    parser.add_argument("--stack", type=int, default=0, help="as many matrices in each call")
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], default="float64", help="of stacks"
    )
    parser.add_argument("--series", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path, help="draw what was written before")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    rows: list[Measured] = []
    if args.read:
        rows = [Measured(**row) for row in json.loads(args.read.read_text())]
    else:
        for one in contests(args):
            for n in args.orders:
                found = one.measure(n, args.series)
                show(found)
                rows += found
                if args.json:  # at once: a run of all takes long, and may be ended before
                    args.json.write_text(json.dumps([asdict(row) for row in rows]))
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
