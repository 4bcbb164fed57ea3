"""Tile sizes and look-ahead chosen by prediction, beside a full sweep of measured runs.

python benchmarks/tuning.py                       the CPU: LU, Cholesky, QR of n = 2048
python benchmarks/tuning.py --gpu 16384           one GPU, matrix on the device
python benchmarks/tuning.py --nb 96 128 192 --lookahead 0 1 2

The sweep is over runs with tiles of one size.  Beside it run what `hetero-la tune` finds by
the machine's profile (`hetero-la probe` makes it): the best sequences of sizes, by dynamic
programming, and the best single size; the better of them by prediction is the choice.  All
candidates run in turn, so that drift of a shared machine hits each alike; "loss" is the
measured time of the choice over that of the best candidate, less one, and "gain" that of the
best single size of the sweep over that of the best sequence, less one: each the median over
the turns of what the two took in the same one.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Case, Row, write_json
from prediction import study_parser

import hetero_la
from hetero_la.planning.decisions import Problem
from hetero_la.predict.tile_search import search
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.studies.factorizations.problems import FACTORIZATIONS
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_text

Pair = tuple[TileSizes, int]  #: tile sizes, and look-ahead

#: Sequences of sizes that are measured: the best ones by prediction.
_SEQUENCES = 2


def measure(case: Case, n: int, on_gpu: bool, swept: list[Pair]) -> Row:
    """Sweep, choose, and compare."""
    routine = case.benchmark.routine
    with hetero_la.Cluster(cpus=0 if on_gpu else None, gpus=int(on_gpu)) as cluster:
        workers = worker_infos(cluster.private_client())
        problem = Problem(routine, n, n, 0, np.dtype(case.dtype))
        depths = sorted({depth for _, depth in swept})
        found = search(problem, workers, depths=depths)
        tuned = {(one.nb, one.lookahead): one.seconds for one in found}
        single = next(pair for pair in tuned if isinstance(pair[0], int))
        several = [pair for pair in tuned if not isinstance(pair[0], int)][:_SEQUENCES]
        pairs = list(dict.fromkeys([*swept, single, *several]))
        for nb, depth in pairs:
            if (nb, depth) not in tuned:
                plan = hetero_la.plan(
                    routine, (n, n), case.dtype, workers=workers, nb=nb, lookahead=depth
                )
                tuned[nb, depth] = plan.predicted_seconds
        run = runner(case, n, on_gpu, cluster)
        seconds = case.measure({_name(pair): functools.partial(run, *pair) for pair in pairs})
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}

    def best(of: list[Pair]) -> str:
        return min(map(_name, of), key=medians.__getitem__)

    choice = _name((found[0].nb, found[0].lookahead))
    return {
        "routine": routine, "n": n, "choice": choice, "best": best(pairs),
        "loss": _over(seconds[choice], seconds[best(pairs)]),
        "gain": _over(seconds[best(swept)], seconds[best(several)]) if several else math.nan,
        "measured": medians, "predicted": {_name(pair): tuned[pair] for pair in pairs},
    }  # fmt: skip


def _over(some: list[float], others: list[float]) -> float:
    """By what part the ones take longer than the others, turn by turn: the median."""
    return statistics.median(one / other for one, other in zip(some, others, strict=True)) - 1


def _name(pair: Pair) -> str:
    return f"{sizes_text(pair[0])}, {pair[1]}"


def runner(case: Case, n: int, on_gpu: bool, cluster: Any) -> Callable[[TileSizes, int], float]:
    """What runs once with tile sizes and a look-ahead, and returns its seconds."""
    if not on_gpu:
        a = case.benchmark.host_matrix(n, case.dtype)

        def on_host(nb: TileSizes, depth: int) -> float:
            factors = case.benchmark.factor(a, nb=nb, lookahead=depth, client=cluster)
            return float(factors.timing.seconds)

        return on_host
    import cupy

    device_matrix = cupy.empty((n, n), case.dtype, order="F")

    def on_device(nb: TileSizes, depth: int) -> float:
        case.benchmark.fill(device_matrix)
        factors = replace(case, nb=nb).on_device(device_matrix, lookahead=depth, client=cluster)
        return float(factors.timing.seconds)

    return on_device


def show(found: Row) -> None:
    """Print a sweep, and what came of it."""
    print(f"{found['routine']}, n = {found['n']}: predicted s, measured s, nb, look-ahead")
    for name, seconds in sorted(found["measured"].items(), key=lambda item: item[1]):
        mark = " (choice)" * (name == found["choice"])
        print(f"{found['predicted'][name]:>12.4f}{seconds:>12.4f}  {name}{mark}")
    print(f"loss {found['loss']:.1%}, gain {found['gain']:.1%}", flush=True)


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
        case = Case(FACTORIZATIONS[name], args.dtype, args.repeats, None)
        sizes = args.nb or ([256, 384, 512, 768, 1024] if on_gpu else [64, 96, 128, 192, 256, 384])
        found.append(measure(case, n, on_gpu, list(itertools.product(sizes, args.lookahead))))
        show(found[-1])
    write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
