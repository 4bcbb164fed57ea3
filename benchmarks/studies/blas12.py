"""Products of vectors and of matrices with vectors, beside a model of launch and bandwidth.

An axpy of n elements moves 3 n of them, a gemv of order n moves n^2 + 3 n; their operations cost
nothing beside that.  So time should be t0 + bytes / beta, and half of the rate is reached where
bytes = t0 beta: at n1/2 elements, as R. Hockney called it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg.blas

from hetero_la.cli.main import main
from hetero_la.scheduler.probe.copies import fit_link
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
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


def _half_order(operation: str, nbytes: float, dtype: str) -> int:
    """Return the n at which an operation moves so many bytes."""
    elements = nbytes / np.dtype(dtype).itemsize
    return round(elements / 3 if operation == "axpy" else (elements + 2.25) ** 0.5 - 1.5)


def _operands(operation: str, n: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    shapes: list[Any] = [n, n] if operation == "axpy" else [(n, n), n, n]
    return [np.asfortranarray(rng.standard_normal(shape), dtype) for shape in shapes]


def _on_cpu(operation: str, operands: list[np.ndarray]) -> Call:
    letter = "s" if operands[0].dtype == np.float32 else "d"
    routine = getattr(scipy.linalg.blas, letter + operation)
    if operation == "axpy":
        x, y = operands
        return lambda: routine(x, y, a=0.5)  # in y
    a, x, y = operands
    return lambda: routine(0.5, a, x, beta=0.5, y=y, overwrite_y=1)


def _on_gpu(operation: str, operands: list[np.ndarray]) -> Call:
    import cupy
    from cupy import cublas

    on_device = [cupy.asarray(array, order="F") for array in operands]
    if operation == "axpy":
        x, y = on_device
        return lambda: cublas.axpy(0.5, x, y) or y
    a, x, y = on_device
    return lambda: cublas.gemv("N", 0.5, a, x, 0.5, y) or y


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
    places: dict[str, Callable[[str, list[np.ndarray]], Call]] = {"CPU": _on_cpu}
    if run.has_gpus(1, "the same on a GPU"):
        places["GPU"] = _on_gpu
    for place, prepare in places.items():
        clock = gpu_clock if place == "GPU" else host_clock
        for operation in OPERATIONS:
            for dtype in DTYPES:
                rows = []
                for n in run.sizes[operation]:
                    run.report(f"{operation}, {place}, {dtype}, n = {n}")
                    operands = _operands(operation, n, dtype)
                    call = prepare(operation, [array.copy(order="F") for array in operands])
                    _check(operation, call, operands)
                    moved = moved_bytes(operation, n, dtype)
                    found = spread(samples(call, clock))
                    rows.append(
                        {"table": "times", "place": place, "operation": operation, "type": dtype,
                         "n": n, "bytes": moved, **found, "bytes/s": moved / found["seconds"]}
                    )  # fmt: skip
                yield from _with_model(rows)


def _with_model(rows: list[Row]) -> Iterator[Row]:
    """Yield rows with the model's error in each, and the model's own row."""
    link = fit_link([row["bytes"] for row in rows], [row["seconds"] for row in rows])
    for row in rows:
        row["model"] = link.seconds(row["bytes"])
        row["error"] = row["model"] / row["seconds"] - 1
        yield row
    first = rows[0]
    half = _half_order(first["operation"], link.latency * link.bandwidth, first["type"])
    yield {
        "table": "model", "place": first["place"], "operation": first["operation"],
        "type": first["type"], "t0": link.latency, "beta": link.bandwidth, "n1/2": half,
        "worst error": max(abs(row["error"]) for row in rows),
    }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say what t0, beta and n1/2 are where most is to be gained."""
    return [
        f"{row['operation']} in {row['type']} on the {row['place']} takes "
        f"{in_seconds(row['t0'])} + bytes / {in_units(row['beta'], 'B/s')}, up to "
        f"{percent(row['worst error'])} off: half of the rate is reached at n = {row['n1/2']}."
        for row in sorted(rows_of(rows, "model"), key=lambda row: row["place"] != "GPU")
    ]


def draw(figure: Any, rows: Rows) -> None:
    """Draw the rates over n, and the model's as dashed lines."""
    times = rows_of(rows, "times")
    for axes, operation in zip(panels(figure, len(OPERATIONS)), OPERATIONS, strict=True):
        series = [(p, d) for p in values_of(times, "place") for d in DTYPES]
        for number_, (place, dtype) in enumerate(series):
            shown = rows_of(rows, "times", operation=operation, place=place, type=dtype)
            drawn = [
                {**row, "GB/s": row["bytes/s"] / 1e9, "model": row["bytes"] / row["model"] / 1e9}
                for row in shown
            ]
            line(axes, drawn, "n", "GB/s", f"{place}, {dtype}", number_)
            line(axes, drawn, "n", "model", "", number_, marker="", ls="--", lw=0.9)
        finish(axes, f"{operation}; dashed: t0 + bytes / beta", "n", "GB/s")


STUDY = Study(
    name="blas12",
    question="From which size on does an operation on vectors use the bandwidth of the memory?",
    source="Volkov and Demmel 2008, 3.9",
    original="n1/2 of saxpy is 42000 elements",
    tables=(
        StudyTable(
            "model", "time = t0 + bytes / beta, fitted with least relative errors",
            {"operation": WORD, "place": WORD, "type": WORD, "t0": in_seconds,
             "beta": rate("B/s"), "n1/2": number(), "worst error": percent},
        ),
        StudyTable(
            "times", "one call after the other",
            {"operation": WORD, "place": WORD, "type": WORD, "n": number(), **SECONDS,
             "bytes/s": rate("B/s"), "error": percent},
        ),
    ),
    sizes={
        "axpy": [4**k for k in range(4, 14)],
        "gemv": [2**k for k in range(5, 14)],
    },
    quick={"axpy": [2**8, 2**12, 2**16], "gemv": [32, 128, 512]},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
