"""Errors of all routines beside LAPACK's, or cuSOLVER's, on the same matrices, as Markdown tables.

The same estimates judge everybody's factors and solutions; X is known exactly.  The matrices have
condition numbers of about a million, and entries that are multiples of 2^-30, so that products with
vectors of signs are exact.

python benchmarks/accuracy.py 1024 2048
python benchmarks/accuracy.py --gpu 1024 2048 4096 8192
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.accuracy.factored import CholeskyFactored, LUFactored, QRFactored
from hetero_la.accuracy.judging import judge_factors
from hetero_la.api.qr_factors import apply_q
from hetero_la.testing.matrices import generate
from hetero_la.tiles.arrays.transfer import array_module, linalg_module, to_host

COND, GRID = 1e6, 2.0**30


class Row(NamedTuple):
    """One routine of one library."""

    routine: str
    who: str
    report: hetero_la.AccuracyReport
    error: float  #: max |x - x*| / max |x*|


@lru_cache(maxsize=2)  # a matrix of given condition takes longer than its factorization
def host_problem(kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, B and X with A X = B exactly."""
    a = np.round(generate(kind, n, cond=COND) * GRID) / GRID
    if kind == "spd":
        a = np.tril(a) + np.tril(a, -1).T
    x = np.random.default_rng(n).choice([-1.0, 1.0], (n, 1))
    return np.asfortranarray(a), a @ x, x


def problem(kind: str, n: int, xp: Any) -> tuple[Any, Any, Any]:
    """Return a problem's arrays where `xp` has them, for the caller alone."""
    return tuple(xp.array(array, order="F") for array in host_problem(kind, n))


def error_of(found: Any, x: Any) -> float:
    return float(to_host(abs(found.reshape(x.shape) - x)).max())


def ours(n: int, xp: Any) -> Iterator[Row]:
    """Solve by every routine of ours."""
    a, b, x = problem("svd", n, xp)
    factors = hetero_la.lu_factor(a)
    yield Row("LU", "ours", factors.report(a, b), error_of(factors.solve(b), x))
    solved, report = hetero_la.solve(a, b, report=True)
    yield Row("solve", "ours", report, error_of(solved, x))
    qr = hetero_la.qr_factor(a)
    yield Row("QR", "ours", qr.report(a, b), error_of(qr.solve(b), x))
    solved, *_, report = hetero_la.lstsq(a, b, lapack_driver="gels", report=True)
    yield Row("least squares", "ours", report, error_of(solved, x))
    a, b, x = problem("spd", n, xp)
    c = hetero_la.cho_factor(a, lower=True)
    yield Row("Cholesky", "ours", c.report(a, b), error_of(c.solve(b), x))
    solved, report = hetero_la.solve(a, b, assume_a="pos", lower=True, report=True)
    yield Row("solve positive", "ours", report, error_of(solved, x))


def theirs(n: int, xp: Any, who: str) -> Iterator[Row]:
    """Solve with the factors of SciPy's LAPACK or of CuPy's cuSOLVER, and judge them alike."""
    la = linalg_module(xp.empty(0))
    run = hetero_la.lu_factor(np.eye(2))._report
    a, b, x = problem("svd", n, xp)
    lu, piv = la.lu_factor(a)

    def solve(b: Any, trans: int) -> Any:
        return la.lu_solve((lu, piv), b, trans=trans)

    report = judge_factors(LUFactored(lu, run, piv), a, b, None, solve)
    yield Row("LU", who, report, error_of(solve(b, 0), x))
    qr, tau = raw_qr(a)

    def solve_by_qr(b: Any, trans: int) -> Any:
        if trans:
            y = la.solve_triangular(qr, b, trans=2)
            return apply_q(qr, tau, y, adjoint=False)
        return la.solve_triangular(qr, apply_q(qr, tau, b, adjoint=True))

    report = judge_factors(QRFactored(qr, run, partial(apply_q, qr, tau)), a, b, None, solve_by_qr)
    yield Row("QR", who, report, error_of(solve_by_qr(b, 0), x))
    a, b, x = problem("spd", n, xp)
    c = xp.asfortranarray(xp.linalg.cholesky(a))
    again: Callable[[Any, int], Any] = lambda b, trans: la.solve_triangular(  # noqa: E731
        c, la.solve_triangular(c, b, lower=True), lower=True, trans=2
    )
    report = judge_factors(CholeskyFactored(c, run), a, b, None, again)
    yield Row("Cholesky", who, report, error_of(again(b, 0), x))
    if xp is np:
        yield from lapack_experts(n)


def raw_qr(a: Any) -> tuple[Any, Any]:
    """Return LAPACK's packed factors."""
    if array_module(a) is np:
        (qr, tau), _ = scipy.linalg.qr(a, mode="raw")
        return qr, tau
    h, tau = array_module(a).linalg.qr(a, mode="raw")
    return array_module(a).asfortranarray(h.T), tau


def lapack_experts(n: int) -> Iterator[Row]:
    """Solve by LAPACK's expert drivers, which have estimates of their own."""
    for routine, kind, function in (
        ("solve", "svd", scipy.linalg.lapack.dgesvx),
        ("solve positive", "spd", scipy.linalg.lapack.dposvx),
    ):
        a, b, x = problem(kind, n, np)
        *_, found, rcond, ferr, berr, _ = function(a, b)
        report = hetero_la.AccuracyReport(
            routine, "float64", rcond=rcond, forward_error=ferr[0], componentwise_error=berr[0]
        )
        yield Row(routine, "LAPACK", report, error_of(found, x))


COLUMNS: dict[str, Callable[[Row], Any]] = {
    "error": lambda row: row.error,
    "its bound": lambda row: row.report.forward_error,
    "rcond": lambda row: row.report.rcond,
    "normwise": lambda row: row.report.backward_error,
    "componentwise": lambda row: row.report.componentwise_error,
    "factorization": lambda row: row.report.factorization_error,
    "orthogonality": lambda row: row.report.orthogonality,
    "growth": lambda row: row.report.growth,
}


def costs(n: int, xp: Any) -> str:
    """Return what the estimates take, in percent of each run: medians of five."""
    a, b, _ = problem("svd", n, xp)
    c = problem("spd", n, xp)[0]
    calls: dict[str, Callable[[], hetero_la.AccuracyReport]] = {
        "LU": lambda: hetero_la.lu_factor(a).report(a),
        "Cholesky": lambda: hetero_la.cho_factor(c).report(c),
        "QR": lambda: hetero_la.qr_factor(a).report(a),
        "solve": lambda: hetero_la.solve(a, b, report=True)[1],
        "solve positive": lambda: hetero_la.solve(c, b, assume_a="pos", report=True)[1],
    }
    cells = []
    for name, call in calls.items():
        reports = [call() for _ in range(6)][1:]
        spent = statistics.median(r.estimate_seconds / (r.seconds or np.inf) for r in reports)
        cells.append(f"{name} {spent:.0%}")
    return ", ".join(cells)


def text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.2g}"


def table(n: int, xp: Any, who: str) -> None:
    """Print the rows of one order, each routine's below each other."""
    hetero_la.solve(*problem("svd", 300, xp)[:2], report=True)  # loads and compiles
    rows = [*ours(n, xp), *theirs(n, xp, who)]
    routines = list(dict.fromkeys(row.routine for row in rows))
    print(f"\n| n = {n} | | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
    for row in sorted(rows, key=lambda row: routines.index(row.routine)):
        cells = [text(column(row)) for column in COLUMNS.values()]
        print(f"| {row.routine} | {row.who} | {' | '.join(cells)} |")
    print(f"\nestimates take, of each run: {costs(n, xp)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("n", nargs="*", type=int, default=[1024, 2048])
    parser.add_argument("--gpu", action="store_true", help="CuPy arrays, beside cuSOLVER")
    args = parser.parse_args()
    if args.gpu:
        import cupy

        module, library = cupy, "cuSOLVER"
    else:
        module, library = np, "LAPACK"
    for order in args.n:
        table(order, module, library)
