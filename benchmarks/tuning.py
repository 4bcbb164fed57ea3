"""The tile size and look-ahead chosen by prediction, beside a full sweep of measured runs.

python benchmarks/tuning.py                       the CPU: LU, Cholesky, QR of n = 2048
python benchmarks/tuning.py --gpu 16384           one GPU, matrix on the device
python benchmarks/tuning.py --nb 96 128 192 --lookahead 0 1 2

The choice is what `hetero-la tune` takes, by the machine's profile (`hetero-la probe` makes
it).  All candidates run in turn, so that drift of a shared machine hits each alike; "loss"
is the measured time of the choice over that of the best candidate, less one.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Case, Row, write_json
from prediction import ROUTINES, study_parser

import hetero_la
from hetero_la.scheduler.dask_clients import worker_infos
from hetero_la.search import search
from hetero_la.tuning import Problem


def measure(case: Case, n: int, on_gpu: bool, pairs: list[tuple[int, int]]) -> Row:
    """Sweep, choose, and compare."""
    with hetero_la.Cluster(cpus=0 if on_gpu else None, gpus=int(on_gpu)) as cluster:
        workers = worker_infos(cluster.private_client())
        sizes, depths = (sorted(set(values)) for values in zip(*pairs, strict=True))
        problem = Problem(case.benchmark.routine, n, n, 0, np.dtype(case.dtype))
        predicted = search(problem, workers, sizes=sizes, depths=depths)
        run = runner(case, n, on_gpu, cluster)
        seconds = case.measure(
            {f"{nb} {depth}": lambda nb=nb, depth=depth: run(nb, depth) for nb, depth in pairs}
        )
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    best = min(medians, key=medians.__getitem__)
    choice = f"{predicted[0].nb} {predicted[0].lookahead}"
    return {
        "routine": case.benchmark.routine, "n": n, "choice": choice, "best": best,
        "loss": medians[choice] / medians[best] - 1, "measured": medians,
        "predicted": {f"{nb} {depth}": s for nb, depth, s in predicted},
    }  # fmt: skip


def runner(case: Case, n: int, on_gpu: bool, cluster: Any) -> Callable[[int, int], float]:
    """What runs once with a tile size and a look-ahead, and returns its seconds."""
    if not on_gpu:
        a = case.host_matrix(n)

        def on_host(nb: int, depth: int) -> float:
            factors = case.benchmark.factor(a, nb=nb, lookahead=depth, client=cluster)
            return float(factors.timing.seconds)

        return on_host
    import cupy

    device_matrix = cupy.empty((n, n), case.dtype, order="F")

    def on_device(nb: int, depth: int) -> float:
        case.fill(device_matrix)
        factors = replace(case, nb=nb).on_device(device_matrix, lookahead=depth, client=cluster)
        return float(factors.timing.seconds)

    return on_device


def show(found: Row) -> None:
    """Print a sweep, and what came of it."""
    print(f"{found['routine']}, n = {found['n']}: nb, look-ahead, predicted s, measured s")
    for name, seconds in found["measured"].items():
        mark = " choice" * (name == found["choice"]) + " best" * (name == found["best"])
        print(f"{name:>10}{found['predicted'][name]:>12.4f}{seconds:>12.4f}{mark}")
    print(f"loss {found['loss']:.1%}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run, print, and perhaps write JSON."""
    parser = study_parser(__doc__, repeats=5)
    parser.add_argument("--nb", type=int, nargs="+", metavar="NB")
    parser.add_argument("--lookahead", type=int, nargs="+", default=[1], metavar="D")
    args = parser.parse_args(argv)
    orders = [(n, False) for n in (args.cpu if args.cpu is not None else [2048] * (not args.gpu))]
    found = []
    for name, (n, on_gpu) in itertools.product(
        args.routines, orders + [(n, True) for n in args.gpu]
    ):
        case = Case(ROUTINES[name], args.dtype, args.repeats, None)
        sizes = args.nb or ([256, 384, 512, 768, 1024] if on_gpu else [64, 96, 128, 192, 256, 384])
        found.append(measure(case, n, on_gpu, list(itertools.product(sizes, args.lookahead))))
        show(found[-1])
    write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
