"""Products of a matrix with a vector: dense, banded and sparse, and whether moving the matrix pays.

Such a product reads every entry once, so that its time is bounded by bytes over bandwidth.  That is
measured beside it: the larger of the rates of a copy and of a sum, which only reads.  Products are
with copies of the matrix in turn, which together are several times as large as the last cache.  A
GPU wins if the matrix is there already, or is used often enough to pay for its way.  The last table
is of banded systems, for which a dense factorization, on whatever device, does far too much work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

import hetero_la
from hetero_la.cli.main import main
from hetero_la.studies.common.caches import copies_beyond, in_rotation, last_caches
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.cuda import bandwidth_of_pins, cuda_source, kernel, launch
from hetero_la.studies.common.plots import bars, finish, line, panels
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
    gpu_clock,
    host_clock,
    samples,
    spread,
    synchronous_clock,
)  # fmt: skip
from hetero_la.tiles.arrays.counted import in_seconds, in_units

SOURCES = (cuda_source("matvec", "REAL=double"),)
_THREADS = 128
#: Diagonals below and above, of the banded matrices, and entries in a row of the sparse ones.
LOWER, UPPER, ENTRIES = 8, 8, 40
DENSE, BANDED, SPARSE = "dense", "banded", "sparse"
#: Calls that return the product, by who makes it.
Products = dict[str, Callable[[], Any]]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[0]).standard_normal(shape)


def random_sparse(n: int) -> scipy.sparse.csr_array:
    """Return a sparse matrix of order n, in rows of very different lengths.

    Examples
    --------
    >>> a = random_sparse(200)
    >>> a.shape, 4000 < a.nnz < 12000
    ((200, 200), True)
    """
    rng = np.random.default_rng(n)
    lengths = np.minimum(rng.exponential(ENTRIES, n).astype(int), n)
    rows = np.repeat(np.arange(n, dtype=np.int32), lengths)  # kernels read 32-bit indices
    columns = rng.integers(0, n, len(rows), dtype=np.int32)
    entries = scipy.sparse.coo_array((rng.standard_normal(len(rows)), (rows, columns)), (n, n))
    return entries.tocsr()


def cases(orders: Sequence[int], rows: int) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield matrices: their kind, themselves, what multiplies exactly, and their bytes.

    Dense ones have the orders, and the banded and the sparse one have so many rows.
    """
    for n in orders:
        dense = _random(n, n)
        yield DENSE, dense, dense, dense.nbytes
    band = _random(LOWER + UPPER + 1, rows)
    yield BANDED, band, _diagonals(band), band.nbytes
    sparse = random_sparse(rows)
    nbytes = sum(part.nbytes for part in (sparse.data, sparse.indices, sparse.indptr))
    yield SPARSE, sparse, sparse, nbytes


def _diagonals(band: np.ndarray) -> scipy.sparse.dia_array:
    """Return a banded matrix as SciPy's."""
    n = band.shape[1]
    return scipy.sparse.dia_array((band, range(UPPER, -LOWER - 1, -1)), (n, n))


def on_cpu(kind: str, a: Any, x: np.ndarray) -> Products:
    """Return the CPU's ways to multiply."""
    if kind == DENSE:
        by_columns = np.asfortranarray(a)
        return {"NumPy, row-major": lambda: a @ x, "NumPy, column-major": lambda: by_columns @ x}
    if kind == BANDED:
        multiply, n = scipy.linalg.blas.dgbmv, len(x)
        band = np.asfortranarray(a)
        return {"BLAS gbmv": lambda: multiply(n, n, LOWER, UPPER, 1.0, band, x)}
    return {"SciPy CSR": lambda: a @ x}


def on_gpu(kind: str, a: Any, x: np.ndarray) -> Products:
    """Return the ways of the current GPU, by kernels and by libraries."""
    import cupy
    import cupyx.scipy.sparse

    n, on_device = len(x), cupy.asarray(x)

    def ours(name: str, *matrix: Any) -> Callable[[], Any]:
        function = kernel(SOURCES[0], name)
        y = cupy.full(n, np.nan)  # entries that no thread writes are noticed
        threads = n * (32 if name.endswith("warps") else 1)
        sizes = (n, n) if kind == DENSE else (n,)

        def run() -> Any:
            launch(function, -(-threads // _THREADS), _THREADS, *matrix, on_device, y, *sizes)
            return y

        return run

    if kind == DENSE:
        rows, columns = cupy.asarray(a), cupy.asarray(a, order="F")
        return {
            "a thread a row, row-major": ours("dense_by_threads", rows, n, 1),
            "a thread a row, column-major": ours("dense_by_threads", columns, 1, n),
            "a warp a row, row-major": ours("dense_by_warps", rows, n, 1),
            "cuBLAS, row-major": lambda: rows @ on_device,
            "cuBLAS, column-major": lambda: columns @ on_device,
        }
    if kind == BANDED:
        band = cupy.asarray(a)
        by_rows = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(_diagonals(a)))
        return {
            "a thread a row": ours("band_by_threads", band, LOWER, UPPER),
            "a warp a row": ours("band_by_warps", band, LOWER, UPPER),
            "cuSPARSE, as CSR": lambda: by_rows @ on_device,
        }
    sparse = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(a))
    parts = (sparse.data, sparse.indices, sparse.indptr)
    return {
        "a thread a row": ours("sparse_by_threads", *parts),
        "a warp a row": ours("sparse_by_warps", *parts),
        "cuSPARSE": lambda: sparse @ on_device,
    }


def _checked(who: str, call: Callable[[], Any], wanted: np.ndarray) -> Call:
    """Return the call; raise unless it gives what SciPy does."""
    found = call()
    found = found.get() if hasattr(found, "get") else found
    limit = 1e-11 * max(np.abs(wanted).max(), 1.0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit, err_msg=who)
    return call


def _products(run: StudyRun) -> Iterator[Row]:
    """Yield times of all products, with the share of the bandwidth that they use."""
    speed: dict[str, float] = {}
    for place in ["CPU", "GPU"] if run.gpus else ["CPU"]:
        nbytes = max(run.sizes["copied"], int(run.sizes["caches"] * last_caches(place)))
        for what, found in _bandwidths(place, nbytes).items():
            of_pins = found / bandwidth_of_pins() if place == "GPU" else None
            yield {
                "table": "bandwidth", "place": place, "what": what, "bytes/s": found,
                "of pins": of_pins,
            }  # fmt: skip
            speed[place] = max(found, speed.get(place, 0.0))
    for kind, a, exact, nbytes in cases(run.sizes["orders"], run.sizes["rows"]):
        operations = 2 * (exact.nnz if scipy.sparse.issparse(exact) else exact.size)
        for place, bandwidth in speed.items():
            for row in _timed(run, place, kind, a, exact, nbytes):
                rate_of_bytes = nbytes / row["seconds"]
                yield row | {
                    "flop/s": operations / row["seconds"], "bytes/s": rate_of_bytes,
                    "of bound": rate_of_bytes / bandwidth,
                }  # fmt: skip


def _timed(run: StudyRun, place: str, kind: str, a: Any, exact: Any, nbytes: int) -> Iterator[Row]:
    """Yield times of the ways to multiply by a matrix, of which no copy stays in a cache."""
    ways: Callable[..., Products] = on_cpu if place == "CPU" else on_gpu
    clock: Clock = host_clock if place == "CPU" else gpu_clock
    n = exact.shape[1]
    x = _random(n)
    wanted = exact @ x
    count = copies_beyond(last_caches(place), run.sizes["caches"], nbytes)
    copies = [ways(kind, a.copy(), x) for _ in range(count)]
    for who in copies[0]:
        run.report(f"{kind}, {place}, {who}, n = {n}")
        calls = [_checked(who, products[who], wanted) for products in copies]
        found = spread(samples(in_rotation(calls), clock))
        yield {
            "table": "products", "kind": kind, "place": place, "who": who, "n": n,
            "copies": count, **found,
        }  # fmt: skip


def _bandwidths(place: str, nbytes: int) -> dict[str, float]:
    """Return the bytes that a copy reads and writes, and a sum reads, in a second."""
    xp: Any = np
    if place == "GPU":
        import cupy

        xp = cupy
    source, target = (xp.ones(nbytes // 8) for _ in range(2))
    calls: dict[str, tuple[int, Call]] = {
        "copy": (2 * nbytes, partial(xp.copyto, target, source)),
        # NumPy's sum has one thread, its product those of BLAS.
        "sum": (nbytes, partial(np.dot, source, source) if xp is np else source.sum),
    }
    clock: Clock = host_clock if place == "CPU" else gpu_clock
    return {what: moved / min(samples(call, clock)) for what, (moved, call) in calls.items()}


def _moves(run: StudyRun) -> Iterator[Row]:
    """Yield the parts of a product whose matrix is on the host, and how many make up for it."""
    import cupy

    n = run.sizes["moved"]
    a, x = _random(n, n), _random(n)
    on_device, vector = cupy.full((n, n), np.nan), cupy.asarray(x)
    on_device.set(a)
    _checked("cuBLAS, of what came up", lambda: on_device @ vector, a @ x)
    product = on_device @ vector
    parts: dict[str, Call] = {
        "allocate": lambda: cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(a.nbytes)),
        "up": lambda: on_device.set(a),
        "compute": lambda: on_device @ vector,
        "down": product.get,
    }
    seconds = {}
    for what, call in parts.items():
        found = spread(samples(call, synchronous_clock))
        seconds[what] = found["seconds"]
        yield {"table": "moves", "what": what, "n": n, **found}
    there = spread(samples(lambda: a @ x))
    yield {"table": "moves", "what": "on the CPU instead", "n": n, **there}
    saved = there["seconds"] - seconds["compute"] - seconds["down"]
    pays = (seconds["allocate"] + seconds["up"]) / saved if saved > 0 else None
    yield {
        "table": "pays", "n": n, "products": pays, "there": 2 * n * n / seconds["compute"],
        "with transfers": 2 * n * n / sum(seconds.values()),
    }  # fmt: skip


def _systems(run: StudyRun) -> Iterator[Row]:
    """Yield times of a banded system: by a banded solver, and by dense ones."""
    n = run.sizes["solved"]
    band = _random(LOWER + UPPER + 1, n)
    band[UPPER] = 4.0 * (LOWER + UPPER)
    dense = _diagonals(band).toarray()
    b = _random(n)
    wanted = scipy.linalg.solve_banded((LOWER, UPPER), band, b)
    calls: Products = {
        "SciPy, banded": lambda: scipy.linalg.solve_banded((LOWER, UPPER), band, b),
        "SciPy, dense": lambda: scipy.linalg.solve(dense, b, assume_a="gen"),
        "hetero_la, told that it is banded": lambda: hetero_la.solve(dense, b, assume_a="banded"),
    }
    if run.gpus:
        import cupy

        on_device, right = cupy.asarray(dense), cupy.asarray(b)
        calls["cuSOLVER, dense"] = lambda: cupy.linalg.solve(on_device, right)
        calls["hetero_la on the GPU, banded"] = lambda: hetero_la.solve(
            on_device, right, assume_a="banded"
        )
    for who, call in calls.items():
        run.report(f"a banded system, {who}")
        clock = synchronous_clock if "GPU" in who or "cuSOLVER" in who else host_clock
        found = spread(samples(_checked(who, call, wanted), clock, run.sizes["solves"]))
        yield {"table": "systems", "who": who, "n": n, **found}


def measure(run: StudyRun) -> Iterator[Row]:
    """Time products, the way of a matrix to the GPU and back, and banded systems."""
    on_a_gpu = run.has_gpus(1, "kernels, cuBLAS and cuSPARSE, and the way to a GPU")
    yield from _products(run)
    if on_a_gpu:
        yield from _moves(run)
    yield from _systems(run)


def find(rows: Rows) -> list[str]:
    """Say what products reach, when moving pays, and what a dense solver of a band costs."""
    found = []
    for place in reversed(values_of(rows_of(rows, "products"), "place")):
        texts = []
        for kind in (DENSE, BANDED, SPARSE):
            shown = rows_of(rows, "products", place=place, kind=kind)
            largest = max(values_of(shown, "n"))  # small ones stay in a cache
            best = max(rows_of(shown, "products", n=largest), key=lambda row: row["of bound"])
            flops = in_units(best["flop/s"], "flop/s")
            texts.append(f"{kind} {percent(best['of bound'])} ({best['who']}, {flops})")
        bound = max(rows_of(rows, "bandwidth", place=place), key=lambda row: row["bytes/s"])
        of_pins = f" ({percent(bound['of pins'])} of the pins)" if bound["of pins"] else ""
        found.append(
            f"Of the {place}'s {in_units(bound['bytes/s'], 'B/s')}{of_pins} products use "
            f"{', '.join(texts)}."
        )
    for row in rows_of(rows, "pays"):
        pays = row["products"]
        often = "no number of products pays" if pays is None else f"{pays:.1f} products pay"
        found.append(
            f"For a dense matrix of order {row['n']} {often} for its way to the GPU: one does "
            f"{in_units(row['there'], 'flop/s')} there, and "
            f"{in_units(row['with transfers'], 'flop/s')} with that way."
        )
    seconds = {row["who"]: row["seconds"] for row in rows_of(rows, "systems")}
    banded = seconds["SciPy, banded"]
    dense = min(taken for who, taken in seconds.items() if who.endswith("dense"))
    found.append(
        f"A banded system takes {in_seconds(banded)} by SciPy's banded solver, and the best dense "
        f"one takes {dense / banded:.0f} times as long."
    )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw dense products over the order, all kinds as bars, the parts of a move, and systems."""
    moves, systems = rows_of(rows, "moves"), rows_of(rows, "systems")
    dense, kinds, *others = panels(figure, 4 if moves else 3)
    shown = rows_of(rows, "products", kind=DENSE)
    for i, (place, who) in enumerate(dict.fromkeys((r["place"], r["who"]) for r in shown)):
        drawn = [
            {**row, "GB/s": row["bytes/s"] / 1e9}
            for row in rows_of(shown, "products", place=place, who=who)
        ]
        line(dense, drawn, "n", "GB/s", who, i)
    finish(dense, "dense", "order n", "GB/s")
    most = max(row["n"] for row in shown)
    largest = [r for r in rows_of(rows, "products") if r["kind"] != DENSE or r["n"] == most]
    labels = [f"{r['kind']}, {r['place']}, {r['who']}" for r in largest]
    colours = [["CPU", "GPU"].index(row["place"]) for row in largest]
    bars(kinds, labels, [100 * row["of bound"] for row in largest], colours)
    finish(kinds, "of the bound", "%", "", logarithmic="")
    if moves:
        axes = others.pop(0)
        bars(axes, [row["what"] for row in moves], [1e3 * row["seconds"] for row in moves])
        finish(axes, f"a product of order {moves[0]['n']}", "ms", "", logarithmic="")
    milliseconds = [1e3 * row["seconds"] for row in systems]
    bars(others[0], [row["who"] for row in systems], milliseconds, logarithmic=True)
    finish(others[0], f"banded, n = {systems[0]['n']}", "ms", "", logarithmic="")


STUDY = Study(
    name="matvec",
    question="When does a GPU multiply a matrix with a vector faster, its way there included?",
    source="matrix-vector products on Tesla-class GPUs",
    original="37 to 50 Gflop/s on the device, under 1 Gflop/s with transfers",
    tables=(
        StudyTable(
            "bandwidth", "a copy, read and written, and a sum of squares, or a sum, which reads",
            {"place": WORD, "what": WORD, "bytes/s": rate("B/s"), "of pins": percent},
        ),
        StudyTable(
            "products", "y = A x, of copies of A in turn; the bound is A's bytes by the larger "
            "bandwidth",
            {"kind": WORD, "place": WORD, "who": WORD, "n": str, "copies": number(), **SECONDS,
             "flop/s": rate("flop/s"), "bytes/s": rate("B/s"), "of bound": percent},
        ),
        StudyTable("moves", "a dense product whose matrix is on the host, in pageable memory",
                   {"what": WORD, "n": str, **SECONDS}),
        StudyTable("pays", "products with the same matrix that pay for its way, and their rate",
                   {"n": str, "products": number(), "there": rate("flop/s"),
                    "with transfers": rate("flop/s")}),
        StudyTable("systems", "a banded system", {"who": WORD, "n": str, **SECONDS}),
    ),
    sizes={
        "orders": [512, 1024, 2016, 2047, 2048, 2049, 2080, 4096, 8192], "rows": 2**19,
        "caches": 3, "copied": 2**28, "moved": 8192, "solved": 4096, "solves": 3,
    },
    quick={
        "orders": [255, 256, 257], "rows": 2**12, "caches": 0.01, "copied": 2**22, "moved": 512,
        "solved": 256, "solves": 2,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
