"""From which order on a GPU is faster: with the matrix on it, from host to host, several of them.

With NumPy arrays in and out take turns: SciPy; the library, which chooses by itself where to
compute; the library on one GPU, and on all there are; CuPy with copies.  With arrays on the GPU the
library and CuPy do.  All keep their arguments, look for no NaNs, and take matrices as general, or
for Cholesky the lower triangle; results up to some order are verified by the residuals of
solutions.

Where a contender is faster than another at some order and at all larger ones, the crossover lies
between that order and the one below it, where the straight lines between logarithms of the times
meet.  SciPy is left out where it takes far longer than the fastest; from there on its time is taken
to grow as the cube of the order.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import scipy.linalg

import hetero_la
from hetero_la.bench.contenders import (
    FUNCTIONS,
    Call,
    complete_call,
    cupy_calls,
    random_problem,
)
from hetero_la.bench.measuring import Contest
from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number
from hetero_la.studies.common.plots import finish, line, panels, shared_legend
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import spread
from hetero_la.testing.residuals import solve_ratio
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.transfer import to_host

SCIPY, ONE_GPU = "SciPy", "hetero_la, 1 GPU"
_HOST, _DEVICE = "from host to host", "on the GPU"
#: Residuals in ulps for each row, that rounding does not explain.
_FAR = 10


class _With:
    """A library's functions, without checks for NaNs, and with more options given to each."""

    def __init__(self, library: Any, **options: Any) -> None:
        self._library, self._options = library, {"check_finite": False, **options}

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._library, name), **self._options)


def crossover(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the order from which on the one is faster than the other; None if it never is.

    Examples
    --------
    >>> round(crossover({64: 2.0, 256: 2.0}, {64: 1.0, 256: 4.0}))
    128
    >>> crossover({64: 1.0}, {64: 2.0}), crossover({64: 2.0}, {64: 1.0})
    (64, None)
    """
    orders = sorted(one.keys() & other.keys())
    slower = [n for n in orders if one[n] >= other[n]]
    if not slower:
        return min(orders, default=None)
    before = max(slower)
    if before == orders[-1]:
        return None
    after = orders[orders.index(before) + 1]
    first, second = (math.log(one[n] / other[n]) for n in (before, after))
    part = first / (first - second)
    return before * (after / before) ** part


def _on_host(
    function: str, clusters: Mapping[int, hetero_la.Cluster], n: int
) -> dict[str, Call]:  # fmt: skip
    """Return the contenders with NumPy arrays in and out; `clusters` are by number of GPUs."""
    m, b = random_problem(function, n)
    libraries = {SCIPY: _With(scipy.linalg), f"hetero_la, {_HOST}": _With(hetero_la)}
    for gpus, cluster in clusters.items():
        libraries[f"hetero_la, {counted(gpus, 'GPU')}"] = _With(hetero_la, client=cluster)
    call = FUNCTIONS[function]
    found: dict[str, Call] = {
        who: partial(call, library, m, b) for who, library in libraries.items()
    }  # fmt: skip
    if clusters:
        import cupy

        theirs = _by_cupy(function)
        found[f"CuPy, {_HOST}"] = lambda: [
            to_host(part) for part in _parts(theirs(cupy.asarray(m), cupy.asarray(b)))
        ]
    return found


def _on_gpu(function: str, n: int) -> dict[str, Call]:
    """Return the contenders with arrays on the GPU in and out."""
    import cupy

    m, b = (cupy.asarray(given, order="F") for given in random_problem(function, n))
    return {
        f"CuPy, {_DEVICE}": complete_call(partial(_by_cupy(function), m, b)),
        f"hetero_la, {_DEVICE}": complete_call(
            partial(FUNCTIONS[function], _With(hetero_la), m, b)
        ),
    }


def _by_cupy(function: str) -> Any:
    """Return CuPy's function, which looks for no NaNs."""
    if function != "lu_factor":
        return cupy_calls()[function]
    import cupyx.scipy.linalg

    return lambda m, b: cupyx.scipy.linalg.lu_factor(m, check_finite=False)


def _parts(found: Any) -> Sequence[Any]:
    """Return the arrays of a result."""
    return found if isinstance(found, (tuple, list)) else (found,)


def verify(who: str, function: str, n: int, found: Any) -> None:
    """Raise AssertionError unless a result on the random problem gives a solution with it."""
    m, b = random_problem(function, n)
    first, *more = (to_host(part) for part in _parts(found))
    if function == "lu_factor":
        x = scipy.linalg.lu_solve((first, *more), b)
    elif function == "cho_factor":
        x = scipy.linalg.cho_solve((first, True), b)
    elif function == "qr":
        x = scipy.linalg.solve_triangular(*more, first.T @ b)
    else:
        x = first
    ratio = solve_ratio(m, x, b)
    assert ratio <= _FAR * n, f"{function}, {who}, n = {n}: residual of {ratio:.1e} ulps"


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure all contenders over the order, and read off where one overtakes another."""
    run.has_gpus(1, "all contenders on a GPU")
    several = run.has_gpus(2, "the library on several GPUs")
    orders = run.sizes["orders"]
    with contextlib.ExitStack() as stack:
        clusters = {
            gpus: stack.enter_context(hetero_la.Cluster(gpus=gpus, cpus=0))
            for gpus in sorted({1, run.gpus} if run.gpus else ())
        }
        for function in run.sizes["functions"]:
            beyond = run.sizes["beyond"] if several else []
            on_host = partial(_on_host, function, clusters)
            rows = list(_times(run, function, _HOST, on_host, [*orders, *beyond]))
            if clusters:
                rows += _times(run, function, _DEVICE, partial(_on_gpu, function), orders)
            yield from rows
            yield from _crossovers(function, rows)
            yield from _several(function, rows)


def _times(
    run: StudyRun, function: str, where: str, contenders: Any, orders: Sequence[int]
) -> Iterator[Row]:
    """Yield the times of contenders, which take turns; who fails is left out."""

    def verified(n: int) -> Mapping[str, Call]:
        calls: Mapping[str, Call] = contenders(n)
        if n <= run.sizes["verified"]:
            for who, call in calls.items():
                verify(who, function, n, call())
        return calls

    # Threads of a BLAS that look for more work would slow those that copy to a GPU.
    pause = run.sizes["pause"] if run.gpus and where == _HOST else 0.0
    one = Contest(
        where, function, verified, lambda said: run.leave_out(f"{function}, {said}"), pause
    )
    for n in orders:
        run.report(f"{function}, {where}, n = {n}")
        for row in one.measure(n, run.sizes["series"]):
            yield {
                "table": "times", "function": function, "n": n, "who": row.who,
                **spread(row.seconds),
            }  # fmt: skip


def _by_contender(rows: Rows) -> dict[str, dict[int, float]]:
    """Return the seconds of each contender, by order."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row["who"], {})[row["n"]] = row["seconds"]
    return times


def _crossovers(function: str, rows: Rows) -> Iterator[Row]:
    """Yield from which order on each contender is faster than SciPy."""
    times = _by_contender(rows)
    for who, seconds in times.items():
        if who != SCIPY:
            yield {
                "table": "crossover", "function": function, "who": who,
                "from n": crossover(seconds, _extended(times[SCIPY], max(seconds))),
            }  # fmt: skip


def _several(function: str, rows: Rows) -> Iterator[Row]:
    """Yield from which order on several GPUs are faster than one, if there are."""
    times = _by_contender(rows)
    for who, seconds in times.items():
        if who.endswith(" GPUs") and ONE_GPU in times:
            largest = max(seconds.keys() & times[ONE_GPU].keys())
            yield {
                "table": "several", "function": function, "who": who,
                "from n": crossover(seconds, times[ONE_GPU]), "largest n": largest,
                "one over several": times[ONE_GPU][largest] / seconds[largest],
            }  # fmt: skip


def _extended(seconds: Mapping[int, float], most: int) -> dict[int, float]:
    """Return times with those of orders at which a contender was too slow to be measured.

    They grow as the cube of the order from the last one on.
    """
    last = max(seconds)
    beyond = {2 * last * 2**k for k in range(int(math.log2(max(most / last, 1))))}
    return {**seconds, **{n: seconds[last] * (n / last) ** 3 for n in beyond}}


def find(rows: Rows) -> list[str]:
    """Say from which order on each contender is faster than SciPy, and several GPUs than one."""
    found = []
    for function in values_of(rows, "function"):
        since = rows_of(rows, "crossover", function=function)
        times = {row["who"]: rows_of(rows, "times", **_this(row)) for row in since}
        text = "; ".join(f"{_from_order(row, times[row['who']])} ({row['who']})" for row in since)
        found.append(f"{function} is faster than SciPy's {text}.")
    for row in rows_of(rows, "several"):
        found.append(
            f"{row['function']} from host to host by {row['who']} is faster than by one "
            f"{_from_order(row, rows_of(rows, 'times', **_this(row)))}; at n = {row['largest n']} "
            f"one GPU takes {row['one over several']:.2f} of their time."
        )
    return found


def _this(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in ("function", "who")}


def _from_order(row: Row, times: Rows) -> str:
    """Return in words from which of the measured orders on something is so.

    Examples
    --------
    >>> times = [{"n": 64}, {"n": 128}]
    >>> _from_order({"from n": None}, times), _from_order({"from n": 90.5}, times)
    ('nowhere up to n = 128', 'from n = 90 on')
    """
    since, orders = row["from n"], [time["n"] for time in times]
    if since is None:
        return f"nowhere up to n = {max(orders)}"
    return f"from n = {since:.0f} on" + ", the least measured" * (since == min(orders))


def draw(figure: Any, rows: Rows) -> None:
    """Draw times over the order, and the crossovers as dotted lines."""
    functions, contenders = values_of(rows, "function"), values_of(rows, "who")
    for axes, function in zip(panels(figure, len(functions)), functions, strict=True):
        for i, who in enumerate(contenders):
            shown = rows_of(rows, "times", function=function, who=who)
            if shown:
                line(axes, shown, "n", "seconds", who, i)
        for row in rows_of(rows, "crossover", function=function):
            if row["from n"] is not None:
                axes.axvline(row["from n"], color="0.6", lw=0.8, ls=":")
        finish(axes, function, "order n", "seconds")
    shared_legend(figure, 3)


STUDY = Study(
    name="crossover",
    question="From which order on is a GPU faster than the CPU, and several than one?",
    source="Volkov and Demmel 2008, Figures 7 and 8, Table 4",
    original="the GPU wins from n = 1000 on, in Cholesky from 600 on",
    tables=(
        StudyTable(
            "crossover", "faster than SciPy",
            {"function": WORD, "who": WORD, "from n": number(4)},
        ),
        StudyTable(
            "several", "several GPUs faster than one, from host to host",
            {"function": WORD, "who": WORD, "from n": number(4), "largest n": number(),
             "one over several": number()},
        ),
        StudyTable(
            "times", "contenders in turns",
            {"function": WORD, "n": number(), "who": WORD, **SECONDS},
        ),
    ),
    sizes={
        "functions": ["lu_factor", "cho_factor", "qr", "solve"],
        "orders": [2**k for k in range(7, 14)], "beyond": [2**14], "verified": 2048,
        "series": 3, "pause": 0.1,
    },
    quick={
        "functions": ["lu_factor", "cho_factor"], "orders": [32, 64, 128], "beyond": [],
        "verified": 128, "series": 1, "pause": 0.0,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
