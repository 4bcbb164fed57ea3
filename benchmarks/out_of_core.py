"""Factorizations with memory for a part of the matrix, beside the same with all of it in memory.

    python benchmarks/out_of_core.py 32768 65536 --parts 4 16
    python benchmarks/out_of_core.py 110000 --solve
    python benchmarks/out_of_core.py 200000 --solve --gpus 4 --pageable
    python benchmarks/out_of_core.py 6000 --mapped --parts 4

On a GPU, the matrix is in pinned memory and overwritten; `--mapped`: on the CPU, in a file that is
mapped into memory.  Contenders in turns.  The traffic between host and worker stands beside a lower
bound: with memory for M words, the n^3/3 (Cholesky n^3/6, QR 2 n^3/3) multiplications move at least
that number over sqrt(8 M), less M (Hong and Kung; Irony, Toledo and Tiskin), and no less than the
matrix there and back.  `--solve`: LU without contenders, and a known right-hand side: its
solution's error, and the scaled residual of the High-Performance Linpack benchmark.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.tiles.arrays.transfer import gpu_count, pinned_empty
from hetero_la.tiles.kernels.cpu.device import usable_cores

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cho_factor, "qr": hetero_la.qr_factor
}  # fmt: skip
#: Multiplications of a factorization of order n, over n^3.
MULTIPLICATIONS = {"lu": 1 / 3, "cholesky": 1 / 6, "qr": 2 / 3}
_BLOCK = 256


def columns_of(n: int, start: int, routine: str) -> np.ndarray:
    """Some columns of a random matrix, the same whenever they are made."""
    block = np.random.default_rng(start).random((min(_BLOCK, n - start), n)).T - 0.5
    if routine == "cholesky":
        own = np.arange(block.shape[1])
        block[start + own, own] += n
    return block


def each_block(n: int, routine: str, use: Callable[[slice, np.ndarray], Any]) -> list[Any]:
    """Call a function for each block of columns of a random matrix, by threads."""

    def made(start: int) -> Any:
        return use(slice(start, start + _BLOCK), columns_of(n, start, routine))

    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(made, range(0, n, _BLOCK)))


def fill(a: np.ndarray, routine: str) -> np.ndarray:
    """Fill a matrix; return the sums of its rows."""

    def put(columns: slice, block: np.ndarray) -> np.ndarray:
        a[:, columns] = block
        return block.sum(axis=1)

    return np.sum(each_block(len(a), routine, put), axis=0)


def lower_bound(routine: str, n: int, memory: int, itemsize: int = 8) -> float:
    """Bytes that have to move between a worker with so many bytes of memory and the host."""
    words = memory / itemsize
    products = MULTIPLICATIONS[routine] * n**3 / math.sqrt(8 * words) - words
    once = n * n * (1 if routine == "cholesky" else 2)
    return itemsize * max(products, once)


class Case:
    """One factorization of one matrix, with more or less memory."""

    def __init__(self, routine: str, n: int, mapped: Path | None, client: Any) -> None:
        self.routine, self.n, self.client = routine, n, client
        self.nbytes = 8 * n * n
        if mapped is None:
            self.a = pinned_empty((n, n), np.float64)
        else:
            self.a = np.memmap(mapped, np.float64, "w+", shape=(n, n), order="F")
        self.plans: dict[str, Any] = {}

    def run(self, name: str, a: np.ndarray, **options: Any) -> float:
        """Factor the matrix anew; return the seconds."""
        fill(a, self.routine)
        lower = {"lower": True} if self.routine == "cholesky" else {}
        began = time.perf_counter()
        factors = FUNCTIONS[self.routine](
            a, overwrite_a=True, check_finite=False, client=self.client, **lower, **options
        )
        taken = time.perf_counter() - began
        self.plans[name] = factors.plan
        return taken

    def contenders(self, parts: list[int], mapped: bool) -> dict[str, Callable[[], float]]:
        """All of the matrix in memory, and parts of it."""
        whole = np.empty_like(self.a, order="F", subok=False) if mapped else self.a
        found = {"all in memory": lambda: self.run("all in memory", whole)}
        for part in parts:
            name = f"1/{part} of it"
            memory = self.nbytes // part
            found[name] = lambda name=name, memory=memory: self.run(  # type: ignore[misc]
                name, self.a, memory=memory
            )
        return found


def compare(case: Case, parts: list[int], repeats: int, mapped: bool) -> None:
    """Measure the contenders in turns, and print a row for each."""
    contenders = case.contenders(parts, mapped)
    taken = [{name: run() for name, run in contenders.items()} for _ in range(repeats + 1)]
    medians = {name: statistics.median(t[name] for t in taken[1:]) for name in contenders}
    for name, median in medians.items():
        plan = case.plans[name]
        moved = float(plan.simulate().bytes_host.sum())
        part = 1 if name == "all in memory" else int(name.split()[0][2:])
        bound = lower_bound(case.routine, case.n, case.nbytes // part)
        groups = 1 if plan.groups is None else plan.groups.count
        span = [t[name] for t in taken[1:]]
        print(
            f"{case.routine:9}{case.n:7} {name:15}{groups:4} groups {median:8.3f} s "
            f"({min(span):.3f} to {max(span):.3f}) {median / medians['all in memory']:6.2f} "
            f"x, predicted {plan.predicted_seconds / median:5.2f}, "
            f"{plan.flops / median / 1e12:7.2f} Tflop/s, {moved / 1e9:8.1f} GB moved "
            f"({moved / bound:.2f} x the bound, {moved / median / 1e9:.1f} GB/s)",
            flush=True,
        )


def solve(n: int, memory: str | None, pageable: bool, client: Any) -> None:
    """Factor a matrix in its place, and solve for a right-hand side whose solution is known."""
    began = time.perf_counter()
    a = np.empty((n, n), order="F") if pageable else pinned_empty((n, n), np.float64)
    b = fill(a, "lu")
    print(f"{n}: {a.nbytes / 1e9:.1f} GB made in {time.perf_counter() - began:.1f} s", flush=True)
    began = time.perf_counter()
    options = {} if memory is None else {"memory": memory}
    factors = hetero_la.lu_factor(
        a, overwrite_a=True, check_finite=False, client=client, **options
    )  # fmt: skip
    taken = time.perf_counter() - began
    plan = factors.plan
    print(plan.explain())
    print(f"factored in {taken:.2f} s, {plan.flops / taken / 1e12:.2f} Tflop/s", flush=True)
    began = time.perf_counter()
    x = hetero_la.lu_solve((factors.lu, factors.piv), b, check_finite=False)
    print(f"solved in {time.perf_counter() - began:.2f} s", flush=True)

    def part(columns: slice, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return block @ x[columns], abs(block).sum(axis=1)

    products, sums = (
        np.sum(parts, axis=0) for parts in zip(*each_block(n, "lu", part), strict=True)
    )
    largest = sums.max() * abs(x).max() + abs(b).max()
    scaled = abs(b - products).max() / (np.finfo(float).eps * largest * n)
    print(f"largest error {abs(x - 1).max():.1e}, HPL's scaled residual {scaled:.2g} (limit 16)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("orders", type=int, nargs="+")
    parser.add_argument("--parts", type=int, nargs="+", default=[4])
    parser.add_argument("--routines", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--solve", action="store_true")
    parser.add_argument("--memory", help="of each GPU, with --solve (default: all)")
    parser.add_argument(
        "--pageable", action="store_true", help="not in pinned memory, with --solve"
    )
    parser.add_argument("--gpus", type=int, default=1)
    args = parser.parse_args()
    gpus = 0 if args.mapped else min(gpu_count(), args.gpus)
    cluster = hetero_la.Cluster(gpus=gpus) if gpus else None
    client = cluster.private_client() if cluster else None
    with tempfile.TemporaryDirectory() as folder:
        mapped = Path(folder) / "a.bin" if args.mapped else None
        for n in args.orders:
            if args.solve:
                solve(n, args.memory, args.pageable, client)
                continue
            for routine in args.routines:
                case = Case(routine, n, mapped, client)
                compare(case, args.parts, args.repeats, args.mapped)


if __name__ == "__main__":
    main()
