"""LU side by side with its peers: medians of repeats in one run, as a table and JSON.

python benchmarks/lu.py                     the CPU: SciPy and dask.array.linalg
python benchmarks/lu.py --gpu 16384 32768   one GPU: cuSOLVER
python benchmarks/lu.py --gpus 4 65536      several GPUs: cuSOLVERMg, and without Dask
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import peers
from device_data import RandomStorage, random_columns

import hetero_la
from hetero_la.residuals import lu_ratio
from hetero_la.scheduler.dask_clients import worker_infos
from hetero_la.scheduler.dask_execution import run_local
from hetero_la.scheduler.threads import run_in_threads
from hetero_la.tiles.pivots import permutation

Row = dict[str, Any]


def measure(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Time all contenders in turn, so that drift of a shared machine hits each alike."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            taken = run()
            if repeat:  # the first is warm-up
                seconds[name].append(taken)
    return seconds


def rows_of(
    case: str, n: int, dtype: str, seconds: dict[str, list[float]], peer: str, ratio: float
) -> list[Row]:
    """Rows of the table: medians, rates and the ratio to the peer."""
    flops = 2 / 3 * n**3 * (4 if np.dtype(dtype).kind == "c" else 1)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return [
        {
            "case": case, "n": n, "who": name, "seconds": medians[name],
            "least": min(seconds[name]), "most": max(seconds[name]),
            "gflops": flops / medians[name] / 1e9,
            "times the peer's rate": medians[peer] / medians[name] if peer in medians else None,
            "residual": ratio if name.startswith("hetero_la") else None,
        }
        for name in seconds
    ]  # fmt: skip


def cpu(n: int, repeats: int, dtype: str) -> list[Row]:
    """NumPy in, NumPy out, on the host's cores."""
    a = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
    factors: list[Any] = []

    def ours() -> float:
        factors[:] = [hetero_la.lu_factor(a)]
        return factors[0].timing.seconds

    contenders: dict[str, Callable[[], float]] = {
        "hetero_la": ours,
        "scipy": lambda: peers.scipy_lu(a),
    }
    for chunk in (n // 8, n // 4):
        contenders[f"dask.array chunks {chunk}"] = lambda c=chunk: peers.dask_lu(a, c, 1)
    seconds = measure(contenders, repeats)
    return rows_of("CPU", n, dtype, seconds, "scipy", lu_ratio(a, *factors[0]))


def one_gpu(n: int, repeats: int, dtype: str, nb: int | None) -> list[Row]:
    """On the device, in place."""
    import cupy

    a = cupy.empty((n, n), dtype, order="F")

    def fill() -> None:
        for start in range(0, n, 2048):
            stop = min(start + 2048, n)
            a[:, start:stop] = random_columns(start, (n, stop - start), dtype)
        cupy.cuda.Device().synchronize()

    def ours() -> float:
        fill()
        factors = hetero_la.lu_factor(a, overwrite_a=True, check_finite=False, nb=nb)
        return factors.timing.seconds

    def cusolver() -> float:
        fill()
        return peers.cusolver_getrf(a)

    seconds = measure({"hetero_la": ours, "cuSOLVER": cusolver}, repeats)
    return rows_of("1 GPU", n, dtype, seconds, "cuSOLVER", _ratio_on_device(n, dtype, nb))


def _ratio_on_device(n: int, dtype: str, nb: int | None) -> float:
    with hetero_la.Cluster(gpus=1, cpus=0) as cluster:
        plan = _plan(cluster, n, dtype, nb)
        return _checked(cluster.private_client(), plan)


def _plan(cluster: Any, n: int, dtype: str, nb: int | None) -> Any:
    workers = [w for w in worker_infos(cluster.private_client()) if w.kind == "gpu"]
    return hetero_la.plan("lu", (n, n), dtype, workers=workers, nb=nb)


def _checked(client: Any, plan: Any) -> float:
    storage = RandomStorage(plan, check=True)
    outcome = run_local(client, plan.job(), storage)
    local = [outcome.values["ipiv", k] + plan.layout.row(k) for k in range(plan.layout.kt)]
    return storage.residual(permutation(np.concatenate(local), plan.layout.m))


def several_gpus(gpus: int, n: int, repeats: int, dtype: str, nb: int | None) -> list[Row]:
    """Columns distributed over the GPUs beforehand, and left there."""
    with hetero_la.Cluster(gpus=gpus, cpus=0) as cluster:
        client = cluster.private_client()
        plan = _plan(cluster, n, dtype, nb)
        devices = [worker.hetero_device for worker in cluster.workers.values()]

        def ours() -> float:
            storage = RandomStorage(plan)
            run_local(client, plan.job(), storage)
            return storage.seconds

        def threads() -> float:
            storage = RandomStorage(plan)
            run_in_threads(plan.job(), storage, devices)
            return storage.seconds

        seconds = measure({"hetero_la": ours, "hetero_la without Dask": threads}, repeats)
        ratio = _checked(client, plan)
    _free_all(gpus)
    if dtype == "float64" and peers.cusolvermg_library():
        seconds["cuSOLVERMg"] = _cusolvermg(gpus, n, repeats)
        _free_all(gpus)
    return rows_of(f"{gpus} GPUs", n, dtype, seconds, "cuSOLVERMg", ratio)


def _cusolvermg(gpus: int, n: int, repeats: int) -> list[float]:
    import cupy

    def fill(g: int, shard: Any) -> None:
        with cupy.cuda.Device(g):
            for start in range(0, shard.shape[0], 2048):
                stop = min(start + 2048, shard.shape[0])
                shard[start:stop] = random_columns(start + g, (n, stop - start), "float64").T
            cupy.cuda.Device().synchronize()

    solver = peers.CusolverMg(gpus, n, nb=256)
    return [solver.seconds(fill) for _ in range(repeats + 1)][1:]


def _free_all(gpus: int) -> None:
    import cupy

    for g in range(gpus):
        with cupy.cuda.Device(g):
            cupy.get_default_memory_pool().free_all_blocks()


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(
        f"{'case':<8}{'n':>7}  {'who':<26}{'median s':>10}{'least':>9}{'most':>9}"
        f"{'Gflop/s':>10}{'x peer':>8}{'residual':>10}"
    )
    for row in rows:
        peer, residual = row["times the peer's rate"], row["residual"]
        print(
            f"{row['case']:<8}{row['n']:>7}  {row['who']:<26}{row['seconds']:>10.4f}"
            f"{row['least']:>9.4f}{row['most']:>9.4f}{row['gflops']:>10.1f}"
            f"{'-' if peer is None else format(peer, '.2f'):>8}"
            f"{'' if residual is None else format(residual, '.3f'):>10}"
        )


def main(argv: list[str] | None = None) -> int:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cpu", type=int, nargs="*", metavar="N", help="orders on the CPU")
    parser.add_argument("--gpu", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--gpus", type=int, nargs="+", default=[], metavar=("G", "N"))
    parser.add_argument("--nb", type=int)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    orders = args.cpu if args.cpu is not None else [] if args.gpu or args.gpus else [4096]
    rows = [row for n in orders for row in cpu(n, args.repeats, args.dtype)]
    for n in args.gpu:
        rows += one_gpu(n, args.repeats, args.dtype, args.nb)
    for n in args.gpus[1:]:
        rows += several_gpus(args.gpus[0], n, args.repeats, args.dtype, args.nb)
    show(rows)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
