"""Panels: LU, QR and Cholesky of n rows and few columns, on the CPU and on a GPU.

The CPU has LAPACK, on one thread up to all of them; beside a GPU also with the panel's way down and
up again.  The GPU has the library's kernels, which keep a panel in registers or shared memory and
factor many columns in one launch, and cuSOLVER.  A panel of QR comes with its matrix T, but for
cuSOLVER's; a panel of Cholesky is the factor of its top tile and what solves with it below, and
cuSOLVER does the tile only.

A model explains the times: so many seconds for each column, bytes / bandwidth for the panel, read
and written once, and operations / rate.  It tells what twice the bandwidth or ten times the time of
a column would do: which of them panels are bound by.
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
from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.runs import clock_of, seconds_in_turns
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.kernels.cpu.device import CpuDevice, usable_cores
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.spec import INTEGERS, SPECS

ROUTINES = ("lu", "qr", "cholesky")
BACK, OURS, CUSOLVER = "CPU, there and back", "GPU, hetero_la", "GPU, cuSOLVER"
_ITEM = np.dtype("float64").itemsize
#: Of what geqrf updates and writes behind the panel.
_PLACE_OF_R = 1
_KERNEL = {"lu": "getrf", "qr": "geqrf"}
_PEERS: dict[str, Callable[[Any], float]] = {
    "lu": peers.cusolver_getrf, "qr": peers.cusolver_geqrf, "cholesky": peers.cusolver_potrf
}  # fmt: skip


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


class PanelRuns:
    """A panel on a device, and the calls that factor it.

    Parameters
    ----------
    routine : str
        One of `ROUTINES`.
    device : Device
        The device; it must be active.
    given : numpy.ndarray
        The panel, n x width; for Cholesky, its top is positive definite.
    """

    def __init__(self, routine: str, device: Device, given: np.ndarray) -> None:
        self.device, self._options = device, KernelOptions()
        self.given = device.empty(given.shape, given.dtype)
        self.array = device.empty(given.shape, given.dtype)
        device.copy(self.given, np.asfortranarray(given), Queue.PANEL)
        device.synchronize()
        self.result = self.array  #: L and U, or R, or L
        rows, width = given.shape
        sizes = {"r": rows, "w": width}
        if routine != "cholesky":
            _, *rest = self._arrays(_KERNEL[routine], sizes)
            self._calls = [(_KERNEL[routine], [self.array, *rest])]
            if routine == "qr":
                self.result = rest[_PLACE_OF_R]
            return
        top, below = self.array[:width], self.array[width:]
        _, info = self._arrays("potrf", sizes)
        _, inverse = self._arrays("trtri_n", sizes)
        self._calls = [("potrf", [top, info])]
        if len(below):
            self._calls += [("trtri_n", [top, inverse]), ("trmm_rc", [top, inverse, below])]

    def _arrays(self, kernel: str, sizes: dict[str, int]) -> list[Any]:
        """Return arrays for a kernel."""
        spec = SPECS[kernel]
        return [
            self.device.empty(shape, np.int32 if name in INTEGERS else self.array.dtype)
            for name, shape in zip(spec.extents, spec.shapes(sizes), strict=True)
        ]

    def factor(self) -> None:
        """Enqueue the calls."""
        for kernel, arrays in self._calls:
            self.device.call(kernel, Queue.PANEL, arrays, self._options)

    def seconds(self) -> float:
        """Return the seconds of one factorization of the panel."""
        self.device.copy(self.array, self.given, Queue.PANEL)
        return clock_of(self.device)(self.factor, 1)


def random_panel(routine: str, n: int, width: int) -> np.ndarray:
    """Return a random panel; for Cholesky, its top is symmetric positive definite."""
    a = np.random.default_rng(n).standard_normal((n, width))
    if routine == "cholesky":
        a[:width] = (a[:width] + a[:width].T) / 2 + 2 * width * np.eye(width)
    return np.asfortranarray(a)


def check(routine: str, given: np.ndarray, found: np.ndarray, reference: np.ndarray) -> None:
    """Raise unless R, U or L is that of LAPACK, but for signs of rows."""
    width = given.shape[1]
    part = np.tril if routine == "cholesky" else np.triu
    one, other = (np.abs(part(a[:width])) for a in (found, reference))
    if not np.allclose(one, other, rtol=0, atol=1e-9 * np.abs(given).max() * width):
        raise AssertionError(f"{routine} of a panel of {given.shape} is wrong")


def _with_threads(threads: int, panel: PanelRuns) -> float:
    with threadpool_limits(threads, "blas"):
        return panel.seconds()


def _back(threads: int, on_cpu: PanelRuns, on_gpu: PanelRuns) -> float:
    """Return the seconds of a panel on a GPU that the CPU factors, with its way."""
    gpu, there, here = on_gpu.device, on_gpu.given, on_cpu.array

    def down_and_up() -> None:
        gpu.copy(here, there, Queue.PANEL)
        gpu.synchronize()
        on_cpu.factor()
        gpu.copy(on_gpu.array, here, Queue.PANEL)

    with threadpool_limits(threads, "blas"):
        return clock_of(gpu)(down_and_up, 1)


def _contenders(
    routine: str, given: np.ndarray, threads: list[int], gpu: Device | None
) -> dict[str, Callable[[], float]]:
    """Return who factors a panel, with what runs it once; all are checked."""
    on_cpu = PanelRuns(routine, CpuDevice(pinned=gpu is not None), given)
    on_cpu.seconds()
    reference = on_cpu.result.copy()
    found: dict[str, Callable[[], float]] = {
        f"CPU, {counted(count, 'thread')}": partial(_with_threads, count, on_cpu)
        for count in threads
    }
    if gpu is None:
        return found
    ours = PanelRuns(routine, gpu, given)
    ours.seconds()
    check(routine, given, ours.result.get(), reference)
    found[BACK] = partial(_back, max(threads), on_cpu, ours)
    found[OURS] = ours.seconds
    found[CUSOLVER] = partial(_by_cusolver, routine, given)
    return found


def _by_cusolver(routine: str, given: np.ndarray) -> float:
    import cupy

    part = given[: given.shape[1]] if routine == "cholesky" else given
    return _PEERS[routine](cupy.asarray(part, order="F"))


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all panels, and fit the model to the library's times."""
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
                    rows += _timed(run, routine, given, contenders)
        yield from rows
        for who in values_of(rows, "who"):
            if who in (OURS, CUSOLVER) or who.endswith("thread"):
                yield _model(routine, who, rows_of(rows, "panels", who=who))


def _timed(
    run: StudyRun, routine: str, given: np.ndarray, contenders: dict[str, Callable[[], float]]
) -> Iterator[Row]:
    """Yield the rows of one panel."""
    n, width = given.shape
    for who, taken in seconds_in_turns(contenders, run.sizes["turns"]).items():
        found = spread(taken)
        yield {
            "table": "panels", "routine": routine, "width": width, "n": n, "who": who, **found,
            "flop/s": flops(routine, n, width) / found["seconds"],
            "per column": found["seconds"] / width,
        }  # fmt: skip


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


def _model(routine: str, who: str, rows: Rows) -> Row:
    """Return the model of a contender, and what it says of another machine."""
    column, byte, operation = fitted(rows)
    parts = np.array([_features(row) for row in rows]) * [column, byte, operation]
    seconds = np.array([row["seconds"] for row in rows])
    total = parts.sum(axis=1)
    return {
        "table": "model", "routine": routine, "who": who, "t column": column,
        "beta": 1 / byte if byte else None, "rate": 1 / operation if operation else None,
        "worst error": float(np.abs(total / seconds - 1).max()),
        "twice the bandwidth": float(np.median((parts @ [1.0, 0.5, 1.0]) / total)),
        "ten times a column": float(np.median((parts @ [10.0, 1.0, 1.0]) / total)),
    }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say who is best where, and what a panel is bound by."""
    found = []
    for routine in ROUTINES:
        shown = rows_of(rows, "panels", routine=routine)
        names = values_of(shown, "who")
        who = OURS if OURS in names else names[0]
        (model,) = rows_of(rows, "model", routine=routine, who=who)
        found.append(
            f"A column of a panel of {routine} takes {in_seconds(model['t column'])} ({who}; the "
            f"model is up to {percent(model['worst error'])} off): with twice the bandwidth half "
            f"of the panels would take {percent(model['twice the bandwidth'])} of their time or "
            f"less, with ten times the time of a column {model['ten times a column']:.1f} times "
            "of it or more."
        )
        found += _best(routine, shown) if OURS in names else []
    return found


def _best(routine: str, rows: Rows) -> Iterator[str]:
    """Yield up to which rows the CPU is best, and by what factor ours is faster than cuSOLVER."""
    for width in sorted(values_of(rows, "width"))[-1:]:
        at: dict[int, dict[str, float]] = {}
        for row in rows_of(rows, "panels", width=width):
            at.setdefault(row["n"], {})[row["who"]] = row["seconds"]
        cpu = [
            n for n, who in at.items()
            if who[BACK] < min(who[OURS], who[CUSOLVER])
        ]  # fmt: skip
        n = max(at)
        yield (
            f"{routine}, {width} columns: the CPU, there and back, is best "
            f"{f'up to n = {max(cpu)}' if cpu else 'nowhere'}; at n = {n} the library's kernels "
            f"take {at[n][OURS] / at[n][CUSOLVER]:.2f} of cuSOLVER's time."
        )


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over the rows, for a narrow, a middle and a wide panel of each routine."""
    widths = sorted(values_of(rows_of(rows, "panels"), "width"))
    shown_widths = sorted({widths[0], widths[len(widths) // 2], widths[-1]})
    drawn = iter(panels(figure, len(ROUTINES) * len(shown_widths), across=len(shown_widths)))
    contenders = values_of(rows_of(rows, "panels"), "who")
    for routine in ROUTINES:
        for width in shown_widths:
            axes = next(drawn)
            for i, who in enumerate(contenders):
                shown = rows_of(rows, "panels", routine=routine, width=width, who=who)
                rates = [{**row, "Gflop/s": row["flop/s"] / 1e9} for row in shown]
                line(axes, rates, "n", "Gflop/s", who, i)
            finish(axes, f"{routine}, {width} columns", "rows n", "Gflop/s")
    shared_legend(figure, 3)


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
            "panels", "panels",
            {"routine": WORD, "width": str, "n": number(), "who": WORD, **SECONDS,
             "flop/s": rate("flop/s"), "per column": in_seconds},
        ),
    ),
    sizes={
        "widths": [32, 64, 128, 256, 512, 1024], "rows": [2**k for k in range(8, 16)], "turns": 3
    },
    quick={"widths": [16, 32], "rows": [64, 256], "turns": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
