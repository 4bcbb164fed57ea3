"""LU without pivoting: how much faster it is, and for which matrices it is worth anything.

Rates are of matrices whose diagonal dominates, factored in place by the library's function, which
looks at the growth without pivoting.  Partial pivoting finds each pivot of them in its place: what
it costs to swap rows shows only where these are shuffled beforehand.  So rows are, for all who
pivot, and factors are the same; "partial, nothing to swap" is beside it.  All factors are compared.

Growth is max |L| max |U| / max |A|: the backward error is about n eps times that.  Errors are
LAPACK's ratio |P A - L U| / (n |A| eps), which should be below 30.  The library refuses factors
without pivoting whose growth exceeds 1 / sqrt(eps), or that have a pivot of zero.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.cli.main import main
from hetero_la.planning.options import Pivoting
from hetero_la.studies.common.columns import SECONDS, WORD, number, rate
from hetero_la.studies.common.plots import bars, finish, line, panels
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
from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import LU
from hetero_la.studies.factorizations.runs import Timed, cores_alone, free_gpus, seconds_in_turns
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lu_ratio
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.arrays.transfer import array_module

PIVOTS: tuple[Pivoting, ...] = ("partial", "none")
UNMOVED = "partial, nothing to swap"
SCIPY, CUSOLVER_PARTIAL, CUSOLVER = "SciPy, partial", "cuSOLVER, partial", "cuSOLVER, none"
#: Error ratio above which factors are wrong, and largest relative difference of correct ones.
_RATIO, _LIMIT = 30, 1e-10


def growth(a: np.ndarray, packed: np.ndarray) -> float:
    """Return the growth of factors of a matrix.

    Examples
    --------
    >>> growth(np.array([[1.0, 2.0], [8.0, 4.0]]), np.array([[1.0, 2.0], [8.0, -12.0]]))
    12.0
    """
    lower = max(np.abs(np.tril(packed, -1)).max(), 1.0)
    return float(lower * np.abs(np.triu(packed)).max() / np.abs(a).max())


def _kinds(run: StudyRun) -> Iterator[Row]:
    """Yield growth and error of each kind of matrix, with and without pivoting."""
    n = run.sizes["order of kinds"]
    for kind in run.sizes["kinds"]:
        run.report(f"{kind}, n = {n}")
        a = generate(kind, n)
        for pivot in PIVOTS:
            row: Row = {"table": "kinds", "kind": kind, "n": n, "pivot": pivot}
            try:
                factors = hetero_la.lu_factor(a, pivot=pivot)
            except scipy.linalg.LinAlgError as error:
                yield row | {"refused": re.split("[:;]", str(error))[0]}
                continue
            yield row | {"growth": growth(a, factors.lu), "error": lu_ratio(a, *factors)}


class InPlace:
    """LU in place of a matrix whose diagonal dominates, and of the same one with its rows shuffled.

    Parameters
    ----------
    given : array
        The matrix, column-major.
    wait : callable
        Waits for its device.
    by_pivoting : callable
        Returns the seconds of another library with partial pivoting, which has the last word.
    client : Cluster, optional
        Where the library runs.
    """

    def __init__(
        self, given: Any, wait: Callable[[], Any], by_pivoting: Callable[[Any], float],
        client: hetero_la.Cluster | None = None,
    ) -> None:  # fmt: skip
        self.client = client
        order = np.random.default_rng(0).permutation(len(given))
        self.given, self.wait = given, wait
        self.shuffled = given[array_module(given).asarray(order)].copy(order="F")
        self.wanted = given.copy(order="F")
        by_pivoting(self.wanted)
        self._a = given.copy(order="F")

    def timed(self, who: str, factor: Callable[[Any], float], *, shuffled: bool) -> Timed:
        """Return what gives the seconds of a factorization; it raises if the factors are wrong."""

        def run() -> float:
            self._a[...] = self.shuffled if shuffled else self.given
            self.wait()
            seconds = factor(self._a)
            difference = abs(self._a - self.wanted).max() / abs(self.wanted).max()
            if not float(difference) < _LIMIT:
                raise AssertionError(f"factors by {who} are off by {float(difference):.1e}")
            return seconds

        return run

    def ours(self, who: str, pivot: Pivoting, *, shuffled: bool) -> Timed:
        """Return what gives the seconds of the library's function."""
        options: dict[str, Any] = {"overwrite_a": True, "check_finite": False, "pivot": pivot}

        def factor(a: Any) -> float:
            kept: list[Any] = []

            def complete() -> None:
                kept.append(hetero_la.lu_factor(a, client=self.client, **options).lu)
                self.wait()

            seconds = seconds_of(complete)
            a[...] = kept.pop()  # overwriting is allowed, and not promised
            return seconds

        return self.timed(who, factor, shuffled=shuffled)

    def both(self) -> dict[str, Timed]:
        """Return the library with and without pivoting."""
        return {
            "partial": self.ours("partial", "partial", shuffled=True),
            UNMOVED: self.ours(UNMOVED, "partial", shuffled=False),
            "none": self.ours("none", "none", shuffled=False),
        }


def _on_cpu(n: int, client: hetero_la.Cluster | None = None) -> dict[str, Timed]:
    """Return who factors a matrix of the host, in place."""
    factor = partial(scipy.linalg.lu_factor, overwrite_a=True, check_finite=False)

    def by_scipy(a: Any) -> float:
        return seconds_of(partial(factor, a))

    given = np.asfortranarray(generate("dominant", n))
    runs = InPlace(given, lambda: None, by_scipy, client)
    return {**runs.both(), SCIPY: runs.timed(SCIPY, by_scipy, shuffled=True)}


def _on_gpu(n: int) -> dict[str, Timed]:
    """Return who factors a matrix on the GPU, in place."""
    import cupy

    given = cupy.empty((n, n), order="F")
    LU.fill(given)
    diagonal = cupy.arange(n)
    given[diagonal, diagonal] += n
    runs = InPlace(given, cupy.cuda.Device().synchronize, peers.cusolver_getrf)
    return {
        **runs.both(),
        CUSOLVER_PARTIAL: runs.timed(CUSOLVER_PARTIAL, peers.cusolver_getrf, shuffled=True),
        CUSOLVER: runs.timed(CUSOLVER, peers.cusolver_getrf_nopivot, shuffled=False),
    }


def measure(run: StudyRun) -> Iterator[Row]:
    """Time both on the CPU and on a GPU, and judge kinds of matrices."""
    yield from _kinds(run)
    with cores_alone(run.gpus) as client:
        yield from _rates(run, "CPU", partial(_on_cpu, client=client))
    if run.has_gpus(1, "rates on a GPU"):
        yield from _rates(run, "GPU", _on_gpu)


def _rates(
    run: StudyRun, place: str, contenders: Callable[[int], dict[str, Timed]]
) -> Iterator[Row]:
    for n in run.sizes[place]:
        run.report(f"{place}, n = {n}")
        taken = seconds_in_turns(contenders(n), run.sizes["turns"])
        for who, seconds in taken.items():
            ratios = [a / b for a, b in zip(taken["partial"], seconds, strict=True)]
            found = spread(seconds)
            speed = LU.flops(n) / found["seconds"]
            yield {
                "table": "rates", "place": place, "n": n, "who": who, **found, "flop/s": speed,
                "partial over it": statistics.median(ratios),
            }  # fmt: skip
        free_gpus(int(place == "GPU"))


def find(rows: Rows) -> list[str]:
    """Say what pivoting costs, and which kinds of matrices need it."""
    places = sorted(values_of(rows, "place"), key=lambda place: place != "GPU")
    found = [_of_rates(rows, place) for place in places]
    without = rows_of(rows, "kinds", pivot="none")
    refused = [row["kind"] for row in without if "refused" in row]
    good = [row["kind"] for row in without if row.get("error", _RATIO) < _RATIO]
    bad, bad_anyway = (
        [row["kind"] for row in shown if row.get("error", 0) >= _RATIO]
        for shown in (without, rows_of(rows, "kinds", pivot="partial"))
    )
    anyway = f"all kinds but {', '.join(bad_anyway)}" if bad_anyway else "all kinds"
    return [
        *found,
        f"Without pivoting, errors stay small for {_listed(good)}, but not for {_listed(bad)}; "
        f"the factors of {_listed(refused)} are refused, for their growth or a zero pivot. With "
        f"partial pivoting, they stay small for {anyway}.",
    ]


def _listed(kinds: list[str]) -> str:
    return ", ".join(kinds) or "no kind"


def _of_rates(rows: Rows, place: str) -> str:
    """Say what pivoting costs, with rows to swap and without, and the rate that is left."""
    shown = rows_of(rows, "rates", place=place, who="none")
    text = ", ".join(f"{row['partial over it']:.2f} (n = {row['n']})" for row in shown)
    last = max(shown, key=lambda row: row["n"])
    swaps = "".join(
        f"; at n = {row['n']}, {row['partial over it']:.2f} over those with nothing to swap"
        for row in rows_of(rows, "rates", place=place, who=UNMOVED, n=last["n"])
    )
    return (
        f"On the {place}, times with partial pivoting over without: {text}{swaps}. Without, LU of "
        f"n = {last['n']} has {in_units(last['flop/s'], 'flop/s')}."
    )


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over the order, and the growth of each kind of matrix."""
    rates, kinds = panels(figure, 2)
    series = dict.fromkeys((row["place"], row["who"]) for row in rows_of(rows, "rates"))
    for i, (place, who) in enumerate(series):
        shown = rows_of(rows, "rates", place=place, who=who)
        drawn = [{**row, "Gflop/s": row["flop/s"] / 1e9} for row in shown]
        label = who if who in (SCIPY, CUSOLVER_PARTIAL, CUSOLVER) else f"hetero_la, {who}"
        line(rates, drawn, "n", "Gflop/s", f"{label}, {place}", i)
    finish(rates, "LU of dominant matrices, in place", "order n", "Gflop/s")
    shown = [row for row in rows_of(rows, "kinds") if row.get("growth")]
    names = [f"{row['kind']}, {row['pivot']}" for row in shown]
    colours = [PIVOTS.index(row["pivot"]) for row in shown]
    bars(kinds, names, [row["growth"] for row in shown], colours, logarithmic=True)
    finish(kinds, f"growth, n = {shown[0]['n']}", "max |L| max |U| / max |A|", "", logarithmic="")
    kinds.set_xscale("log")


STUDY = Study(
    name="unpivoted",
    question="What does pivoting cost, and which matrices can do without?",
    source="Ino et al., LU on the programmable GPU",
    original="LU was without pivoting, for matrices whose diagonal dominates",
    tables=(
        StudyTable(
            "rates", "matrices whose diagonal dominates, in place",
            {"place": WORD, "n": number(), "who": WORD, **SECONDS, "flop/s": rate("flop/s"),
             "partial over it": number()},
        ),
        StudyTable(
            "kinds", "growth and error by kind of matrix",
            {"kind": WORD, "n": number(), "pivot": WORD, "growth": number(), "error": number(),
             "refused": WORD},
        ),
    ),
    sizes={
        "kinds": [
            "dominant", "kms", "moler", "spd", "orthog", "rands", "randn", "svd", "gfpp",
            "wilkinson", "shift",
        ],
        "order of kinds": 512, "CPU": [512, 1024, 2048], "GPU": [1024, 2048, 4096, 8192, 16384],
        "turns": 5,
    },
    quick={
        "kinds": ["dominant", "rands", "shift"], "order of kinds": 64, "CPU": [128, 256],
        "GPU": [1024], "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
