"""From which order on a GPU is faster: with the matrix on it, from host to host, several of them.

The contenders are those of ``hetero-la bench``, which take turns: SciPy; the library with NumPy
arrays, which chooses by itself, and CuPy with copies there and back; both with arrays that are on
the GPU; and the library with NumPy arrays on all GPUs there are.  Where a contender is faster than
SciPy at some order and at all larger ones, the crossover lies between that order and the one below
it, where the straight lines between logarithms of the times meet.  SciPy is left out where it takes
far longer than the fastest; from there on its time is taken to grow as the cube of the order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.bench.contenders import FUNCTIONS, Call, random_problem
from hetero_la.bench.measuring import Contest, Measured, contest
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

SCIPY = "SciPy"
_PLACES = {"host": "from host to host", "device": "on the GPU"}


def name_of(row: Measured) -> str:
    """Return a contender's name, with where its arrays are.

    Examples
    --------
    >>> name_of(Measured("device", "qr", 100, "CuPy", (1.0,)))
    'CuPy, on the GPU'
    """
    name = row.who.removesuffix(" with copies")
    return name if name == SCIPY else f"{name}, {_PLACES.get(row.where, row.where)}"


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


def _contests(run: StudyRun, function: str) -> Iterator[Contest]:
    """Yield what to measure of a function."""
    gpus = bool(run.gpus)
    yield contest("host", function, gpus)
    if gpus:
        yield contest("device", function, gpus)


def _on_all_gpus(cluster: hetero_la.Cluster, function: str, n: int) -> Mapping[str, Call]:
    """Return the library's call with NumPy arrays, on all GPUs of a cluster."""
    m, b = random_problem(function, n)
    with_client = _WithClient(cluster)
    return {"hetero_la": partial(FUNCTIONS[function], with_client, m, b)}


class _WithClient:
    """The library's functions, with a client given to each."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(hetero_la, name), client=self._client)


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure all contenders over the order, and read off where one overtakes another."""
    run.has_gpus(1, "all contenders on a GPU")
    several = run.has_gpus(2, "the library on several GPUs")
    for function in run.sizes["functions"]:
        rows = list(_times(run, function, _contests(run, function)))
        if several:
            with hetero_la.Cluster(gpus=run.gpus, cpus=0) as cluster:
                on_all = Contest(
                    f"{run.gpus} GPUs", function, partial(_on_all_gpus, cluster, function)
                )
                rows += _times(run, function, [on_all])
        yield from rows
        yield from _crossovers(function, rows)


def _times(run: StudyRun, function: str, contests: Any) -> Iterator[Row]:
    for one in contests:
        for n in run.sizes["orders"]:
            run.report(f"{function}, {one.where}, n = {n}")
            for row in one.measure(n, run.sizes["series"]):
                yield {
                    "table": "times", "function": function, "n": n, "who": name_of(row),
                    **spread(row.seconds),
                }  # fmt: skip


def _crossovers(function: str, rows: Rows) -> Iterator[Row]:
    """Yield from which order on each contender is faster than SciPy."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row["who"], {})[row["n"]] = row["seconds"]
    for who, seconds in times.items():
        if who != SCIPY:
            yield {
                "table": "crossover", "function": function, "who": who,
                "from n": crossover(seconds, _extended(times[SCIPY], max(seconds))),
            }  # fmt: skip


def _extended(seconds: Mapping[int, float], most: int) -> dict[int, float]:
    """Return times with those of orders at which a contender was too slow to be measured.

    They grow as the cube of the order from the last one on.
    """
    last = max(seconds)
    beyond = {2 * last * 2**k for k in range(int(math.log2(max(most / last, 1))))}
    return {**seconds, **{n: seconds[last] * (n / last) ** 3 for n in beyond}}


def find(rows: Rows) -> list[str]:
    """Say from which order on each contender is faster than SciPy."""
    found = []
    for row in sorted(rows_of(rows, "crossover"), key=lambda row: "GPU" not in row["who"]):
        since = row["from n"]
        most = max(r["n"] for r in rows_of(rows, "times", function=row["function"], who=row["who"]))
        where = f"up to n = {most} nowhere" if since is None else f"from n = {since:.0f} on"
        found.append(f"{row['function']} by {row['who']} is faster than SciPy {where}.")
    return found


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
            "times", "contenders in turns",
            {"function": WORD, "n": number(), "who": WORD, **SECONDS},
        ),
    ),
    sizes={
        "functions": ["lu_factor", "cho_factor", "qr", "solve"],
        "orders": [2**k for k in range(6, 14)], "series": 5,
    },
    quick={"functions": ["lu_factor", "cho_factor"], "orders": [32, 64, 128], "series": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
