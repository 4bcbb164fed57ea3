"""Rounding: the largest errors of single operations, and of L and U step by step.

An ulp is the distance from a result to the next number of its type; what is correctly rounded is
within half of one.  References are decimals of 60 digits for operations, and for factors pairs of
float64 with some 32 digits, whose own errors are far less than an ulp of either type.
"""

from __future__ import annotations

import decimal
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.cli.main import main
from hetero_la.studies.common.columns import WORD, number
from hetero_la.studies.common.cuda import cuda_source, kernel, launch
from hetero_la.studies.common.double_double import DoubleDouble
from hetero_la.studies.common.plots import finish, line, panels, style
from hetero_la.studies.common.reference import lu_by_columns
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.factorizations.runs import cores_alone
from hetero_la.testing.matrices import generate

#: Operations in the order of the source, and what they are exactly.
OPERATIONS: dict[str, Callable[[Decimal, Decimal, Decimal], Decimal]] = {
    "a + b": lambda a, b, c: a + b,
    "a - b": lambda a, b, c: a - b,
    "a b": lambda a, b, c: a * b,
    "a / b": lambda a, b, c: a / b,
    "a b + c, fused": lambda a, b, c: a * b + c,
    "sqrt(a)": lambda a, b, c: a.sqrt(),
    "1 / a": lambda a, b, c: 1 / a,
}
#: NumPy's; it has no fused operation.
_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": np.add, "a - b": np.subtract, "a b": np.multiply, "a / b": np.divide,
    "sqrt(a)": lambda a, b: np.sqrt(a), "1 / a": lambda a, b: 1 / a,
}  # fmt: skip
EXACT, FAST, TF32 = "IEEE", "fast math", "TF32"
#: Mode of the source, type, and the operations to which it matters.
MODES = {
    (EXACT, "float32"): (0, tuple(OPERATIONS)),
    (EXACT, "float64"): (0, tuple(OPERATIONS)),
    (FAST, "float32"): (1, ("a / b", "sqrt(a)", "1 / a")),
    (TF32, "float32"): (2, ("a b",)),
}
_C_TYPES = {"float32": "float", "float64": "double"}


def _source(mode: int, dtype: str) -> Any:
    return cuda_source("operations", f"REAL={_C_TYPES[dtype]}", f"MODE={mode}")


SOURCES = tuple(_source(mode, dtype) for (_, dtype), (mode, _) in MODES.items())
_THREADS = 256


def operands(count: int, dtype: str) -> list[np.ndarray]:
    """Return positive random operands a, b and c, of magnitudes from 1e-3 to 1e3."""
    rng = np.random.default_rng(0)
    return [(10 ** rng.uniform(-3, 3, count)).astype(dtype) for _ in range(3)]


def errors_in_ulps(operation: str, found: np.ndarray, abc: list[np.ndarray]) -> np.ndarray:
    """Return the errors of results, in ulps of the exact ones.

    Examples
    --------
    >>> third = np.array([1.0]) / 3.0
    >>> float(errors_in_ulps("1 / a", third, [np.array([3.0])] * 3)[0]) < 0.5
    True
    """
    exact = OPERATIONS[operation]
    errors = []
    with decimal.localcontext(prec=60):
        for value, *given in zip(found.tolist(), *(x.tolist() for x in abc), strict=True):
            true = exact(*map(Decimal, given))
            ulp = np.spacing(found.dtype.type(abs(true)))
            errors.append(float(abs(Decimal(value) - true) / Decimal(float(ulp))))
    return np.asarray(errors)


def _operation_rows(run: StudyRun) -> Iterator[Row]:
    """Yield the errors of every operation, on the CPU by NumPy and on a GPU."""
    count = run.sizes["operands"]
    for dtype in _C_TYPES:
        abc = operands(count, dtype)
        for operation, numpy_s in _NUMPY.items():
            run.report(f"{operation}, NumPy, {dtype}")
            found = errors_in_ulps(operation, numpy_s(*abc[:2]), abc)
            yield _errors("CPU, NumPy", operation, dtype, EXACT, found)
    if not run.has_gpus(1, "operations of a GPU"):
        return
    import cupy

    for (mode, dtype), (number_, chosen) in MODES.items():
        abc = operands(count, dtype)
        on_device = [cupy.asarray(x) for x in abc]
        function = kernel(_source(number_, dtype), "operations")
        for operation in chosen:
            run.report(f"{operation}, GPU, {dtype}, {mode}")
            place = list(OPERATIONS).index(operation)
            out = cupy.full_like(on_device[0], np.nan)  # no result of the operation before
            launch(function, -(-count // _THREADS), _THREADS, place, *on_device, out, count)
            found = errors_in_ulps(operation, out.get(), abc)
            yield _errors("GPU", operation, dtype, mode, found)


def _errors(place: str, operation: str, dtype: str, mode: str, found: np.ndarray) -> Row:
    return {
        "table": "operations", "place": place, "operation": operation, "type": dtype,
        "arithmetic": mode, "largest": found.max(), "median": np.median(found),
        "operands": len(found),
    }  # fmt: skip


def _factor_rows(run: StudyRun) -> Iterator[Row]:
    """Yield errors of L and U by step: of loops in NumPy, and of the library's factorization."""
    n = run.sizes["order"]
    for dtype in _C_TYPES:
        run.report(f"L and U, {dtype}")
        a = generate("dominant", n, dtype=dtype)
        wide: Any = DoubleDouble.of(a)
        exact: Any = lu_by_columns(wide)
        found = {"loops in NumPy": lu_by_columns(a)}
        with cores_alone(run.gpus) as client:
            found["hetero_la, CPU"] = _packed(a, client)
        if run.gpus:
            import cupy

            found["hetero_la, GPU"] = _packed(cupy.asarray(a)).get()
        for who, lu in found.items():
            for step in np.unique(np.geomspace(1, n - 1, 12).astype(int)):
                yield {
                    "table": "factors", "who": who, "type": dtype, "step": int(step),
                    "L": largest_in_ulps(lu[step:, step - 1], exact[step:, step - 1]),
                    "U": largest_in_ulps(lu[step, step:], exact[step, step:]),
                }  # fmt: skip


def _packed(a: Any, client: hetero_la.Cluster | None = None) -> Any:
    lu, _ = hetero_la.lu_factor(a, pivot="none", client=client)
    return lu


def largest_in_ulps(found: np.ndarray, exact: DoubleDouble) -> float:
    """Return the largest error of a vector, in ulps of its largest entry."""
    ulp = np.spacing(found.dtype.type(np.abs(exact.high).max()))
    return float(np.abs((found - exact.high) - exact.low).max() / ulp)


def measure(run: StudyRun) -> Iterator[Row]:
    """Compare operations and factors with exact ones."""
    yield from _operation_rows(run)
    yield from _factor_rows(run)


def find(rows: Rows) -> list[str]:
    """Say what is correctly rounded, what is not, and how the errors of L and U grow."""
    found = []
    for place in reversed(values_of(rows, "place")):
        shown = rows_of(rows, "operations", place=place)
        exact = max(row["largest"] for row in shown if row["arithmetic"] == EXACT)
        text = f"On the {place}, every IEEE operation is within {exact:.2f} ulp"
        for row in shown:
            if row["arithmetic"] != EXACT:
                text += (
                    f"; {row['operation']} by {row['arithmetic']} is up to {row['largest']:.3g} off"
                )
        found.append(text + ".")
    for who in values_of(rows, "who"):
        last = [rows_of(rows, "factors", who=who, type=dtype)[-1] for dtype in _C_TYPES]
        texts = [f"{row['U']:.1f} ulps off in {row['type']}" for row in last]
        found.append(f"In row {last[0]['step']}, U of {who} is {' and '.join(texts)}.")
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw the largest errors of operations, and the errors of L and U over the step."""
    singles, *factors = panels(figure, 3, across=3)
    operations = rows_of(rows, "operations")
    names = values_of(operations, "operation")
    series = dict.fromkeys((row["place"], row["type"], row["arithmetic"]) for row in operations)
    for i, (place, dtype, arithmetic) in enumerate(series):
        of_it = {"place": place, "type": dtype, "arithmetic": arithmetic}
        shown = rows_of(operations, "operations", **of_it)
        heights = [names.index(row["operation"]) + i / (2 * len(series)) for row in shown]
        largest = [row["largest"] for row in shown]
        singles.plot(largest, heights, label=", ".join(of_it.values()), **style(i) | {"lw": 0})
    singles.set_yticks(range(len(names)), names)
    singles.axvline(0.5, color="0.3", lw=1)
    singles.set_xscale("log")
    finish(singles, "single operations; the line: half an ulp", "ulps", "", logarithmic="")
    for axes, dtype in zip(factors, _C_TYPES, strict=True):
        for i, who in enumerate(values_of(rows, "who")):
            shown = rows_of(rows, "factors", who=who, type=dtype)
            line(axes, shown, "step", "U", f"U, {who}", i)
            line(axes, shown, "step", "L", f"L, {who}", i, ls="--")
        finish(axes, f"L and U in {dtype}", "step", "largest error, ulps")


STUDY = Study(
    name="ulps",
    question="How far are results from the exact ones, operation by operation, step by step?",
    source="Ino et al., LU on the programmable GPU, Table 4",
    original="division and sums of GPUs were off then",
    tables=(
        StudyTable(
            "operations", "errors in ulps of the exact result",
            {"operation": WORD, "place": WORD, "type": WORD, "arithmetic": WORD,
             "largest": number(), "median": number()},
        ),
        StudyTable(
            "factors", "the largest error in a column of L and in a row of U, in ulps of the "
            "largest entry there",
            {"who": WORD, "type": WORD, "step": str, "L": number(), "U": number()},
        ),
    ),
    sizes={"operands": 50_000, "order": 512},
    quick={"operands": 2000, "order": 64},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
