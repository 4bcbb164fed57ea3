"""Matrix products by kernels of our own, from one template, beside cuBLAS.

The template is Volkov's: blocks of C stay in registers, slices of B go through shared memory, and
those of A, too, but for his own kernel, which reads them straight to registers.  Its parameters
make that one (64 x 16), MAGMA's for Fermi (64 x 64, 4 x 4 for each thread), and others, of which
the fastest of a hundred is looked for.  A second kernel uses tensor cores and asynchronous copies.

Every kernel is checked against NumPy before it is timed, and what it has computed after that
against the library.  Percents of the peak are of the units that a kernel uses; cuBLAS may choose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg.blas

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, percent, rate
from hetero_la.studies.common.cuda import (
    attribute,
    capability,
    cuda_source,
    kernel,
    launch,
    peak,
    tensor_peak,
)  # fmt: skip
from hetero_la.studies.common.plots import finish, panels, style
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import Call, gpu_clock, host_clock, samples, spread
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.kernels.gpu.sources import Source

FORMS = ("NN", "NT", "TN", "TT")
DTYPES = ("float32", "float64")
_C_TYPES = {"float32": "float", "float64": "double"}
#: What has a peak.
ORDINARY, TENSOR_CORES = "ordinary units", "tensor cores"
CUBLAS = "cuBLAS"
_MOST_SHARED, _MOST_SUMS, _POINTS = 48 * 1024, 64, 100
_MOST_DYNAMIC_SHARED = 8  #: CUDA's number of the attribute
#: Orders that are no multiples of anything, and one that is.
CHECKED = ((128, 128, 64), (97, 65, 33))


class Blocks(NamedTuple):
    """Parameters of the template: a block of C and its slices, and entries of a thread.

    `staged` says whether A goes through shared memory.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    staged: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bm // self.tm * (self.bn // self.tn)

    def shared(self, itemsize: int) -> int:
        """Return the bytes of shared memory of a block."""
        return self.bk * (self.staged * (self.bm + 1) + self.bn + 1) * itemsize

    def source(self, dtype: str, form: str) -> Source:
        """Return the kernel's source for a type, and factors transposed as a form says."""
        sizes = [f"{name.upper()}={value}" for name, value in self._asdict().items()]
        turned = [f"TA={int(form[0] == 'T')}", f"TB={int(form[1] == 'T')}"]
        return cuda_source("gemm", f"REAL={_C_TYPES[dtype]}", *sizes, *turned)

    def __str__(self) -> str:
        read = "" if self.staged else ", A to registers"
        return f"{self.bm} x {self.bn} by {self.bk}, {self.tm} x {self.tn} a thread{read}"


VOLKOV, MAGMA = Blocks(64, 16, 16, 1, 16, staged=0), Blocks(64, 64, 16, 4, 4)


class TensorBlocks(NamedTuple):
    """Parameters of the kernel for tensor cores: a block of C, slices, kind of instruction."""

    bm: int
    bn: int
    stages: int
    deep: int

    @property
    def threads(self) -> int:
        """Threads of a block: a warp for 32 x 32 entries."""
        return self.bm * self.bn // 32

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * 8 * (16 * (self.bm + 4) + self.bn * (16 + 4))

    @property
    def source(self) -> Source:
        """The kernel's source."""
        defines = (f"{name.upper()}={value}" for name, value in self._asdict().items())
        return cuda_source("gemm_tensor", *defines)

    def __str__(self) -> str:
        instruction = "16 x 8 x 16" if self.deep else "8 x 8 x 4"
        return f"tensor cores, {self.bm} x {self.bn}, {self.stages} slices, {instruction}"


TENSOR = tuple(
    TensorBlocks(*shape, deep)
    for deep in (0, 1)
    for shape in ((64, 64, 2), (64, 64, 3), (128, 64, 3), (128, 128, 3))
)


def points(itemsize: int) -> list[Blocks]:
    """Return the parameters among which the fastest are looked for: a hundred of them.

    Examples
    --------
    >>> MAGMA in points(4), len(points(4))
    (True, 100)
    """
    others = [
        blocks
        for bm in (32, 64, 96, 128)
        for bn in (16, 32, 64, 96, 128)
        for bk in (8, 16)
        for tm in (4, 8)
        for tn in (2, 4, 8)
        if 64 <= (blocks := Blocks(bm, bn, bk, tm, tn)).threads <= 512
        and blocks.threads % 32 == bm % tm == bn % tn == 0
        and blocks.shared(itemsize) <= _MOST_SHARED
        and tm * tn <= _MOST_SUMS
        and blocks != MAGMA
    ]
    most = _POINTS - 1
    return [MAGMA, *(others[i * len(others) // most] for i in range(most))]


SOURCES = (
    *(b.source(dtype, form) for b in (VOLKOV, MAGMA) for dtype in DTYPES for form in FORMS),
    *(blocks.source("float32", "NN") for blocks in points(4)[::10]),
    *(blocks.source for blocks in TENSOR),
)


def product_call(blocks: Blocks | TensorBlocks, form: str, a: Any, b: Any, c: Any) -> Call:
    """Return what enqueues C = op(A) op(B), of column-major CuPy arrays."""
    m, n = c.shape
    k = a.shape[0 if form[0] == "T" else 1]
    if isinstance(blocks, TensorBlocks):
        function = kernel(blocks.source, "gemm_tensor")
        shared = _allow_shared(function, blocks.dynamic_shared)
    else:
        function, shared = kernel(blocks.source(c.dtype.name, form), "gemm"), 0
    grid = -(-m // blocks.bm), -(-n // blocks.bn)
    leading = [array.strides[1] // array.itemsize for array in (a, b, c)]
    return partial(
        launch, function, grid, blocks.threads, m, n, k, a, leading[0], b, leading[1], c,
        leading[2], shared=shared,
    )  # fmt: skip


def _allow_shared(function: Any, nbytes: int) -> int:
    from cupy_backends.cuda.api import driver

    driver.funcSetAttribute(function.ptr, _MOST_DYNAMIC_SHARED, nbytes)
    return nbytes


def _factors(form: str, m: int, n: int, k: int, dtype: str, xp: Any = np) -> list[Any]:
    """Return random A and B, so that op(A) op(B) is m x n, column-major."""
    rng = xp.random.default_rng(m + n + k)
    shapes = ((k, m) if form[0] == "T" else (m, k), (n, k) if form[1] == "T" else (k, n))
    return [xp.asarray(rng.standard_normal(s).astype(dtype), order="F") for s in shapes]


def _turned(form: str, a: Any, b: Any) -> tuple[Any, Any]:
    return (a.T if form[0] == "T" else a), (b.T if form[1] == "T" else b)


def compare(who: str, found: Any, left: Any, right: Any) -> None:
    """Raise unless a product of NumPy or CuPy arrays is that of their library, but for rounding."""
    largest = float(abs(left).max()) * float(abs(right).max())
    limit = 4 * left.shape[1] * np.finfo(found.dtype).eps * largest
    error = float(abs(found - left @ right).max())
    if not error <= limit:
        raise AssertionError(f"the product of {who} is off by {error:.1e}")


def check(blocks: Blocks | TensorBlocks, form: str, dtype: str) -> None:
    """Raise unless the kernel computes what NumPy does, also of ragged sizes."""
    import cupy

    for m, n, k in CHECKED:
        a, b = _factors(form, m, n, k, dtype, cupy)
        c = cupy.full((m, n), np.nan, dtype, order="F")
        product_call(blocks, form, a, b, c)()
        factors = _turned(form, a.get().astype(np.float64), b.get().astype(np.float64))
        compare(str(blocks), c.get(), *factors)


class _Bench:
    """Products of one type on the current GPU."""

    def __init__(self, run: StudyRun, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        known = {ORDINARY: peak(dtype)}
        if dtype == "float64":
            known[TENSOR_CORES] = tensor_peak(dtype)
        #: Flop/s that units can reach, of those of which it is known.
        self.peaks = {units: most for units, most in known.items() if most is not None}

    def timed(self, who: str, form: str, n: int, call: Call, most: float | None) -> Row:
        """Time a call, of whose units `most` is the peak."""
        self.run.report(f"{who}, {form}, {self.dtype}, n = {n}")
        taken = spread(samples(call, gpu_clock, self.run.sizes["samples"]))
        row = _row("products", "GPU", who, form, self.dtype, n, taken)
        return row | {"of peak": row["flop/s"] / most if most else None}

    def ours(self, who: str, blocks: Blocks | TensorBlocks, form: str, n: int) -> Row:
        """Time a kernel."""
        most = self.peaks.get(TENSOR_CORES if isinstance(blocks, TensorBlocks) else ORDINARY)
        row = self._product(who, form, n, most, partial(product_call, blocks, form))
        return row | {"parameters": str(blocks)}

    def library(self, form: str, n: int) -> Row:
        """Time cuBLAS."""
        from cupy import cublas

        def call(a: Any, b: Any, c: Any) -> Call:
            return lambda: cublas.gemm(form[0], form[1], a, b, out=c)

        return self._product(CUBLAS, form, n, max(self.peaks.values(), default=None), call)

    def _product(
        self, who: str, form: str, n: int, most: float | None, call: Callable[..., Call]
    ) -> Row:
        """Time what `call` makes of A, B and C, and check C."""
        import cupy

        a, b = _factors(form, n, n, n, self.dtype, cupy)
        c = cupy.full((n, n), np.nan, self.dtype, order="F")
        row = self.timed(who, form, n, call(a, b, c), most)
        compare(who, c, *_turned(form, a, b))
        return row

    def fastest(self, among: Sequence[Blocks | TensorBlocks]) -> Iterator[Row]:
        """Yield a row for each kernel that can run, and check it."""
        n = self.run.sizes["tuned at"]
        for blocks in among:
            try:
                check(blocks, "NN", self.dtype)
                row = self.ours(str(blocks), blocks, "NN", n)
            except Exception as error:
                if "too many resources" not in str(error).lower():
                    raise
                self.run.leave_out(f"{blocks}: it needs more than a multiprocessor has")
            else:
                yield row | {"table": "tuning"}

    def syrk(self, blocks: Blocks, n: int, width: int = 512) -> Iterator[Row]:
        """Yield the lower triangle of A A^T, by rectangles below the diagonal, and by cuBLAS."""
        import cupy
        from cupy import cublas

        (a, _), c = _factors("NT", n, n, n, self.dtype, cupy), cupy.zeros((n, n), self.dtype, "F")
        parts = [
            product_call(blocks, "NT", a[j:], a[j : j + width], c[j:, j : j + width])
            for j in range(0, n, width)
        ]

        def by_rectangles() -> None:
            for part in parts:
                part()

        by_cublas = partial(cublas.syrk, "N", a, out=c, lower=True)
        for who, call, most in (
            ("fastest, rectangles", by_rectangles, self.peaks.get(ORDINARY)),
            (CUBLAS, by_cublas, max(self.peaks.values(), default=None)),
        ):
            c.fill(np.nan)
            yield self.timed(who, "syrk", n, call, most)
            # What is above the diagonal does not count.
            compare(f"{who} (syrk)", cupy.tril(c) + cupy.tril(a @ a.T, -1).T, a, a.T)


def _row(
    table: str, place: str, who: str, form: str, dtype: str, n: int, taken: dict[str, Any]
) -> Row:
    flops = n**3 * (1 if form == "syrk" else 2)
    return {
        "table": table, "place": place, "who": who, "form": form, "type": dtype, "n": n, **taken,
        "flop/s": flops / taken["seconds"],
    }  # fmt: skip


def _on_gpu(run: StudyRun, dtype: str) -> Iterator[Row]:
    """Yield products of one type on the GPU: tuning, forms, sizes."""
    bench, itemsize = _Bench(run, dtype), np.dtype(dtype).itemsize
    tuning = list(bench.fastest(points(itemsize)[: run.sizes["points"]]))
    yield from tuning
    by_name = {str(blocks): blocks for blocks in points(itemsize)}
    best = by_name[min(tuning, key=lambda row: row["seconds"])["who"]]
    ours: dict[str, Blocks | TensorBlocks] = {
        "Volkov's": VOLKOV, "MAGMA's": MAGMA, "fastest": best,
    }  # fmt: skip
    for blocks in ours.values():
        for form in FORMS:
            check(blocks, form, dtype)
    if dtype == "float64":
        yield from (tensor := list(_tensor(run, bench)))
        if tensor:
            names = {str(blocks): blocks for blocks in TENSOR}
            ours[TENSOR_CORES] = names[min(tensor, key=lambda row: row["seconds"])["who"]]
    for n in run.sizes["orders"]:
        for form in FORMS:
            yield bench.library(form, n)
            for who, blocks in ours.items():
                if form == "NN" or isinstance(blocks, Blocks):
                    yield bench.ours(who, blocks, form, n)
    yield from bench.syrk(best, run.sizes["tuned at"])
    for units, most in bench.peaks.items():
        yield {"table": "peak", "type": dtype, "units": units, "flop/s": most}


def _tensor(run: StudyRun, bench: _Bench) -> Iterator[Row]:
    """Yield products by tensor cores, of the kernels that the GPU can run."""
    room = attribute("MaxSharedMemoryPerBlockOptin")
    able = [
        blocks
        for blocks in TENSOR
        if capability() >= (90 if blocks.deep else 80) and blocks.dynamic_shared <= room
    ]
    if len(able) < len(TENSOR):
        run.leave_out(f"{len(TENSOR) - len(able)} kernels for tensor cores that the GPU has not")
    yield from bench.fastest(able)


def _on_cpu(run: StudyRun, dtype: str) -> Iterator[Row]:
    """Yield products by the CPU's BLAS."""
    letter = "s" if dtype == "float32" else "d"
    multiply: Callable[..., Any] = getattr(scipy.linalg.blas, f"{letter}gemm")
    for n in run.sizes["orders on the CPU"]:
        for form in FORMS:
            run.report(f"BLAS, {form}, {dtype}, n = {n}")
            a, b = _factors(form, n, n, n, dtype)
            c = np.empty((n, n), dtype, order="F")
            call = partial(
                multiply, 1.0, a, b, c=c, overwrite_c=1, trans_a=form[0] == "T",
                trans_b=form[1] == "T",
            )  # fmt: skip
            taken = spread(samples(call, host_clock, run.sizes["samples"]))
            compare("BLAS", c, *_turned(form, a, b))
            yield _row("products", "CPU", "BLAS", form, dtype, n, taken)


def measure(run: StudyRun) -> Iterator[Row]:
    """Time products by BLAS on the CPU, and by all kernels on a GPU."""
    on_gpu = run.has_gpus(1, "kernels for products")
    for dtype in DTYPES:
        yield from _on_cpu(run, dtype)
        if on_gpu:
            yield from _on_gpu(run, dtype)


def find(rows: Rows) -> list[str]:
    """Say how near the kernels come to cuBLAS, and what they are."""
    found = []
    for place, dtype in ((place, dtype) for place in ("GPU", "CPU") for dtype in DTYPES):
        shown = rows_of(rows, "products", place=place, type=dtype, form="NN")
        # A size without a ragged end, if there is one.
        n = max(values_of(shown, "n"), key=lambda n: (n % 32 == 0, n), default=0)
        best = {row["who"]: row for row in rows_of(shown, "products", n=n)}
        if place == "CPU" and best:
            speed = in_units(best["BLAS"]["flop/s"], "flop/s")
            found.append(f"The CPU's BLAS has {speed} in {dtype} at n = {n}.")
        elif best:
            library = best[CUBLAS]
            texts = [
                f"{who} kernel {percent(row['flop/s'] / library['flop/s'])}{_of_peak(row)}"
                for who, row in best.items()
                if who != CUBLAS
            ]
            found.append(
                f"In {dtype} at n = {n} cuBLAS has {in_units(library['flop/s'], 'flop/s')}"
                f"{_of_peak(library)}, and of that {', '.join(texts)}; the fastest has blocks of "
                f"{best['fastest']['parameters']}."
            )
    return found


def _of_peak(row: Row) -> str:
    return f" ({percent(row['of peak'])} of the peak)" if row["of peak"] else ""


def draw(figure: Any, rows: Rows) -> None:
    """Draw the rates of products by form and size, and all points of the tuning."""
    tuning = rows_of(rows, "tuning")
    types = values_of(rows_of(rows, "products"), "type")
    axes = panels(figure, len(types) * (2 if tuning else 1))
    for panel, dtype in zip(axes, types, strict=False):
        shown = rows_of(rows, "products", type=dtype)
        whos = list(dict.fromkeys((row["place"], row["who"]) for row in shown))
        sizes = list(dict.fromkeys((row["form"], row["n"]) for row in shown))
        for i, (place, who) in enumerate(whos):
            chosen = rows_of(shown, "products", place=place, who=who)
            where = [sizes.index((row["form"], row["n"])) for row in chosen]
            how = style(i) | {"lw": 0}
            panel.plot(where, [row["flop/s"] / 1e12 for row in chosen], label=who, **how)
        labels = [f"{form} {n}" for form, n in sizes]
        panel.set_xticks(range(len(sizes)), labels, rotation=90)
        finish(panel, f"products in {dtype}", "", "Tflop/s", logarithmic="y")
    for panel, dtype in zip(axes[len(types) :], types, strict=False):
        speeds = sorted(row["flop/s"] / 1e12 for row in rows_of(tuning, "tuning", type=dtype))
        panel.plot(range(1, len(speeds) + 1), speeds, **style(0))
        for row in rows_of(rows, "peak", type=dtype):
            panel.axhline(row["flop/s"] / 1e12, color="0.3", lw=1)
        finish(panel, f"all points, {dtype}; lines: peaks", "point", "Tflop/s", logarithmic="")


STUDY = Study(
    name="gemm_kernel",
    question="How near does a readable kernel for products come to cuBLAS, and to the peak?",
    source="Volkov and Demmel 2008, 4; MAGMA's GEMM for Fermi",
    original="60 % faster than the vendor's library then; 58 to 63 % of the peak",
    tables=(
        StudyTable(
            "products", "products of square matrices",
            {"place": WORD, "who": WORD, "form": WORD, "type": WORD, "n": str, **SECONDS,
             "flop/s": rate("flop/s"), "of peak": percent, "parameters": WORD},
        ),
        StudyTable("peak", "at the highest clock",
                   {"type": WORD, "units": WORD, "flop/s": rate("flop/s")}),
        StudyTable("tuning", "all points",
                   {"who": WORD, "type": WORD, "n": str, **SECONDS, "flop/s": rate("flop/s"),
                    "of peak": percent}),
    ),
    sizes={
        "orders": [512, 1000, 4096, 4097], "orders on the CPU": [512, 1000, 1024], "tuned at": 4096,
        "points": 100, "samples": 3,
    },
    quick={
        "orders": [256, 257], "orders on the CPU": [128, 129], "tuned at": 512, "points": 3,
        "samples": 2,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
