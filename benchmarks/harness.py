"""Runs a factorization side by side with its peers: medians of repeats in one run."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import hetero_la
from hetero_la.cli.common.values import tiles
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.device_data import RandomStorage, random_columns
from hetero_la.studies.factorizations.problems import Factorization
from hetero_la.studies.factorizations.runs import free_gpus, seconds_in_turns
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import ArrayStorage
from hetero_la.tiles.storage.tile_sizes import TileSizes

Row = dict[str, Any]

#: A public function as it is; and the same programs, driven by Dask and by plain threads.
OURS, ON_DASK, IN_THREADS = "hetero_la", "hetero_la on Dask", "hetero_la without Dask"


@dataclass(frozen=True)
class Case:
    """A benchmark with the command line's choices."""

    benchmark: Factorization
    dtype: str
    repeats: int
    nb: TileSizes | str | None

    def measure(self, contenders: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Time all contenders in turn, so that drift of a shared machine hits each alike."""
        return seconds_in_turns(contenders, self.repeats)

    def rows(
        self, case: str, n: int, seconds: dict[str, list[float]], peer: str, ratio: float
    ) -> list[Row]:
        """Rows of the table: medians, rates and the ratio to the peer."""
        flops = hetero_la.plan(self.benchmark.routine, (n, n), self.dtype).flops
        medians = {name: statistics.median(taken) for name, taken in seconds.items()}
        return [
            {
                "routine": self.benchmark.routine, "case": case, "n": n, "who": name,
                "seconds": medians[name], "least": min(taken), "most": max(taken),
                "gflops": flops / medians[name] / 1e9,
                "times the peer's rate": medians[peer] / medians[name] if peer in medians else None,
                "residual": ratio if name.startswith(OURS) else None,
            }
            for name, taken in seconds.items()
        ]  # fmt: skip

    def on_device(self, a: Any, **options: Any) -> Any:
        """Factors of a CuPy array, in its place."""
        if self.benchmark.definite:
            options["lower"] = True
        return self.benchmark.factor(a, overwrite_a=True, check_finite=False, nb=self.nb, **options)

    def cpu(self, n: int) -> list[Row]:
        """NumPy in, NumPy out, on the host's cores."""
        a = self.benchmark.host_matrix(n, self.dtype)
        factors: list[Any] = []

        def ours() -> float:
            factors[:] = [self.benchmark.factor(a, nb=self.nb)]
            return float(factors[0].timing.seconds)

        contenders: dict[str, Callable[[], float]] = {
            OURS: ours, "scipy": lambda: peers.seconds_of(lambda: self.benchmark.scipy(a))
        }  # fmt: skip
        if dask := self.benchmark.dask:
            for chunk in (n // 8, n // 4):
                contenders[f"dask.array chunks {chunk}"] = partial(dask, a, chunk, 1)
        seconds = self.measure(contenders)
        return self.rows("CPU", n, seconds, "scipy", self.benchmark.ratio(a, factors[0]))

    def one_gpu(self, n: int) -> list[Row]:
        """On the device, in place."""
        import cupy

        a = cupy.empty((n, n), self.dtype, order="F")

        def ours() -> float:
            self.benchmark.fill(a)
            return float(self.on_device(a).timing.seconds)

        def cusolver() -> float:
            self.benchmark.fill(a)
            return self.benchmark.cusolver(a)

        caller = replace(calling_thread(), kind="gpu", device=0)
        plan = hetero_la.plan(
            self.benchmark.routine, (n, n), self.dtype, workers=(caller,), nb=self.nb
        )
        device = GpuDevice(0)

        def threads() -> float:
            self.benchmark.fill(a)
            job, storage = plan.job(), ArrayStorage(a, a)
            return peers.seconds_of(lambda: run_in_threads(job, storage, [device]))

        with hetero_la.Cluster(gpus=1, cpus=0) as cluster:

            def ours_on_dask() -> float:
                self.benchmark.fill(a)
                return float(self.on_device(a, client=cluster).timing.seconds)

            contenders = {OURS: ours, ON_DASK: ours_on_dask, IN_THREADS: threads}
            with cluster.get_client():  # which `ours` takes if the calling thread is too slow
                seconds = self.measure({**contenders, "cuSOLVER": cusolver})
            ratio = self._checked(cluster.private_client(), self.plan(cluster, n))
        return self.rows("1 GPU", n, seconds, "cuSOLVER", ratio)

    def plan(self, cluster: Any, n: int) -> Any:
        """For the GPUs of a cluster."""
        workers = [w for w in worker_infos(cluster.private_client()) if w.kind == "gpu"]
        return hetero_la.plan(
            self.benchmark.routine, (n, n), self.dtype, workers=workers, nb=self.nb
        )

    def storage(self, plan: Any) -> RandomStorage:
        """A random matrix whose columns are with their owners before the clock starts."""
        return RandomStorage(plan, self.benchmark.diagonal(plan.layout.n))

    def on_dask(self, client: Any, plan: Any, window: int | None = None) -> float:
        """Seconds of a run whose columns are there beforehand, and stay there."""
        job, storage = plan.job(), self.storage(plan)
        if window is not None:
            job = replace(job, window=window)
        return peers.seconds_of(lambda: run_local(client, job, storage))

    def _checked(self, client: Any, plan: Any) -> float:
        storage = self.storage(plan)
        outcome = run_local(client, plan.job(), storage)
        return self.benchmark.residual(storage, outcome, plan.layout)

    def several_gpus(self, gpus: int, n: int) -> list[Row]:
        """Columns distributed over the GPUs beforehand, and left there."""
        with hetero_la.Cluster(gpus=gpus, cpus=0) as cluster:
            client, plan = cluster.private_client(), self.plan(cluster, n)
            by_name = {w.name: w.hetero_device for w in cluster.workers.values()}
            devices = [by_name[worker.name] for worker in plan.workers]

            def threads() -> float:
                job, storage = plan.job(), self.storage(plan)
                return peers.seconds_of(lambda: run_in_threads(job, storage, devices))

            seconds = self.measure(
                {ON_DASK: lambda: self.on_dask(client, plan), IN_THREADS: threads}
            )
            ratio = self._checked(client, plan)
        free_gpus(gpus)
        if self.benchmark.multi and self.dtype == "float64" and peers.cusolvermg_library():
            seconds["cuSOLVERMg"] = self._cusolvermg(gpus, n)
            free_gpus(gpus)
        return self.rows(f"{gpus} GPUs", n, seconds, "cuSOLVERMg", ratio)

    def _cusolvermg(self, gpus: int, n: int) -> list[float]:
        import cupy

        nb, diagonal = 256, self.benchmark.diagonal(n)

        def fill(g: int, shard: Any) -> None:
            with cupy.cuda.Device(g):
                for local in range(0, len(shard), nb):
                    start = (local // nb * gpus + g) * nb
                    if start < n:
                        block = random_columns(start, (n, min(nb, n - start)), "float64", diagonal)
                        shard[local : local + block.shape[1]] = block.T
                cupy.cuda.Device().synchronize()

        solver = peers.CusolverMg(self.benchmark.multi, gpus, n, nb)
        return [solver.seconds(fill) for _ in range(self.repeats + 1)][1:]


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(
        f"{'routine':<9}{'case':<8}{'n':>7}  {'who':<26}{'median s':>10}{'least':>9}{'most':>9}"
        f"{'Gflop/s':>10}{'x peer':>8}{'residual':>10}"
    )
    for row in rows:
        peer, residual = row["times the peer's rate"], row["residual"]
        print(
            f"{row['routine']:<9}{row['case']:<8}{row['n']:>7}  {row['who']:<26}"
            f"{row['seconds']:>10.4f}{row['least']:>9.4f}{row['most']:>9.4f}{row['gflops']:>10.1f}"
            f"{'-' if peer is None else format(peer, '.2f'):>8}"
            f"{'' if residual is None else format(residual, '.3f'):>10}"
        )


def write_json(content: Any, path: str | None) -> None:
    """Write what was measured, where a file was asked for."""
    if path:
        with open(path, "w") as file:
            json.dump(content, file, indent=1)


def run(benchmark: Factorization, description: str, argv: list[str] | None = None) -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cpu", type=int, nargs="*", metavar="N", help="orders on the CPU")
    parser.add_argument("--gpu", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--gpus", type=int, nargs="+", default=[], metavar=("G", "N"))
    parser.add_argument("--nb", type=tiles)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    case = Case(benchmark, args.dtype, args.repeats, args.nb)
    orders = args.cpu if args.cpu is not None else [] if args.gpu or args.gpus else [4096]
    rows = [row for n in orders for row in case.cpu(n)]
    rows += [row for n in args.gpu for row in case.one_gpu(n)]
    rows += [row for n in args.gpus[1:] for row in case.several_gpus(args.gpus[0], n)]
    show(rows)
    write_json(rows, args.json)
    return 0
