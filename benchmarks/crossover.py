"""Every function at every size, contenders in turns: who is fastest where, and from which order.

    python benchmarks/crossover.py --json here.json --plot here.svg          # this machine's CPU
    python benchmarks/crossover.py --gpu --orders 1024 2048 4096             # and one GPU
    python benchmarks/crossover.py --stack 1000 --orders 32 64 128 256       # stacks of matrices
    python benchmarks/crossover.py --read here.json --plot here.svg          # draw it again

The contenders are those of `hetero_la.bench`, as in ``hetero-la bench``, at the orders that are
asked for, however long that takes.  Stacks: a loop over SciPy's function that keeps the results,
and hetero_la.  A contender that takes more than a second and five times as long as the fastest at
one order, or cannot do it, is left out at larger ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.bench.chart import draw
from hetero_la.bench.contenders import FUNCTIONS, POSITIVE, Call, random_problem
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
}
POSITIVE_STACKS = (*POSITIVE, "cholesky", "cho_solve")


def pivots(m: Any) -> Any:
    """Interchanges of no rows, for each matrix."""
    return np.broadcast_to(np.arange(m.shape[-1], dtype=np.int32), m.shape[:-1])


def of_stacks(function: str, n: int, count: int) -> dict[str, Call]:
    """Contenders with a stack of matrices."""
    m, b = random_problem(function, n, positive=function in POSITIVE_STACKS)
    call, scales = {**FUNCTIONS, **STACKS}[function], np.linspace(1, 2, count)[:, None, None]
    many, right = np.ascontiguousarray(scales * m), np.ascontiguousarray(scales * b)
    return {
        "SciPy": lambda: [call(scipy.linalg, *one) for one in zip(many, right, strict=True)],
        "hetero_la": lambda: call(hetero_la, many, right),
    }


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
    if args.stack:
        return [
            Contest("host", one, lambda n, one=one: of_stacks(one, n, args.stack), print)
            for one in functions
        ]
    places = ["host", "device"] if args.gpu else ["host"]
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
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows]))
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
