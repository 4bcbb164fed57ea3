"""LU of Dask arrays of CuPy blocks on the GPUs of this process, beside the plain run.

    python benchmarks/dask_gpus.py
    python benchmarks/dask_gpus.py --n 32768 --gpus 2 --where each --order C --repeats 5

In turns, medians of repeats: "plain" is ``lu_factor(a, overwrite_a=True)`` of a column-major CuPy
array on the first GPU, by the same workers; "columns there" a run whose columns are with their
GPUs before the clock starts, and stay there; "Dask" ``lu_factor(x)`` of a Dask array whose blocks
are in memory, until all blocks of the factors are, from the call to the last block.  The blocks
are on the first GPU, or each on the next one, row-major or column-major.  "error" is the scaled
residual (LAPACK accepts 30), from the product with a random vector.

``--breakdown`` also tells when Dask's tasks of each kind began and ended, in one more run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dask.array as da
import distributed
import numpy as np
from harness import write_json

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.studies.factorizations.device_data import RandomStorage, random_columns
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.processes import MATRIX, wait_until_gone
from hetero_la.tiles.storage.pivots import permutation

Row = dict[str, Any]


class Blocks(NamedTuple):
    """How the blocks of a matrix lie: on "one" GPU or "each" on the next one, in which order."""

    chunk: int
    where: str
    order: str

    def gpu(self, place: tuple[int, int], gpus: int) -> int:
        """The GPU of a block."""
        return sum(place) % gpus if self.where == "each" else 0


def block_of_matrix(seed: int, shape: tuple[int, int], order: str, gpu: int, dtype: str) -> Any:
    """A random block on a GPU."""
    import cupy

    with cupy.cuda.Device(gpu):
        block = random_columns(seed, shape, dtype)
        block = cupy.ascontiguousarray(block) if order == "C" else block
        cupy.cuda.get_current_stream().synchronize()
        return block


def on_gpus(client: Any, n: int, blocks: Blocks, dtype: str) -> da.Array:
    """A Dask array whose blocks are in the memory of the GPUs of the workers that hold them."""
    import cupy

    gpus = {w.device: w.address for w in worker_infos(client) if w.kind == "gpu"}
    sizes = da.core.normalize_chunks(blocks.chunk, (n, n))
    name, made = f"{MATRIX}{uuid.uuid4()}", {}
    for i, j in np.ndindex(len(sizes[0]), len(sizes[1])):
        gpu = blocks.gpu((i, j), len(gpus))
        shape = sizes[0][i], sizes[1][j]
        made[name, i, j] = client.submit(
            block_of_matrix, i * len(sizes[1]) + j, shape, blocks.order, gpu, dtype,
            key=(name, i, j), workers=[gpus[gpu]],
        )  # fmt: skip
    distributed.wait(list(made.values()))
    return da.Array(made, name, sizes, meta=cupy.empty((0, 0), dtype))


def factor(x: da.Array) -> Any:
    """Factors whose blocks are all in memory."""
    factors = hetero_la.lu_factor(x, check_finite=False).persist()
    distributed.wait(list(factors))
    return factors


def error_of(client: Any, x: da.Array, factors: Any) -> float:
    """||P A v - L U v|| for a random v, scaled as in `device_residuals`."""
    n = len(x)
    v = np.random.default_rng(0).standard_normal(n).astype(x.dtype)
    v = v / np.linalg.norm(v)
    av, sums = np.zeros_like(v), np.zeros(n)
    for (i, j), block in _in_turn(client, x):
        row, column = sum(x.chunks[0][:i]), sum(x.chunks[1][:j])
        rows, columns = block.shape
        av[row : row + rows] += _times(block, v[column : column + columns])
        sums[column : column + columns] += _sums(block)
    uv, luv = np.zeros_like(v), np.zeros_like(v)
    for part, given, into in (("triu", v, uv), ("tril", uv, luv)):
        start = 0
        for _, block in _in_turn(client, factors.lu):
            into += _times(_triangle(block, start, part), given[start : start + block.shape[1]])
            start += block.shape[1]
    luv += uv  # the unit diagonal of L
    perm = permutation(factors.piv.compute().get(), n)
    eps = np.finfo(x.dtype).eps / 2
    return float(np.linalg.norm(av[perm] - luv) / (n * sums.max() * eps) * np.sqrt(n))


def _in_turn(client: Any, x: da.Array) -> Iterator[tuple[tuple[int, int], Any]]:
    for place in np.ndindex(x.numblocks):
        (future,) = distributed.futures_of(x.blocks[place].persist())
        yield place, future.result()


def _times(block: Any, v: np.ndarray) -> np.ndarray:
    import cupy

    with cupy.cuda.Device(block.device.id):
        return (block @ cupy.asarray(v)).get()


def _sums(block: Any) -> np.ndarray:
    import cupy

    with cupy.cuda.Device(block.device.id):
        return abs(block).sum(axis=0).get()


def _triangle(block: Any, start: int, part: str) -> Any:
    """U, or L without its diagonal, of a block of columns from `start` on."""
    import cupy

    with cupy.cuda.Device(block.device.id):
        return cupy.triu(block, -start) if part == "triu" else cupy.tril(block, -start - 1)


class Bench:
    """Runs on the workers of a cluster."""

    def __init__(self, cluster: Any, n: int, dtype: str) -> None:
        self.client, self.n, self.dtype = cluster.get_client(), n, dtype
        self.workers = [w for w in worker_infos(self.client) if w.kind == "gpu"]

    def plain(self, a: Any) -> float:
        """Seconds of the run of an array on the first GPU, in its place."""
        import cupy

        with cupy.cuda.Device(0):
            for start in range(0, self.n, 4096):
                columns = a[:, start : start + 4096]
                columns[...] = random_columns(start, columns.shape, self.dtype)
            cupy.cuda.get_current_stream().synchronize()
        return seconds_of(lambda: hetero_la.lu_factor(a, overwrite_a=True, check_finite=False))

    def columns_there(self) -> float:
        """Seconds of a run whose columns are with their GPUs, and stay there."""
        plan = hetero_la.plan("lu", (self.n, self.n), self.dtype, workers=self.workers)
        job, storage = plan.job(), RandomStorage(plan)
        return seconds_of(lambda: run_local(self.client, job, storage))

    def dask(self, x: da.Array) -> float:
        """Seconds of the run of a Dask array."""
        wait_until_gone(self.client, but=MATRIX)
        began = time.perf_counter()
        factors = factor(x)
        taken = time.perf_counter() - began
        del factors
        return taken

    def breakdown(self, x: da.Array) -> None:
        """Print when the tasks of a run began and ended, in milliseconds."""
        wait_until_gone(self.client, but=MATRIX)
        with distributed.get_task_stream(self.client) as stream:
            began = time.time()
            lazy = hetero_la.lu_factor(x, check_finite=False)
            built = time.time()
            factors = lazy.persist()
            sent = time.time()
            distributed.wait(list(factors))
            ended = time.time()
            time.sleep(0.2)
        spans = defaultdict(list)
        for task in stream.data:
            kind = str(task["key"]).split("'")[1] if "'" in str(task["key"]) else task["key"]
            kind = "-".join(kind.split("-")[:3])
            spans[kind] += [(s["start"], s["stop"], s["action"]) for s in task["startstops"]]
        print(
            f"    called 0.0, graph {1e3 * (built - began):.1f}, sent {1e3 * (sent - began):.1f}, "
            f"ended {1e3 * (ended - began):.1f}"
        )
        for kind, found in sorted(spans.items(), key=lambda item: min(item[1])):
            for action in sorted({a for *_, a in found}):
                mine = [(s, e) for s, e, a in found if a == action]
                first, last = min(s for s, _ in mine), max(e for _, e in mine)
                print(
                    f"    {kind:<22}{action:<10}{len(mine):>4} from {1e3 * (first - began):8.1f} "
                    f"to {1e3 * (last - began):8.1f}, busy {1e3 * sum(e - s for s, e in mine):8.1f}"
                )
        del factors


def measure(gpus: int, n: int, blocks: list[Blocks], args: argparse.Namespace) -> list[Row]:
    """The rows of one order on some GPUs."""
    import cupy

    seconds: dict[str, list[float]] = defaultdict(list)
    errors: dict[str, float] = {}
    with hetero_la.Cluster(gpus=gpus, cpus=0) as cluster, cluster.get_client() as client:
        bench = Bench(cluster, n, args.dtype)
        with cupy.cuda.Device(0):
            a = cupy.empty((n, n), args.dtype, order="F")
        contenders: dict[str, Callable[[], float]] = {
            "plain": lambda: bench.plain(a), "columns there": bench.columns_there
        }  # fmt: skip
        for one in blocks:
            x = on_gpus(client, n, one, args.dtype)
            name = f"Dask, {one.order}, {one.where}"
            for repeat in range(args.repeats + 1):
                for who, run in {**contenders, name: lambda x=x: bench.dask(x)}.items():
                    taken = run()
                    if repeat:  # the first is warm-up
                        seconds[who].append(taken)
            if args.breakdown:
                bench.breakdown(x)
            if args.check:
                errors[name] = error_of(client, x, factor(x))
            del x
    medians = {who: statistics.median(taken) for who, taken in seconds.items()}
    return [
        {
            "gpus": gpus, "n": n, "chunk": args.chunk, "who": who, "seconds": medians[who],
            "least": min(taken), "most": max(taken),
            "times plain": medians[who] / medians["plain"],
            "times columns there": medians[who] / medians["columns there"],
            "error": errors.get(who),
        }
        for who, taken in seconds.items()
    ]  # fmt: skip


def show(rows: list[Row]) -> None:
    """Print rows."""
    for row in rows:
        error = "" if row["error"] is None else f"{row['error']:.2g}"
        print(
            f"{row['gpus']:<6}{row['n']:<8}{row['who']:<18}{row['seconds']:>9.4f}"
            f"{row['least']:>9.4f}{row['most']:>9.4f}{row['times plain']:>9.2f}"
            f"{row['times columns there']:>9.2f}{error:>9}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--where", nargs="+", choices=["one", "each"], default=["one", "each"])
    parser.add_argument("--order", nargs="+", choices=["C", "F"], default=["C", "F"])
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--breakdown", action="store_true")
    parser.add_argument("--check", action="store_true", help="show errors, too")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    print(
        f"{'GPUs':<6}{'n':<8}{'who':<18}{'median s':>9}{'least':>9}{'most':>9}{'/ plain':>9}"
        f"{'/ there':>9}{'error':>9}"
    )
    rows: list[Row] = []
    for gpus in args.gpus:
        places = args.where if gpus > 1 else ["one"]
        blocks = [Blocks(args.chunk, where, order) for where in places for order in args.order]
        for n in args.n:
            rows += (found := measure(gpus, n, blocks, args))
            show(found)
    write_json(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
