"""Products of vectors and of matrices with vectors, beside a model of launch and bandwidth.

An axpy of n elements moves 3 n of them, a gemv of order n moves n^2 + 3 n; their operations cost
nothing beside that.  So time should be t0 + bytes / beta, or, where the next call is enqueued while
one computes, the larger of the two: the form that fits better is kept.  Half of the rate is reached
at n1/2 elements, as R. Hockney called it.

Operands of a call that is repeated stay in a cache if they fit.  So calls go through copies of them
in turn, which together are several times as large as the last cache; beside that, the same operands
are used again and again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg.blas

from hetero_la.cli.main import main
from hetero_la.scheduler.probe.copies import fit_link
from hetero_la.studies.common.caches import copies_beyond, in_rotation, last_caches
from hetero_la.studies.common.columns import BYTES, SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.cuda import bandwidth_of_pins
from hetero_la.studies.common.plots import finish, line, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import Call, gpu_clock, host_clock, samples, spread
from hetero_la.tiles.arrays.counted import in_seconds, in_units

OPERATIONS = ("axpy", "gemv")
DTYPES = ("float32", "float64")
#: Whose operands are used: those of copies in turn, or the same in every call.
IN_TURN, SAME = "copies in turn", "the same"
#: Forms of the model: start and transfer one after the other, or one hidden behind the other.
SUM, LARGER = "t0 + bytes / beta", "max(t0, bytes / beta)"
_TOLERANCE = {"float32": 1e-4, "float64": 1e-12}


def moved_bytes(operation: str, n: int, dtype: str) -> int:
    """Return the bytes that an operation reads and writes at least.

    Examples
    --------
    >>> moved_bytes("axpy", 100, "float32"), moved_bytes("gemv", 100, "float64")
    (1200, 82400)
    """
    elements = 3 * n if operation == "axpy" else n * n + 3 * n
    return elements * np.dtype(dtype).itemsize


@dataclass(frozen=True)
class Model:
    """Seconds of an operation by the bytes that it moves."""

    form: str
    t0: float
    beta: float

    def seconds(self, nbytes: float) -> float:
        """Return the time of an operation that moves so many bytes."""
        parts = self.t0, nbytes / self.beta
        return sum(parts) if self.form == SUM else max(parts)

    def half_order(self, operation: str, dtype: str) -> int:
        """Return the n at which half of the rate is reached."""
        elements = self.t0 * self.beta / np.dtype(dtype).itemsize
        if self.form == LARGER:
            elements /= 2
        return round(elements / 3 if operation == "axpy" else (elements + 2.25) ** 0.5 - 1.5)


def fit(nbytes: Sequence[float], seconds: Sequence[float]) -> Model:
    """Return the form of the model, and its parameters, with the least of the largest errors.

    Examples
    --------
    >>> model = fit([1e3, 1e4, 1e6, 1e7], [2.0, 2.0, 10.0, 100.0])
    >>> f"{model.form}: {model.t0:.3g}, {model.beta:.3g}"
    'max(t0, bytes / beta): 2, 1e+05'
    """
    link = fit_link(list(nbytes), list(seconds))
    rates = [moved / taken for moved, taken in zip(nbytes, seconds, strict=True)]
    models = [Model(SUM, link.latency, link.bandwidth)]
    for few in range(1, len(nbytes)):  # so many points are bound by the start
        t0, beta = statistics.geometric_mean(seconds[:few]), statistics.geometric_mean(rates[few:])
        models.append(Model(LARGER, t0, beta))
    return min(models, key=lambda model: _worst(model, nbytes, seconds))


def _worst(model: Model, nbytes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the largest relative error of a model."""
    return max(
        abs(model.seconds(moved) / taken - 1) for moved, taken in zip(nbytes, seconds, strict=True)
    )


def _operands(operation: str, n: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    shapes: list[Any] = [n, n] if operation == "axpy" else [(n, n), n, n]
    return [np.asfortranarray(rng.standard_normal(shape), dtype) for shape in shapes]


def _copies(array: np.ndarray, count: int, xp: Any) -> Iterator[Any]:
    """Yield copies of an array, which lie side by side in the memory of NumPy or CuPy."""
    all_of_them = xp.empty((*array.shape, count), array.dtype, order="F")
    all_of_them[...] = xp.asarray(array)[..., None]
    return (all_of_them[..., i] for i in range(count))


def _on_cpu(operation: str, dtype: str) -> Callable[..., Any]:
    letter = "s" if dtype == "float32" else "d"
    routine = getattr(scipy.linalg.blas, letter + operation)
    if operation == "axpy":
        return lambda x, y: routine(x, y, a=0.5)  # in y
    return lambda a, x, y: routine(0.5, a, x, beta=0.5, y=y, overwrite_y=1)


def _on_gpu(operation: str, _: str) -> Callable[..., Any]:
    from cupy import cublas

    if operation == "axpy":
        return lambda x, y: cublas.axpy(0.5, x, y) or y
    return lambda a, x, y: cublas.gemv("N", 0.5, a, x, 0.5, y) or y


def _calls(place: str, operation: str, operands: list[np.ndarray], count: int) -> list[Call]:
    """Return calls of an operation, each with its own copy of the operands."""
    xp: Any = np
    if place == "GPU":
        import cupy

        xp = cupy
    routine = (_on_cpu if place == "CPU" else _on_gpu)(operation, operands[0].dtype.name)
    copies = zip(*(_copies(array, count, xp) for array in operands), strict=True)
    return [partial(routine, *copy) for copy in copies]


def _check(operation: str, call: Call, operands: list[np.ndarray]) -> None:
    """Raise unless the first call gives what NumPy does."""
    *factors, y = [array.astype(np.float64) for array in operands]
    expected = 0.5 * factors[0] + y if operation == "axpy" else 0.5 * (factors[0] @ factors[1] + y)
    result = call()
    found = result.get() if hasattr(result, "get") else result
    limit = _TOLERANCE[operands[0].dtype.name] * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


def measure(run: StudyRun) -> Iterator[Row]:
    """Time each operation over its orders, on each kind of device, and fit the model."""
    places = ["CPU", "GPU"] if run.has_gpus(1, "the same on a GPU") else ["CPU"]
    for place, operation, dtype in product(places, OPERATIONS, DTYPES):
        for used in (IN_TURN, SAME):
            rows = [_timed(run, place, operation, dtype, used, n) for n in run.sizes[operation]]
            pins = bandwidth_of_pins() if (place, used) == ("GPU", IN_TURN) else None
            yield from _with_model(rows, pins)


def _timed(run: StudyRun, place: str, operation: str, dtype: str, used: str, n: int) -> Row:
    """Return the row of an operation of this order, after a check of the first and last copy."""
    run.report(f"{operation}, {place}, {dtype}, n = {n}, {used}")
    operands = _operands(operation, n, dtype)
    nbytes = sum(array.nbytes for array in operands)
    times = run.sizes["caches"] if used == IN_TURN else 0
    count = copies_beyond(last_caches(place), times, nbytes)
    calls = _calls(place, operation, operands, count)
    for call in (calls[0], *calls[1:][-1:]):
        _check(operation, call, operands)
    found = spread(samples(in_rotation(calls), gpu_clock if place == "GPU" else host_clock))
    moved = moved_bytes(operation, n, dtype)
    return {
        "table": "times", "place": place, "operation": operation, "type": dtype, "operands": used,
        "n": n, "copies": count, "together": count * nbytes, "bytes": moved, **found,
        "bytes/s": moved / found["seconds"],
    }  # fmt: skip


def _with_model(rows: list[Row], pins: float | None) -> Iterator[Row]:
    """Yield rows with the model's error in each, and the model's own row.

    Rates are beside that of the memory's pins, if it is given.
    """
    nbytes, seconds = ([row[key] for row in rows] for key in ("bytes", "seconds"))
    model = fit(nbytes, seconds)
    for row in rows:
        row["model"] = model.seconds(row["bytes"])
        row["error"] = row["model"] / row["seconds"] - 1
        yield row | {"of pins": pins and row["bytes/s"] / pins}
    first = rows[0]
    yield {
        "table": "model", **{key: first[key] for key in ("place", "operation", "type", "operands")},
        "form": model.form, "t0": model.t0, "beta": model.beta,
        "of pins": pins and model.beta / pins,
        "n1/2": model.half_order(first["operation"], first["type"]),
        "worst error": _worst(model, nbytes, seconds),
    }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say what t0, beta and n1/2 are where most is to be gained."""
    found = []
    models = rows_of(rows, "model", operands=IN_TURN)
    for row in sorted(models, key=lambda row: row["place"] != "GPU"):
        of_pins = f", beta {percent(row['of pins'])} of the pins" if row["of pins"] else ""
        case = {key: row[key] for key in ("place", "operation", "type")}
        (again,) = rows_of(rows, "model", operands=SAME, **case)
        found.append(
            f"{row['operation']} in {row['type']} on the {row['place']} takes {_said(row)}"
            f"{of_pins}, up to {percent(row['worst error'])} off: half of the rate is reached at "
            f"n = {row['n1/2']}.  With the same operands again it is {_said(again)}."
        )
    return found


def _said(row: Row) -> str:
    """Return the model of a row with its figures."""
    start, transfer = in_seconds(row["t0"]), f"bytes / ({in_units(row['beta'], 'B/s')})"
    joined = f"{start} + {transfer}"
    return joined if row["form"] == SUM else f"the larger of {start} and {transfer}"


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over n, the model's as dashed lines, and dotted those of the same operands."""
    times = rows_of(rows, "times")
    for axes, operation in zip(panels(figure, len(OPERATIONS)), OPERATIONS, strict=True):
        series = [(p, d) for p in values_of(times, "place") for d in DTYPES]
        for number_, (place, dtype) in enumerate(series):
            drawn = [
                {**row, "GB/s": row["bytes/s"] / 1e9, "model": row["bytes"] / row["model"] / 1e9}
                for row in rows_of(times, "times", operation=operation, place=place, type=dtype)
            ]
            in_turn, same = (rows_of(drawn, "times", operands=used) for used in (IN_TURN, SAME))
            line(axes, in_turn, "n", "GB/s", f"{place}, {dtype}", number_)
            line(axes, in_turn, "n", "model", "", number_, marker="", ls="--", lw=0.9)
            line(axes, same, "n", "GB/s", "", number_, marker="", ls=":", lw=0.9)
        finish(axes, f"{operation}; dashed: the model; dotted: the same operands", "n", "GB/s")


STUDY = Study(
    name="blas12",
    question="From which size on does an operation on vectors use the bandwidth of the memory?",
    source="Volkov and Demmel 2008, 3.9",
    original="n1/2 of saxpy is 42000 elements",
    tables=(
        StudyTable(
            "model", "the form of time with the least of the largest relative errors",
            {"operation": WORD, "place": WORD, "type": WORD, "operands": WORD, "form": WORD,
             "t0": in_seconds,
             "beta": rate("B/s"), "of pins": percent, "n1/2": number(), "worst error": percent},
        ),
        StudyTable(
            "times", "one call after the other, and the bytes of all copies of operands together",
            {"operation": WORD, "place": WORD, "type": WORD, "operands": WORD, "n": number(),
             "copies": number(), "together": BYTES, **SECONDS, "bytes/s": rate("B/s"),
             "of pins": percent, "error": percent},
        ),
    ),
    sizes={
        "axpy": [4**k for k in range(4, 14)],
        "gemv": [2**k for k in range(5, 14)], "caches": 3,
    },
    quick={"axpy": [2**8, 2**12, 2**16], "gemv": [32, 128, 512], "caches": 0.01},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
