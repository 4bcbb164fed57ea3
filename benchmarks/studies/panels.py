"""Panels: LU, QR and Cholesky of n rows and few columns, on the CPU and on a GPU.

The CPU has LAPACK, on one thread up to all of them; beside a GPU also with the panel's way down and
up again, which shows how many threads are best for that.  The GPU has the library's kernels, which
keep a panel in registers or shared memory and factor many columns in one launch, and cuSOLVER.  A
panel of QR comes with its matrix T, but for cuSOLVER's; a panel of Cholesky is the factor of its
top tile and a solve with it below, which beside cuSOLVER is cuBLAS's.  All factors are checked.

A bound is what memory and arithmetic of the GPU take at least.  A model explains the times: so many
seconds for each column, bytes / bandwidth for the panel, read and written once, and operations /
rate.  It tells what twice the bandwidth or ten times the time of a column would do: which of them
panels are bound by.

What a column's time is made of is seen from inside a kernel of this study, by the GPU's clock.  It
has two forms: greedy, which updates all columns behind a pivot, and lazy, which updates a column
when its turn has come.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.cuda import (
    attribute,
    bandwidth_of_pins,
    multiprocessors,
    peak,
    tensor_peak,
)
from hetero_la.studies.common.plots import finish, line, panels, shared_legend, style
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
from hetero_la.studies.factorizations import panel_leaf
from hetero_la.studies.factorizations.panel_leaf import LEAF_SOURCES, ORDERS, PHASES, Leaf
from hetero_la.studies.factorizations.panel_runs import (
    ROUTINES,
    CusolverPanel,
    Factors,
    PanelRuns,
    by_lapack,
    check,
    random_panel,
)
from hetero_la.studies.factorizations.runs import clock_of, seconds_in_turns
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.kernels.cpu.device import CpuDevice, usable_cores
from hetero_la.tiles.kernels.device import Device, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice

BACK, OURS, CUSOLVER = "CPU, there and back", "GPU, hetero_la", "GPU, cuSOLVER"
_ITEM = np.dtype("float64").itemsize
#: What the model says of a panel, and the factors that it then has for columns, bytes, operations.
WHAT_IF = {
    "model": (1.0, 1.0, 1.0), "twice the bandwidth": (1.0, 0.5, 1.0),
    "ten times a column": (10.0, 1.0, 1.0),
}  # fmt: skip
SOURCES = LEAF_SOURCES


def flops(routine: str, n: int, width: int) -> float:
    """Return the operations of a panel, as LAPACK counts them.

    Examples
    --------
    >>> flops("lu", 100, 10), flops("qr", 100, 10)
    (9666.666666666666, 19333.333333333332)
    """
    if routine == "cholesky":
        return width**3 / 3 + (n - width) * width**2
    return (2 if routine == "qr" else 1) * (n * width**2 - width**3 / 3)


def bound(routine: str, n: int, width: int) -> float:
    """Return the seconds that memory and arithmetic of the current GPU take for a panel at least.

    It is read and written once; only a panel that a cache has can be faster.
    """
    known = [most for most in (peak("float64"), tensor_peak("float64")) if most is not None]
    arithmetic = flops(routine, n, width) / max(known) if known else 0.0
    return max(2 * n * width * _ITEM / bandwidth_of_pins(), arithmetic)


def _with_threads(threads: int, panel: PanelRuns) -> float:
    with threadpool_limits(threads, "blas"):
        return panel.seconds()


def _back(threads: int, on_cpu: PanelRuns, on_gpu: PanelRuns) -> float:
    """Return the seconds of a panel on a GPU that the CPU factors, with its way."""
    gpu = on_gpu.device

    def down_and_up() -> None:
        gpu.copy(on_cpu.results[0], on_gpu.given, Queue.PANEL)
        gpu.synchronize()
        on_cpu.factor()
        for there, here in zip(on_gpu.results, on_cpu.results, strict=True):
            gpu.copy(there, here, Queue.PANEL)

    with threadpool_limits(threads, "blas"):
        return clock_of(gpu)(down_and_up, 1)


def _contenders(
    routine: str, given: np.ndarray, threads: list[int], gpu: Device | None
) -> dict[str, Callable[[], float]]:
    """Return who factors a panel, with what runs it once; all are checked."""
    wanted = by_lapack(routine, given)
    on_cpu = PanelRuns(routine, CpuDevice(pinned=gpu is not None), given)
    found: dict[str, Callable[[], float]] = {}
    factors: dict[str, Callable[[], Factors]] = {}

    def add(who: str, call: Callable[[], float], result: Callable[[], Factors]) -> None:
        found[who], factors[who] = call, result

    if gpu is None:
        for count in threads:
            add(_on("CPU", count), partial(_with_threads, count, on_cpu), on_cpu.factors)
    else:
        ours, cusolver = PanelRuns(routine, gpu, given), CusolverPanel(routine, given)
        for count in threads:
            add(_on(BACK, count), partial(_back, count, on_cpu, ours), ours.factors)
        add(OURS, ours.seconds, ours.factors)
        add(CUSOLVER, cusolver.seconds, cusolver.factors)
    for who, call in found.items():
        call()
        check(routine, who, given, factors[who](), wanted)
    return found


def _on(who: str, threads: int) -> str:
    return f"{who}, {counted(threads, 'thread')}"


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all panels, fit the model to the library's times, and look into a kernel."""
    gpu: Device | None = None
    if run.has_gpus(1, "panels on a GPU, and on the CPU for a GPU"):
        gpu = GpuDevice(0)
    threads = sorted({min(count, usable_cores()) for count in (1, 4, usable_cores())})
    for routine in ROUTINES:
        rows: list[Row] = []
        for width in run.sizes["widths"]:
            for n in (n for n in run.sizes["rows"] if n >= width):
                run.report(f"{routine}, {n} x {width}")
                given = random_panel(routine, n, width)
                with nullcontext() if gpu is None else gpu.activate():
                    contenders = _contenders(routine, given, threads, gpu)
                    least = None if gpu is None else bound(routine, n, width)
                    rows += _timed(run, routine, given.shape, contenders, least)
        yield from rows
        for who in values_of(rows, "who"):
            if who in (OURS, CUSOLVER, _on("CPU", 1)):
                yield from _model(routine, who, rows_of(rows, "panels", who=who))
    if gpu is not None:
        yield from _leaves(run)


def _timed(
    run: StudyRun, routine: str, shape: tuple[int, ...],
    contenders: dict[str, Callable[[], float]], least: float | None,
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of one panel; on the GPU, it takes `least` seconds at least."""
    n, width = shape
    for who, taken in seconds_in_turns(contenders, run.sizes["turns"]).items():
        found = spread(taken)
        row = {
            "table": "panels", "routine": routine, "width": width, "n": n, "who": who, **found,
            "flop/s": flops(routine, n, width) / found["seconds"],
            "per column": found["seconds"] / width,
        }  # fmt: skip
        if least is not None and who in (OURS, CUSOLVER):
            row |= {"bound": least, "of bound": least / found["seconds"]}
        yield row


def _features(row: Row) -> list[float]:
    """Return what a panel's time is taken to be made of: columns, bytes, operations."""
    nbytes = 2.0 * row["n"] * row["width"] * _ITEM
    return [row["width"], nbytes, flops(row["routine"], row["n"], row["width"])]


def fitted(rows: Rows) -> list[float]:
    """Return the seconds of a column, a byte and an operation, with least relative errors.

    Examples
    --------
    >>> sizes = [(n, w) for n in (100, 1000, 9000) for w in (32, 64)]
    >>> rows = [{"routine": "lu", "n": n, "width": w} for n, w in sizes]
    >>> for row, (n, w) in zip(rows, sizes):
    ...     row["seconds"] = 1e-6 * w + 1e-12 * 16 * n * w
    >>> column, byte, operation = fitted(rows)
    >>> round(1e6 * column, 3), round(1e12 * byte, 3), round(1e12 * operation, 3)
    (1.0, 1.0, 0.0)
    """
    seconds = np.array([row["seconds"] for row in rows])
    matrix = np.array([_features(row) for row in rows]) / seconds[:, None]
    scale = matrix.max(axis=0)
    found, _ = scipy.optimize.nnls(matrix / scale, np.ones(len(rows)))
    return list((found / scale).tolist())


def _model(routine: str, who: str, rows: Rows) -> Iterator[Row]:
    """Yield the model of a contender, and what it says of each panel and of another machine."""
    column, byte, operation = fitted(rows)
    parts = np.array([_features(row) for row in rows]) * [column, byte, operation]
    seconds = np.array([row["seconds"] for row in rows])
    curves = {what: parts @ factors for what, factors in WHAT_IF.items()}
    total = curves["model"]
    yield {
        "table": "model", "routine": routine, "who": who, "t column": column,
        "beta": 1 / byte if byte else None, "rate": 1 / operation if operation else None,
        "worst error": float(np.abs(total / seconds - 1).max()),
        **{what: float(np.median(curve / total)) for what, curve in curves.items()},
    }  # fmt: skip
    for i, row in enumerate(rows):
        yield {
            "table": "what if", "routine": routine, "who": who, "width": row["width"],
            "n": row["n"], "measured": row["seconds"], "bound": row.get("bound"),
            **{what: float(curve[i]) for what, curve in curves.items()},
        }  # fmt: skip


def _leaves(run: StudyRun) -> Iterator[Row]:
    """Yield times of both forms of the study's own kernel, and their traces."""
    if not attribute("CooperativeLaunch"):
        run.leave_out("the study's own kernel: the GPU has no cooperative launches")
        return
    most = multiprocessors() * panel_leaf.ROWS
    for n in (n for n in run.sizes["rows"] if panel_leaf.COLUMNS <= n <= most):
        run.report(f"own kernel, {n} x {panel_leaf.COLUMNS}")
        given = random_panel("lu", n, panel_leaf.COLUMNS)
        wanted, leaves = by_lapack("lu", given), {order: Leaf(order, given) for order in ORDERS}
        taken = seconds_in_turns(
            {order: leaf.seconds for order, leaf in leaves.items()}, run.sizes["turns"]
        )
        for order, leaf in leaves.items():
            found = spread(taken[order])
            yield {
                "table": "orders", "order": order, "n": n, **found,
                "per column": found["seconds"] / panel_leaf.COLUMNS,
            }  # fmt: skip
            traced = np.mean([leaf.trace() for _ in range(run.sizes["turns"])], axis=0)
            check("lu", f"the {order} kernel", given, leaf.factors(), wanted)
            yield from _phases(order, n, traced)


def _phases(order: str, n: int, traced: np.ndarray) -> Iterator[Row]:
    """Yield what the phases of a column take, on average and one by one."""
    for phase, columns in zip(PHASES, traced.T, strict=True):
        yield {
            "table": "trace", "order": order, "n": n, "phase": phase,
            "per column": float(columns.mean()), "share": float(columns.sum() / traced.sum()),
            "columns": columns.tolist(),
        }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say who is best where, what a panel is bound by, and what a column's time is made of."""
    found = []
    for routine in ROUTINES:
        shown = rows_of(rows, "panels", routine=routine)
        names = values_of(shown, "who")
        who = OURS if OURS in names else names[0]
        (model,) = rows_of(rows, "model", routine=routine, who=who)
        found.append(
            f"A column of a panel of {routine} takes {in_seconds(model['t column'])} ({who}; the "
            f"model is up to {percent(model['worst error'])} off): with twice the bandwidth, "
            f"half of the panels would take at most {percent(model['twice the bandwidth'])} of "
            "their time; if a column took ten times as long, half of them would take at least "
            f"{model['ten times a column']:.1f} times as long."
        )
        found += [_best(routine, shown)] if OURS in names else []
    return found + _of_orders(rows)


def _best(routine: str, rows: Rows) -> str:
    """Say up to which rows the CPU is best, and how fast the library's kernels are."""
    width = max(values_of(rows, "width"))
    shown = rows_of(rows, "panels", width=width)
    cpu = [
        n for n in values_of(shown, "n")
        if _fastest(shown, n, BACK)["seconds"] < _fastest(shown, n, "GPU")["seconds"]
    ]  # fmt: skip
    n = max(values_of(shown, "n"))
    ours, cusolver = (_fastest(shown, n, who) for who in (OURS, CUSOLVER))
    return (
        f"{routine}, {width} columns: the CPU, there and back, is best "
        f"{f'up to n = {max(cpu)}' if cpu else 'nowhere'}; at n = {n} the library's kernels "
        f"take {ours['seconds'] / cusolver['seconds']:.2f} of cuSOLVER's time and "
        f"{ours['seconds'] / ours['bound']:.1f} times the bound, and the CPU takes least with "
        f"{_fastest(shown, n, BACK)['who'].removeprefix(f'{BACK}, ')}."
    )


def _fastest(rows: Rows, n: int, who: str) -> Row:
    """Return the row of the fastest of those whose names begin so."""
    those = [row for row in rows_of(rows, "panels", n=n) if row["who"].startswith(who)]
    return min(those, key=lambda row: row["seconds"])


def _of_orders(rows: Rows) -> list[str]:
    """Say which form of the study's own kernel is faster, and what its columns' time is made of."""
    orders = rows_of(rows, "orders")
    if not orders:
        return []
    n = max(values_of(orders, "n"))
    greedy, lazy = (rows_of(orders, "orders", n=n, order=order)[0] for order in ORDERS)
    parts = ", ".join(
        f"{percent(row['share'])} {row['phase']}"
        for row in rows_of(rows, "trace", n=n, order=greedy["order"])
    )
    return [
        f"A kernel that updates lazily takes {lazy['seconds'] / greedy['seconds']:.2f} times as "
        f"long as a greedy one for {n} x {panel_leaf.COLUMNS}; of that one's "
        f"{in_seconds(greedy['per column'])} for a column, {parts}."
    ]


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over the rows, for a narrow, a middle and a wide panel, and the own kernel."""
    widths = sorted(values_of(rows_of(rows, "panels"), "width"))
    shown_widths = sorted({widths[0], widths[len(widths) // 2], widths[-1]})
    orders = rows_of(rows, "orders")
    number_of_panels = len(ROUTINES) * len(shown_widths) + (2 if orders else 0)
    drawn = iter(panels(figure, number_of_panels, across=len(shown_widths)))
    contenders = values_of(rows_of(rows, "panels"), "who")
    for routine in ROUTINES:
        for width in shown_widths:
            axes = next(drawn)
            for i, who in enumerate(contenders):
                shown = rows_of(rows, "panels", routine=routine, width=width, who=who)
                rates = [{**row, "Gflop/s": row["flop/s"] / 1e9} for row in shown]
                line(axes, rates, "n", "Gflop/s", who, i)
            who = OURS if OURS in contenders else contenders[0]
            _draw_curves(axes, rows_of(rows, "what if", routine=routine, width=width, who=who))
            finish(axes, f"{routine}, {width} columns", "rows n", "Gflop/s")
    if orders:
        _draw_orders(next(drawn), orders)
        _draw_trace(next(drawn), rows_of(rows, "trace", n=max(values_of(orders, "n"))))
    shared_legend(figure, 3)


def _draw_curves(axes: Any, rows: Rows) -> None:
    """Draw the rates of the bound and of what the model says of one contender."""
    for what, dashes in zip(("bound", *WHAT_IF), ("-", "--", "-.", ":"), strict=True):
        rates = [
            {
                "n": row["n"],
                "Gflop/s": flops(row["routine"], row["n"], row["width"]) / row[what] / 1e9,
            }
            for row in rows
            if row[what]
        ]
        how = {"color": "0.3", "marker": "", "ls": dashes}
        if rates:
            line(axes, rates, "n", "Gflop/s", f"{what}, {rows[0]['who']}", 0, **how)


def _draw_orders(axes: Any, rows: Rows) -> None:
    for i, order in enumerate(ORDERS):
        shown = [
            {**row, "µs": 1e6 * row["per column"]} for row in rows_of(rows, "orders", order=order)
        ]
        line(axes, shown, "n", "µs", f"own kernel, {order}", i)
    finish(
        axes,
        f"own kernel, {panel_leaf.COLUMNS} columns",
        "rows n",
        "µs for a column",
        logarithmic="x",
    )


def _draw_trace(axes: Any, rows: Rows) -> None:
    """Draw the time of each phase by column."""
    for order, dashes in zip(ORDERS, ("-", "--"), strict=True):
        for i, row in enumerate(rows_of(rows, "trace", order=order)):
            how = style(i) | {"ls": dashes, "ms": 2}
            columns = [1e6 * seconds for seconds in row["columns"]]
            axes.plot(range(len(columns)), columns, label=f"{row['phase']}, {order}", **how)
    finish(axes, f"phases, {rows[0]['n']} rows", "column", "µs", logarithmic="")


STUDY = Study(
    name="panels",
    question="Who factors a panel fastest, and what is a panel bound by?",
    source="Volkov and Demmel 2008, Figure 3; GPU-only LU and Cholesky, 2018, Figure 9",
    original="the CPU is best for short panels; a fused kernel 2.4 times as fast as cuSOLVER",
    tables=(
        StudyTable(
            "model", "time = columns t + bytes / beta + flops / rate; and on other machines",
            {"routine": WORD, "who": WORD, "t column": in_seconds, "beta": rate("B/s"),
             "rate": rate("flop/s"), "worst error": percent, "twice the bandwidth": percent,
             "ten times a column": percent},
        ),
        StudyTable(
            "orders", f"LU of {panel_leaf.COLUMNS} columns by the study's own kernel",
            {"order": WORD, "n": number(), **SECONDS, "per column": in_seconds},
        ),
        StudyTable(
            "trace", "phases of a column in the study's own kernel, by the GPU's clock",
            {"order": WORD, "n": number(), "phase": WORD, "per column": in_seconds,
             "share": percent},
        ),
        StudyTable(
            "panels", "panels",
            {"routine": WORD, "width": str, "n": number(), "who": WORD, **SECONDS,
             "flop/s": rate("flop/s"), "per column": in_seconds, "of bound": percent},
        ),
        StudyTable(
            "what if", "the model panel by panel",
            {"routine": WORD, "width": str, "n": number(), "who": WORD, "measured": in_seconds,
             "bound": in_seconds, **dict.fromkeys(WHAT_IF, in_seconds)},
        ),
    ),
    sizes={
        "widths": [32, 128, 512, 1024], "rows": [256, 1024, 4096, 8192, 16384, 32768], "turns": 3
    },
    quick={"widths": [16, 32], "rows": [64, 256], "turns": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
