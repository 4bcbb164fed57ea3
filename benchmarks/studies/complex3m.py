"""Complex products by three real ones in place of four, and factorizations that use them.

With T1 = Ar Br, T2 = Ai Bi and T3 = (Ar + Ai) (Br + Bi), the product is T1 - T2 + i (T3 - T1 - T2).
A quarter of the multiplications is saved; additions, and their memory traffic, come on top, and the
imaginary part is a difference whose error is that of the larger terms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number, rate
from hetero_la.studies.common.plots import finish, line, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import (
    Call,
    Clock,
    host_clock,
    in_turns,
    spread,
    synchronous_clock,
)  # fmt: skip
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice

DTYPES = ("complex64", "complex128")
NATIVE, THREE, OURS, REAL = "complex", "three real", "three real, ours", "real"
#: Rows and columns in which errors are seen.
_CHECKED = 32
_ROUTINES: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "qr": hetero_la.qr_factor, "cholesky": hetero_la.cho_factor,
}  # fmt: skip


def three_products(a: Any, b: Any) -> Any:
    """Return A B by three real products.

    Examples
    --------
    >>> three_products(np.array([[1 + 2j]]), np.array([[3 - 1j]]))
    array([[5.+5.j]])
    """
    first, second = a.real @ b.real, a.imag @ b.imag
    third = (a.real + a.imag) @ (b.real + b.imag)
    return first - second + (third - first - second) * a.dtype.type(1j)


def _random(n: int, dtype: str, xp: Any, seed: int) -> Any:
    rng = xp.random.default_rng(seed)
    parts = (rng.standard_normal((n, n)) for _ in range(2))
    return xp.asarray((next(parts) + 1j * next(parts)).astype(dtype), order="F")


def product_calls(n: int, dtype: str, xp: Any) -> tuple[Any, Any, dict[str, Callable[[], Any]]]:
    """Return two matrices on the host or on a GPU, and ways to multiply them, or real parts."""
    a, b = (_random(n, dtype, xp, seed) for seed in (1, 2))
    left, right = xp.asfortranarray(a.real), xp.asfortranarray(b.real)
    calls: dict[str, Callable[[], Any]] = {
        NATIVE: lambda: a @ b,
        THREE: lambda: three_products(a, b),
        REAL: lambda: left @ right,
    }
    if xp is not np:
        device, options = GpuDevice(0), KernelOptions(products="3m")
        c = xp.zeros((n, n), dtype, order="F")
        xp.cuda.Device().synchronize()  # the library's streams do not wait for this one

        def ours() -> Any:
            """Compute C <- C - A B, as an update does."""
            with device.activate():
                device.call("gemm", Queue.UPDATE, (a, b, c), options)
                device.synchronize()
            return c

        calls[OURS] = ours
    return a, b, calls


def errors(found: Any, a: Any, b: Any) -> dict[str, float]:
    """Return the largest errors of parts of a product, in eps of the largest |A| |B|.

    They are seen where some of its rows and columns cross.
    """
    some = slice(None, None, max(len(a) // _CHECKED, 1))
    left, right, block = to_host(a[some]), to_host(b[:, some]), to_host(found[some, some])
    wide = np.result_type(block.dtype, np.longdouble)
    off = block - left.astype(wide) @ right.astype(wide)
    unit = np.finfo(block.dtype).eps * (np.abs(left) @ np.abs(right)).max()
    return {part: float(np.abs(getattr(off, part)).max() / unit) for part in ("real", "imag")}


def _products(run: StudyRun, place: str, xp: Any) -> Iterator[Row]:
    """Yield times of products, which take turns, and their errors."""
    clock: Clock = host_clock if place == "CPU" else synchronous_clock
    for dtype in DTYPES:
        for n in run.sizes["orders"][place]:
            run.report(f"{place}, {dtype}, n = {n}")
            a, b, calls = product_calls(n, dtype, xp)
            off = {who: _checked(who, call, a, b) for who, call in calls.items() if who != REAL}
            taken = {
                who: spread(seconds)
                for who, seconds in in_turns(calls, clock, run.sizes["samples"]).items()
            }
            flops = {
                who: (2 if who == REAL else 8) * n**3 / found["seconds"]
                for who, found in taken.items()
            }
            for who, found in taken.items():
                rates = {} if who == REAL else {
                    "rate over complex": flops[who] / flops[NATIVE],
                    "rate over real": flops[who] / flops[REAL],
                }  # fmt: skip
                yield {
                    "table": "products", "place": place, "who": who, "type": dtype, "n": n, **found,
                    "flop/s": flops[who], **rates, **off.get(who, {}),
                }  # fmt: skip


def _checked(who: str, call: Callable[[], Any], a: Any, b: Any) -> dict[str, float]:
    """Return the errors of a product; raise if it is wrong."""
    off = errors(-call() if who == OURS else call(), a, b)
    if not max(off.values()) < len(a):
        raise AssertionError(f"the product by {who} is wrong: {off}")
    return off


def _factorizations(run: StudyRun) -> Iterator[Row]:
    """Yield times of factorizations on a GPU, with native products and with three real ones."""
    import cupy

    for dtype in DTYPES:
        for n in run.sizes["factored"]:
            a = _random(n, dtype, cupy, 1)
            definite = a.copy(order="F")
            definite[cupy.arange(n), cupy.arange(n)] = 4.0 * n
            for routine, factor in _ROUTINES.items():
                run.report(f"{routine}, {dtype}, n = {n}")
                given = definite if routine == "cholesky" else a
                calls: dict[str, Call] = {
                    who: partial(factor, given, check_finite=False, products=products)
                    for who, products in ((NATIVE, "native"), (OURS, "3m"))
                }
                taken = in_turns(calls, synchronous_clock, run.sizes["samples"])
                native = spread(taken[NATIVE])["seconds"]
                for who, seconds in taken.items():
                    found = spread(seconds)
                    yield {
                        "table": "factorizations", "routine": routine, "who": who, "type": dtype,
                        "n": n, **found, "rate over complex": native / found["seconds"],
                    }  # fmt: skip


def measure(run: StudyRun) -> Iterator[Row]:
    """Time products on the CPU and on a GPU, and factorizations on a GPU."""
    yield from _products(run, "CPU", np)
    if run.has_gpus(1, "products of cuBLAS, and factorizations"):
        import cupy

        yield from _products(run, "GPU", cupy)
        yield from _factorizations(run)


def find(rows: Rows) -> list[str]:
    """Say what three products are worth, and what they cost in accuracy."""
    found = []
    for place, who in (("GPU", OURS), ("GPU", THREE), ("CPU", THREE)):
        for dtype in DTYPES:
            for row in rows_of(rows, "products", place=place, who=who, type=dtype)[-1:]:
                (native,) = rows_of(
                    rows, "products", place=place, who=NATIVE, type=dtype, n=row["n"]
                )
                whose = "the library's three" if who == OURS else "three"
                found.append(
                    f"On the {place}, {dtype}, n = {row['n']}: {whose} real products have "
                    f"{row['rate over complex']:.2f} times the rate, {row['rate over real']:.2f} "
                    f"times that of real products, and {row['imag'] / native['imag']:.1f} times "
                    "the error in imaginary parts."
                )
    factored = rows_of(rows, "factorizations", who=OURS)
    for dtype in values_of(factored, "type"):
        n = max(row["n"] for row in factored)
        rates = ", ".join(
            f"{row['routine']} {row['rate over complex']:.2f}"
            for row in rows_of(factored, "factorizations", type=dtype, n=n)
        )
        found.append(
            f"Factorizations of {dtype}, n = {n}, by three products: {rates} times the rate."
        )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates of products and of factorizations, relative to native ones."""
    factored = rows_of(rows, "factorizations", who=OURS)
    first, *second = panels(figure, 2 if factored else 1)
    products = [row for row in rows_of(rows, "products") if row["who"] in (THREE, OURS)]
    series = list(dict.fromkeys((row["place"], row["who"], row["type"]) for row in products))
    for i, (place, who, dtype) in enumerate(series):
        shown = rows_of(products, "products", place=place, who=who, type=dtype)
        line(first, shown, "n", "rate over complex", f"{place}, {who}, {dtype}", i)
    finish(first, "products", "order n", "rate over native", logarithmic="x")
    for panel in second:
        pairs = [(r, d) for r in values_of(factored, "routine") for d in DTYPES]
        for i, (routine, dtype) in enumerate(pairs):
            shown = rows_of(factored, "factorizations", routine=routine, type=dtype)
            line(panel, shown, "n", "rate over complex", f"{routine}, {dtype}", i)
        finish(panel, "factorizations", "order n", "rate over native", logarithmic="x")
    for axes in (first, *second):
        axes.axhline(1, color="0.3", lw=1)


STUDY = Study(
    name="complex3m",
    question="What are complex products by three real ones worth, and what do they cost?",
    source="MAGMA's GEMM for Fermi",
    original="1.22 to 1.26 times the real rate",
    tables=(
        StudyTable(
            "products", "products of square matrices; errors of real and imaginary parts in eps "
            "of the largest |A| |B|, in some rows and columns",
            {"place": WORD, "who": WORD, "type": WORD, "n": str, **SECONDS,
             "flop/s": rate("flop/s"), "rate over complex": number(),
             "rate over real": number(), "real": number(), "imag": number()},
        ),
        StudyTable(
            "factorizations", "factorizations on one GPU",
            {"routine": WORD, "who": WORD, "type": WORD, "n": str, **SECONDS,
             "rate over complex": number()},
        ),
    ),
    sizes={
        "orders": {"CPU": [256, 512, 1024], "GPU": [512, 1024, 2048, 4096, 8192]},
        "factored": [4096, 8192, 16384], "samples": 5,
    },
    quick={"orders": {"CPU": [64, 128], "GPU": [256]}, "factored": [512], "samples": 2},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
